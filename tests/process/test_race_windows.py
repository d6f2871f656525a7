"""Moments so short that a race meets them once in a million tries, held open here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from interlock.domain.decide import ReleaseJob
from interlock.domain.edit import EditJob
from interlock.domain.job import NewJob, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.process.actions import TENANT
from tests.process.conftest import new_id
from tests.support.invariants import check_postgres, check_sqlite
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, SECOND, empty_database
from tests.support.workers import until

BARRIER = 4711

# Every read of a job by an ordinary role first passes this barrier, which a test can close. So a statement of the store
# can be stopped between its read and its lock.
BLOCKED_FUNCTION = f"""
create function interlock.pass_gate() returns boolean language plpgsql volatile as $$
begin
  if current_setting('application_name') = 'slow' then perform pg_advisory_lock_shared({BARRIER}), pg_advisory_unlock_shared({BARRIER}); end if;
  return true;
end $$;
create policy gate on interlock.job as restrictive for all using (interlock.pass_gate());
"""


@pytest.fixture
async def awaiting_approval(
    postgres: Postgres,
) -> AsyncIterator[tuple[PostgresStore, PostgresStore, asyncpg.Connection[asyncpg.Record]]]:
    """A quick store, a slow one, and the gatekeeper's connection."""
    async with empty_database(postgres) as name:
        keeper = await asyncpg.connect(postgres.dsn(name))
        await keeper.execute(BLOCKED_FUNCTION)
        dsn = postgres.dsn(name, user=APP_LOGIN)
        quick = await PostgresStore.open(dsn, size=1)
        slow = await PostgresStore.open(f"{dsn}?application_name=slow", size=1)
        try:
            yield quick, slow, keeper
        finally:
            await quick.close()
            await slow.close()
            await keeper.close()


@pytest.mark.parametrize("how", ["later", "children", "at once", "edited"])
async def test_a_claim_leases_nothing_by_an_outdated_slot(
    awaiting_approval: tuple[PostgresStore, PostgresStore, asyncpg.Connection[asyncpg.Record]], how: str
) -> None:
    """A claimer has seen a job as ready; before it locks it, another has run it and released it to wait."""
    quick, slow, keeper = awaiting_approval
    job = NewJob(new_id(), "t")
    await quick.enqueue(TENANT, [job])
    await keeper.execute(f"select pg_advisory_lock({BARRIER})")
    late = asyncio.create_task(slow.claim(TENANT, ClaimFilter("late")))

    async def waits_at_the_barrier() -> bool:
        return bool(await keeper.fetchval("select count(*) from pg_locks where locktype = 'advisory' and not granted"))

    await until(waits_at_the_barrier, "the slow claim waits at the barrier")
    if how == "edited":
        child = job
        (edited,) = await quick.carry_out(
            TENANT, [EditJob(job.id, "user:eva", run_at=await quick.now() + 3600 * SECOND)]
        )
        assert isinstance(edited, Receipt)
    else:
        (held,) = await quick.claim(TENANT, ClaimFilter("first"))
        child = NewJob(new_id(), "child", parent_id=job.id)
        await quick.enqueue(TENANT, [child])
        release = {
            "later": ReleaseJob(job.id, held.fence, "first", delay_seconds=3600.0),
            "children": ReleaseJob(job.id, held.fence, "first", children=(child.id,)),
            "at once": ReleaseJob(job.id, held.fence, "first"),
        }[how]
        await quick.carry_out(TENANT, [release])
    await keeper.execute(f"select pg_advisory_unlock({BARRIER})")

    got = [leased.id for leased in await late]
    (now,) = await quick.get(TENANT, [job.id])
    assert now is not None
    if how == "at once":
        assert got in ([], [job.id], [child.id])
    else:
        assert job.id not in got
        assert now.status == Status.QUEUED
    await check_postgres(keeper)


async def test_a_rolled_back_eligibility_key_is_forgotten(tmp_path: Path) -> None:
    """Its number may meanwhile have been given to another kind of job by another process."""
    path = str(tmp_path / "routes.db")
    one: Store = await SQLiteStore.open(path)
    other: Store = await SQLiteStore.open(path)
    try:
        with pytest.raises(UnicodeEncodeError):
            await one.enqueue(TENANT, [NewJob(new_id(), "mail", payload='"\ud800"')])
        await other.enqueue(TENANT, [NewJob(new_id(), "pay")])
        await one.enqueue(TENANT, [NewJob(new_id(), "mail")])
        check_sqlite(path)
        for store, type in ((one, "mail"), (other, "pay")):
            (job,) = await store.claim(TENANT, ClaimFilter("w", types=frozenset({type}), limit=10))
            assert job.type == type
    finally:
        await one.close()
        await other.close()
