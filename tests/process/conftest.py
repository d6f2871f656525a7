"""Real stores with the real clock, looked at from outside by a judge."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from interlock.domain.job import Enqueued, Filter, Job, NewJob
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Store
from tests.process.actions import TENANT
from tests.support.invariants import check_history, check_postgres, check_sqlite
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, empty_database
from tests.support.workers import Place, preload

preload(
    *(
        f"tests.process.{name}"
        for name in (
            "toil",
            "rounds",
            "test_races",
            "test_kills",
            "test_broken_storage",
            "test_artifact_crashes",
            "moving",
        )
    )
)

FAST: Final = not os.environ.get("INTERLOCK_TEST_LONG")

_ids = itertools.count(1)


def new_id() -> str:
    """Unlike real ones in no order, so that nothing can rely on it."""
    number = next(_ids)
    return f"{number * 2_654_435_761 % (1 << 32):08x}-0000-7000-8000-{number:012x}"


class Checker:
    """Prepares tests, and checks the invariants afterwards."""

    def __init__(self, place: Place, store: Store, admin_dsn: str | None) -> None:
        self.place, self.store = place, store
        self.admin_dsn = admin_dsn

    async def add(self, count: int = 1, **facts: Any) -> list[str]:
        jobs = [NewJob(new_id(), **{"type": "t", **facts}) for _ in range(count)]
        answers = await self.store.enqueue(TENANT, jobs)
        assert all(isinstance(answer, Enqueued) for answer in answers)
        return [job.id for job in jobs]

    async def running(self, count: int = 1, *, lease_seconds: float = 60.0, **facts: Any) -> list[Job]:
        """Jobs held by worker w, in the order of their ids."""
        await self.add(count, **facts)
        jobs = await self.store.claim(TENANT, ClaimFilter("w", limit=count, lease_seconds=lease_seconds))
        assert len(jobs) == count
        return sorted(jobs, key=lambda job: job.id)

    async def jobs(self, ids: Sequence[str]) -> list[Job]:
        found = await self.store.get(TENANT, ids)
        assert None not in found
        return [job for job in found if job is not None]

    async def everything(self) -> list[Job]:
        """Every job there is, page by page."""
        found: list[Job] = []
        while page := await self.store.find(TENANT, Filter(before_seq=found[-1].seq if found else None, limit=1000)):
            found += page
        return found

    async def check(self, *, histories: bool = True, integrity: bool = False) -> None:
        """History, indexes and counts of all jobs agree."""
        verdict = await self.store.audit.verify(TENANT)
        assert verdict.first_bad is None
        jobs = await self.everything()
        assert verdict[:2] == (len(jobs), sum(job.version for job in jobs))
        if histories:
            for job in jobs:
                check_history(job, await self.store.history(TENANT, job.id))
        if self.admin_dsn is None:
            check_sqlite(self.place.address, integrity=integrity)
        else:
            admin = await asyncpg.connect(self.admin_dsn)
            try:
                await check_postgres(admin)
            finally:
                await admin.close()


@pytest.fixture
async def checker(engine: str, tmp_path: Path, postgres: Postgres) -> AsyncIterator[Checker]:
    """A fresh place of either engine and its judge."""
    if engine == "sqlite":
        place = Place("sqlite", str(tmp_path / "race.db"))
        store = await place.open()
        try:
            yield Checker(place, store, None)
        finally:
            await store.close()
        return
    async with empty_database(postgres) as name:
        place = Place("postgres", postgres.dsn(name, user=APP_LOGIN))
        store = await place.open()
        try:
            yield Checker(place, store, postgres.dsn(name))
        finally:
            await store.close()
