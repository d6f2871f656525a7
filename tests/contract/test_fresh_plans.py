"""PostgreSQL keeps the plans of the hot verbs, made while nothing is there yet: they must do for a database that fills up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from interlock.domain.job import Job
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import ask, beat, complete, fail, new_job, release
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database

TENANT = "acme"
WAITING = 3000
AGENTS = 40
READ_PER_JOB = 20
ROWS_READ = """
    select relname, idx_tup_fetch + seq_tup_read as read from pg_stat_user_tables
    where relname in ('job', 'ready', 'lease', 'agent', 'route', 'job_history')"""


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[str]:
    """A database whose statistics nobody gathers."""
    async with fresh_database(postgres) as name:
        owner = await asyncpg.connect(postgres.dsn(name))
        for (table,) in await owner.fetch("select tablename from pg_tables where schemaname = 'interlock'"):
            await owner.execute(f"alter table interlock.{table} set (autovacuum_enabled = false)")
        await owner.close()
        yield name


async def test_plans_made_for_empty_tables_read_no_more_rows_when_thousands_of_jobs_wait(
    database: str, postgres: Postgres
) -> None:
    store = await PostgresStore.open(postgres.dsn(database, user=APP_LOGIN), size=1)
    watcher = await asyncpg.connect(postgres.dsn(database))
    try:
        await _add(store, 60)
        for _ in range(6):  # by the sixth time a plan of its own is kept for every statement
            await _work(store, await _claim(store, 10))
        await _add(store, WAITING)
        before = await _rows_read(store, watcher)
        for _ in range(3):
            await _work(store, await _claim(store, 60))
        after = await _rows_read(store, watcher)
        for table, read in after.items():
            assert (read - before[table]) / 180 < READ_PER_JOB, f"{read - before[table]} rows of {table} for 180 jobs"
    finally:
        await watcher.close()
        await store.close()


async def _add(store: PostgresStore, count: int) -> None:
    jobs = [new_job(type=f"t{i % 5}", agent_kind="bot", agent_id=f"b{i % AGENTS}") for i in range(count)]
    for i in range(0, count, 1000):
        await store.enqueue(TENANT, jobs[i : i + 1000])


async def _claim(store: PostgresStore, count: int) -> list[Job]:
    granted = await store.claim(TENANT, ask(limit=count, lease_seconds=3600))
    assert len(granted) == count
    return granted


async def _work(store: PostgresStore, jobs: list[Job]) -> None:
    """A heartbeat for all; then most are completed, some fail, some are handed back."""
    await store.heartbeat(TENANT, [beat(job) for job in jobs])
    await store.carry_out(TENANT, [complete(job) for job in jobs[::3] + jobs[1::3]])
    for job in jobs[2::6]:
        await store.carry_out(TENANT, [fail(job, retryable=False)])
    for job in jobs[5::6]:
        await store.carry_out(TENANT, [release(job, delay_seconds=3600)])


async def _rows_read(store: PostgresStore, watcher: asyncpg.Connection[asyncpg.Record]) -> dict[str, int]:
    await store._fetch("select pg_stat_force_next_flush()")
    return {row["relname"]: row["read"] for row in await watcher.fetch(ROWS_READ)}
