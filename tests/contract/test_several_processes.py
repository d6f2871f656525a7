"""Several openers of one SQLite file or one database see the same jobs, and trust nothing that was rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import Desk, complete, new_job
from tests.contract.doors import DatabaseError
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock


@pytest.fixture
async def beside(
    engine: str, place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[Desk]:
    """The same tenant through another store on the same file or database."""
    other: Store
    if engine == "sqlite":
        other = await SQLiteStore.open(place, clock=clock)
    else:
        other = await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=2, clock=clock)
    try:
        yield Desk(other, tenant, clock)
    finally:
        await other.close()


async def test_jobs_of_one_opener_are_claimed_and_finished_by_another(desk: Desk, beside: Desk) -> None:
    for type in ("a", "b", "a"):
        id = await desk.add(type=type, priority=1)
        (job,) = await beside.claim()
        assert job.id == id
        await desk.do(complete(job))
    await beside.verify()


async def test_what_both_add_is_ordered_and_granted_once(desk: Desk, beside: Desk) -> None:
    ids = []
    for i in range(10):
        ids.append(await (desk, beside)[i % 2].add(type=f"t{i % 3}"))
    got: list[str] = []
    while jobs := await (desk, beside)[len(got) % 2].claim(limit=3):
        got += [job.id for job in jobs]
    assert got == ids


async def test_a_job_that_could_not_be_added_leaves_nothing_to_mistake(desk: Desk, beside: Desk) -> None:
    """What a rolled back enqueue had learnt is forgotten, even if another process then takes its place."""
    with pytest.raises(DatabaseError):
        await desk.store.enqueue(desk.tenant, [new_job(type="never", max_attempts=101)])
    other = await beside.add(type="other")
    never = await desk.add(type="never")
    assert await desk.claimed(types=frozenset({"other"}), limit=9) == [other]
    assert await beside.claimed(types=frozenset({"never"}), limit=9) == [never]
