"""A claim reads no jobs of other workers, even if each waiting job has its own affinity key or requirement."""

from __future__ import annotations

import asyncpg
import pytest

from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import ask, complete, new_job
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database

TENANT = "acme"
APART = 400
TYPES = 5
OPEN = frozenset({"acme/open"})
MINE = frozenset({"mine"})
ASKS = {
    "any repository, no key": ask(),
    "any repository, one key": ask(affinity_keys=MINE),
    "one repository, any key": ask(repositories=OPEN, affinity_keys=None),
    "one repository, one key": ask(repositories=OPEN, affinity_keys=MINE),
    "one repository, any key, a capability": ask(
        repositories=OPEN, affinity_keys=None, capabilities=frozenset({"gpu"})
    ),
}
ROWS_READ = """
    select coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::int from pg_stat_user_tables
    where relname in ('job', 'ready', 'eligibility_key')"""


def jobs_of_others() -> list[NewJob]:
    """None of them may go to any of these asks, and none has a route in common with another."""
    many = range(APART)
    return [
        *(new_job(repository=f"other/{i}", affinity_key=f"key-{i}") for i in many),
        *(new_job(requires=(f"capability-{i}",)) for i in many),
        *(new_job(type=f"type-{i % TYPES}", repository="other/all", affinity_key=f"key-{i}") for i in many),
    ]


async def test_on_postgres_a_claim_reads_no_eligibility_key_and_no_job_of_other_tenants(postgres: Postgres) -> None:
    async with fresh_database(postgres) as name:
        store = await PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=1)
        watcher = await asyncpg.connect(postgres.dsn(name))
        try:
            for _ in range(6):  # by the sixth time a plan is kept that was made for empty tables
                for one in ASKS.values():
                    await claimed_alone(store, one)
            for start in range(0, 3 * APART, 1000):
                await store.enqueue(TENANT, jobs_of_others()[start : start + 1000])
            if watcher.get_server_version().major < 17:
                await store.index_job_blocks(APART, APART)  # as maintenance does every few seconds
            for title, one in ASKS.items():
                before = await rows_read(store, watcher)
                await claimed_alone(store, one)
                read = await rows_read(store, watcher) - before
                assert read < 100, f"{title}: {read} rows were read for one job"
        finally:
            await watcher.close()
            await store.close()


@pytest.mark.parametrize("title", ASKS)
async def test_on_sqlite_a_claim_reads_no_key_range_of_other_tenants(title: str) -> None:
    store = await SQLiteStore.open(":memory:")
    try:
        await claimed_alone(store, ASKS[title])
        await store.enqueue(TENANT, jobs_of_others())
        await claimed_alone(store, ASKS[title])
        # Two ranges a type: what is bound to nothing, and what is bound only to what this worker does not mind.
        assert len(store._keys_of(TENANT).index_ranges(ASKS[title])) <= 2 * (TYPES + 1)
    finally:
        await store.close()


async def claimed_alone(store: Store, ask: ClaimFilter) -> None:
    """One job that this worker may have is granted, and done."""
    job = new_job(repository=None if ask.repositories is None else next(iter(ask.repositories)))
    await store.enqueue(TENANT, [job])
    (leased,) = await store.claim(TENANT, ask._replace(types=frozenset({job.type}), limit=10))
    assert leased.id == job.id
    await store.carry_out(TENANT, [complete(leased)])


async def rows_read(store: PostgresStore, watcher: asyncpg.Connection[asyncpg.Record]) -> int:
    await store._fetch("select pg_stat_force_next_flush()")
    return int(await watcher.fetchval(ROWS_READ))
