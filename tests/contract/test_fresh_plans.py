"""PostgreSQL keeps the plans of the hot verbs, made while nothing is there yet: they must do for a database that fills up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg
import pytest

from interlock.domain.job import Job
from interlock.domain.registry import Agent
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import ask, beat, complete, fail, new_job, release
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database

TENANT = "acme"
WAITING = 3000
AGENTS = 40
LIMITED = 100
READ_PER_JOB = 20
ROWS_READ = """
    select relname, idx_tup_fetch + seq_tup_read as read from pg_stat_user_tables
    where relname in ('job', 'ready', 'lease', 'agent', 'route', 'job_history')"""


class Watched(NamedTuple):
    """A store, and somebody who sees how many rows its statements have read."""

    store: PostgresStore
    owner: asyncpg.Connection[asyncpg.Record]

    async def rows_read(self) -> dict[str, int]:
        await self.store._fetch("select pg_stat_force_next_flush()")
        return {row["relname"]: row["read"] for row in await self.owner.fetch(ROWS_READ)}


@pytest.fixture
async def watched(postgres: Postgres) -> AsyncIterator[Watched]:
    """On a database whose statistics nobody gathers."""
    async with fresh_database(postgres) as name:
        owner = await asyncpg.connect(postgres.dsn(name))
        for (table,) in await owner.fetch("select tablename from pg_tables where schemaname = 'interlock'"):
            await owner.execute(f"alter table interlock.{table} set (autovacuum_enabled = false)")
        store = await PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=1)
        yield Watched(store, owner)
        await store.close()
        await owner.close()


async def test_plans_made_for_empty_tables_read_no_more_rows_when_thousands_of_jobs_wait(watched: Watched) -> None:
    store = watched.store
    await _add(store, 60)
    for _ in range(6):  # by the sixth time a plan of its own is kept for every statement
        await _work(store, await _claim(store, 10))
    await _add(store, WAITING)
    before = await watched.rows_read()
    for _ in range(3):
        await _work(store, await _claim(store, 60))
    after = await watched.rows_read()
    for table, read in after.items():
        assert (read - before[table]) / 180 < READ_PER_JOB, f"{read - before[table]} rows of {table} for 180 jobs"


async def test_a_new_job_for_a_limited_agent_reads_nothing_of_the_places_of_others(watched: Watched) -> None:
    store = watched.store
    for i in range(LIMITED):
        await store.set_agent(TENANT, Agent("serial", str(i), max_concurrency=1))
        await store.enqueue(TENANT, [new_job(agent_kind="serial", agent_id=str(i)) for _ in range(2)])
    before = await watched.rows_read()
    for _ in range(20):
        await store.enqueue(TENANT, [new_job(agent_kind="serial", agent_id="0")])
    after = await watched.rows_read()
    assert (after["ready"] - before["ready"]) / 20 < READ_PER_JOB


async def test_jobs_of_limited_agents_are_granted_and_ended_without_reading_the_lines_behind_them(
    watched: Watched,
) -> None:
    store = watched.store
    for i in range(AGENTS):
        await store.set_agent(TENANT, Agent("bot", f"b{i}", max_concurrency=1))
    await _add(store, 60)
    for _ in range(6):
        await store.carry_out(TENANT, [complete(job) for job in await _claim(store, 10)])
    await _add(store, WAITING)
    before = await watched.rows_read()
    for _ in range(6):
        await store.carry_out(TENANT, [complete(job) for job in await _claim(store, 30)])
    after = await watched.rows_read()
    for table, read in after.items():
        assert (read - before[table]) / 180 < READ_PER_JOB, f"{read - before[table]} rows of {table} for 180 jobs"


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
