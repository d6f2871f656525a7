"""PostgreSQL keeps the plans of the hot verbs, made while nothing is there yet: they must do for a database that fills up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import asyncpg
import pytest

from interlock.domain.decide import Command
from interlock.domain.edit import EditJob
from interlock.domain.job import Job, Receipt
from interlock.domain.registry import Agent
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import OPERATOR, ask, cancel, complete, fail, heartbeat, new_job, release, revoke
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database

TENANT = "acme"
WAITING = 3000
AGENTS = 40
GROWN_AGENTS = 300
READ_PER_JOB = 20
READ_PER_VERB = 60
ROWS_READ = """
    select relname, idx_tup_fetch + seq_tup_read as read from pg_stat_user_tables
    where relname in ('job', 'ready', 'lease', 'agent', 'eligibility_key', 'job_history')"""


class Watched(NamedTuple):
    """A store, and a counter of the rows that its statements have read."""

    store: PostgresStore
    owner: asyncpg.Connection[asyncpg.Record]

    async def rows_read(self) -> dict[str, int]:
        await self.store._fetch("select pg_stat_force_next_flush()")
        return {row["relname"]: row["read"] for row in await self.owner.fetch(ROWS_READ)}


@pytest.fixture
async def watched(postgres: Postgres) -> AsyncIterator[Watched]:
    """On a database without statistics."""
    async with fresh_database(postgres) as name:
        owner = await asyncpg.connect(postgres.dsn(name))
        for (table,) in await owner.fetch("select tablename from pg_tables where schemaname = 'interlock'"):
            await owner.execute(f"alter table interlock.{table} set (autovacuum_enabled = false)")
        store = await PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=1)
        yield Watched(store, owner)
        await store.close()
        await owner.close()


async def test_plans_made_for_empty_tables_stay_efficient_with_thousands_of_jobs(watched: Watched) -> None:
    store = watched.store
    await _add(store, 60)
    for _ in range(6):  # by the sixth time a separate plan is cached for every statement
        await _work(store, await _claim(store, 10))
    await _add(store, WAITING)
    before = await watched.rows_read()
    for _ in range(3):
        await _work(store, await _claim(store, 60))
    after = await watched.rows_read()
    for table, read in after.items():
        assert (read - before[table]) / 180 < READ_PER_JOB, f"{read - before[table]} rows of {table} for 180 jobs"


async def test_jobs_of_limited_agents_are_leased_and_finished_without_reading_their_backlog(
    watched: Watched,
) -> None:
    store = watched.store
    for i in range(AGENTS):
        await store.registry.set_agent(TENANT, Agent("bot", f"b{i}", max_concurrency=1))
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


async def test_no_operation_reads_more_rows_after_a_tenant_has_grown(watched: Watched) -> None:
    verbs = Verbs(watched.store)
    for _ in range(7):
        await verbs.add_jobs(20, agents=2)
        for do in verbs.all():
            await do()
    await verbs.add_jobs(WAITING, agents=GROWN_AGENTS)
    for do in verbs.all():
        before = await watched.rows_read()
        await do()
        after = await watched.rows_read()
        for table, read in after.items():
            assert read - before[table] < READ_PER_VERB, f"{do.__name__} read {read - before[table]} rows of {table}"


class Verbs:
    """One of each, for jobs of serial agents and without an agent."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._agents = 0
        self._in_line: list[str] = []
        self._free: list[str] = []

    def all(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.enqueue_for_an_agent, self.enqueue_before_the_others, self.edit, self.cancel_blocked, self.cancel,
            self.complete, self.fail, self.release, self.release_for_a_child, self.revoke, self.limit_anew,
        ]  # fmt: skip

    async def add_jobs(self, count: int, *, agents: int) -> None:
        for i in range(self._agents, agents):
            await self._store.registry.set_agent(TENANT, Agent("bot", f"b{i}", max_concurrency=1))
        self._agents = agents
        for _ in range(0, count, 1000):
            some = range(min(count, 1000))
            in_line = [new_job(type=f"t{i % 5}", agent_kind="bot", agent_id=f"b{i % agents}") for i in some]
            free = [new_job(type=f"t{i % 5}") for i in some]
            await self._store.enqueue(TENANT, in_line + free)
            self._in_line += [job.id for job in in_line]
            self._free += [job.id for job in free]

    async def enqueue_for_an_agent(self) -> None:
        await self._store.enqueue(TENANT, [new_job(agent_kind="bot", agent_id="b0")])

    async def enqueue_before_the_others(self) -> None:
        await self._store.enqueue(TENANT, [new_job(agent_kind="bot", agent_id="b0", run_at=1)])

    async def edit(self) -> None:
        await self._do(
            EditJob(self._in_line.pop(), OPERATOR, priority=5), EditJob(self._free.pop(), OPERATOR, priority=5)
        )

    async def cancel_blocked(self) -> None:
        await self._do(cancel(self._in_line.pop()))

    async def cancel(self) -> None:
        await self._do(cancel(self._free.pop()))

    async def complete(self) -> None:
        await self._do(complete(await self._claimed()))

    async def fail(self) -> None:
        await self._do(fail(await self._claimed()))

    async def release(self) -> None:
        await self._do(release(await self._claimed(), delay_seconds=3600))

    async def release_for_a_child(self) -> None:
        job = await self._claimed()
        child = new_job(type="t1", parent_id=job.id)
        await self._store.enqueue(TENANT, [child])
        await self._do(release(job, children=(child.id,)))
        await self._do(cancel(child.id))

    async def revoke(self) -> None:
        await self._do(revoke((await self._claimed()).id))

    async def limit_anew(self) -> None:
        for limit in (2, 1):
            await self._store.registry.set_agent(TENANT, Agent("bot", f"b{self._agents - 1}", max_concurrency=limit))

    async def _claimed(self) -> Job:
        return (await _claim(self._store, 1))[0]

    async def _do(self, *orders: Command) -> None:
        answers = await self._store.carry_out(TENANT, orders)
        assert all(isinstance(answer, Receipt) for answer in answers), answers


async def _add(store: PostgresStore, count: int) -> None:
    jobs = [new_job(type=f"t{i % 5}", agent_kind="bot", agent_id=f"b{i % AGENTS}") for i in range(count)]
    for i in range(0, count, 1000):
        await store.enqueue(TENANT, jobs[i : i + 1000])


async def _claim(store: PostgresStore, count: int) -> list[Job]:
    """Claim as a worker does, which uses a claim ID again once its jobs are finished."""
    leased = await store.claim(TENANT, ask(limit=count, lease_seconds=3600, claim_id="claim-1"))
    assert len(leased) == count
    return leased


async def _work(store: PostgresStore, jobs: list[Job]) -> None:
    """A heartbeat for all; then most are completed, some fail, some are released."""
    await store.heartbeat(TENANT, [heartbeat(job) for job in jobs])
    await store.carry_out(TENANT, [complete(job) for job in jobs[::3] + jobs[1::3]])
    for job in jobs[2::6]:
        await store.carry_out(TENANT, [fail(job, retryable=False)])
    for job in jobs[5::6]:
        await store.carry_out(TENANT, [release(job, delay_seconds=3600)])
