from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from interlock import JobHandle
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.storage.contract import Store
from tests.integrations.model_server import ModelServer, serving
from tests.support.apps import StoreApp
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ENGINES, ManualClock, empty_database

MAX_RUNS: Final = 10


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with serving() as server:
        yield server


@pytest.fixture(params=ENGINES)
async def url(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres) -> AsyncIterator[str]:
    """The address of an empty database of each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    async with empty_database(postgres) as name:
        yield postgres.dsn(name, user=APP_LOGIN)


class DrainedApp(StoreApp):
    """An app whose jobs a test runs to their end, over retries, by moving the clock."""

    clock: ManualClock

    async def finish(self, handle: JobHandle[Any]) -> Any:
        """Run a job to its end and return its result."""
        for _ in range(MAX_RUNS):
            await self.drain()
            job = await self.job(handle.id)
            if job.status in TERMINAL:
                assert job.status is Status.SUCCEEDED, job.error
                return json.loads(job.result or "null")
            self.clock.advance(60)
        raise AssertionError("the job does not end")


@pytest.fixture
async def app(store: Store, clock: ManualClock) -> AsyncIterator[DrainedApp]:
    """An app without tasks on a fresh store of each engine."""
    made = DrainedApp(store)
    made.clock = clock
    yield made
    await made.close()
