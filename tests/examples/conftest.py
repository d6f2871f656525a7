from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import interlock
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ENGINES, empty_database

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=ENGINES)
async def url(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres) -> AsyncIterator[str]:
    """The address of a migrated database of each engine, without a job."""
    if request.param == "sqlite":
        async with interlock.App(f"sqlite:///{tmp_path}/jobs.db") as app:
            await app.me()
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    async with empty_database(postgres) as name:
        yield postgres.dsn(name, user=APP_LOGIN)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the directory of the example that the test names, so that running it leaves nothing behind."""
    copy = tmp_path / str(request.param)
    shutil.copytree(EXAMPLES / str(request.param), copy, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    return copy
