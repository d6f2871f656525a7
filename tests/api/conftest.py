"""Fixtures: a served store with auth off, and one with auth on; tests of a file share a PostgreSQL database."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.api.options import Options
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.api.rig import Api, serving
from tests.contract.conftest import database  # noqa: F401 - a fixture
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock, migrated_file

_numbers = itertools.count(1)


@pytest.fixture
def place(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where jobs are kept: the path of a file, or the name of a database."""
    return migrated_file(tmp_path / "interlock.db") if engine == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture
async def store(engine: str, place: str, clock: ManualClock, postgres: Postgres) -> Store:
    """A store that is closed with the engine that is served over it."""
    if engine == "sqlite":
        return await SQLiteStore.open(place, clock=clock)
    return await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=4, clock=clock)


@pytest.fixture
def options() -> Options:
    """Auth is off; a tenant that no other test has used."""
    return Options(tenant=f"tenant-{next(_numbers)}")


@pytest.fixture
async def api(store: Store, clock: ManualClock, options: Options, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(store, clock, options, objects=FileObjects(tmp_path / "artifacts")) as served:
        yield served


@pytest.fixture
async def guarded(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:
    """Auth is on, and this caller has no credential yet: see `as_role`."""
    options = Options(auth=True, tenant=f"tenant-{next(_numbers)}")
    async with serving(store, clock, options, objects=FileObjects(tmp_path / "artifacts")) as served:
        yield served
