"""Fixtures shared by all tests: one PostgreSQL per test process, a fresh store per test."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from interlock.storage.contract import Store
from tests.support.eventually import RETRY_SECONDS
from tests.support.forms import IS_LONG, left_out_of_the_short_form
from tests.support.postgres import Postgres
from tests.support.postgres import postgres as running_postgres
from tests.support.scratch import use_memory
from tests.support.stores import ENGINES, ManualClock, make_template, open_store

MAX_LENGTH: Final = ("cluster", "model", "process")
# How long to wait at exit, or for a slow shard: a busy machine must not look like one that is gone.
MOMENTS: Final = (
    "interlock.worker.loop.LAST_WORDS_SECONDS",
    "interlock.engine.worker_presence.LAST_NOTES_SECONDS",
    "interlock.storage.shards.routing.RETRY_SECONDS",
)

use_memory()
# Collection makes millions of objects that stay: to look through them again and again takes half of its time.
gc.disable()
settings.register_profile(
    "however busy the machine",
    deadline=None,
    derandomize=not IS_LONG,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("however busy the machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The folders with the longest tests first, so that at the end no process waits for one of them."""
    left_out = left_out_of_the_short_form(items, Path(__file__).parent)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.parent.name not in MAX_LENGTH)


def pytest_collection_finish() -> None:
    """From here on, the garbage collector only looks at what tests make, and rarely."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _timeout() -> Iterator[None]:
    """Tests of what happens when a moment is over set a shorter one."""
    with pytest.MonkeyPatch.context() as patch:
        for moment in MOMENTS:
            patch.setattr(moment, RETRY_SECONDS)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL with a migrated template database."""
    with running_postgres() as server:
        asyncio.run(make_template(server))
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of the engine under test."""
    return str(request.param)


@pytest.fixture
async def store(engine: str, clock: ManualClock, tmp_path: Path, postgres: Postgres) -> AsyncIterator[Store]:
    """A fresh store on each engine, with a clock that stands still until moved."""
    async with open_store(engine, directory=tmp_path, postgres=postgres, clock=clock) as opened:
        yield opened
