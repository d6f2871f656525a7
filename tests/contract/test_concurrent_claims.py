"""Workers side by side on PostgreSQL do not get in each other's way."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

import asyncpg
import pytest

from interlock.domain.decide import Command, CompleteJob
from interlock.domain.edit import EditJob
from interlock.domain.job import Receipt
from interlock.domain.registry import Agent
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import OPERATOR, ask, complete, new_job, release
from tests.support.eventually import eventually
from tests.support.postgres import OWNER, PostgresServer
from tests.support.stores import APP_LOGIN, fresh_database, make_template, opened

TENANT = "acme"
WORKERS = 3
JOBS = 6000
BATCH = 100
LOCKED = 100  # as many as a cancel of many jobs holds at once, or workers that claim in the same moment
CLAIM = "select job_ids from interlock.claim('acme', 'other', $1, 60, null, '{}', null, '{}', null, null, false, false)"
TALKATIVE = {
    "log_lock_waits": "on",
    "deadlock_timeout": "1ms",
    "log_line_prefix": "%q",
    "max_prepared_transactions": "1",
}
UPDATES = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'job'"


@pytest.fixture(scope="module")
def talkative() -> Iterator[PostgresServer]:
    """A server that logs every transaction that waits for another."""
    with PostgresServer(settings=TALKATIVE) as server:
        asyncio.run(make_template(server))
        yield server


async def test_no_worker_waits_for_the_claim_of_another_and_updates_stay_on_their_page(
    talkative: PostgresServer,
) -> None:
    async with fresh_database(talkative) as name:
        store = await PostgresStore.open(talkative.dsn(name, user=APP_LOGIN), size=WORKERS)
        try:
            for _ in range(0, JOBS, 1000):
                await store.enqueue(TENANT, [new_job(type=f"t{i % 5}") for i in range(1000)])
            done = await asyncio.gather(*(_work(store, f"w{i}") for i in range(WORKERS)))
            assert sum(done) == JOBS
        finally:
            await store.close()
        waits = [line for line in talkative.log.splitlines() if "still waiting" in line and "transaction" in line]
        assert not waits, f"{len(waits)} waits for {JOBS} jobs, as {waits[0]}"
        updates, in_place = await _updates(talkative.dsn(name))
        assert updates == 2 * JOBS
        assert in_place > 0.98 * updates, f"{updates - in_place} of {updates} updates left their page"


@pytest.mark.parametrize("how", ["claimed", "claimed in a savepoint", "looked at by a cancel", "prepared to commit"])
async def test_a_claim_gets_the_best_unlocked_job_behind_any_number_of_locked_ones(
    talkative: PostgresServer, how: str
) -> None:
    async with (
        fresh_database(talkative) as name,
        opened(PostgresStore.open(talkative.dsn(name, user=APP_LOGIN), size=2)) as store,
    ):
        jobs = [new_job() for _ in range(LOCKED + 10)]
        ids = [job.id for job in jobs]
        await store.enqueue(TENANT, jobs)
        other = await asyncpg.connect(talkative.dsn(name, user=APP_LOGIN))
        await other.execute("begin")
        if how == "claimed in a savepoint":
            await other.execute("savepoint here")
        if how == "looked at by a cancel":
            await other.fetch("select id from interlock.job_states($1, $2)", TENANT, ids[:LOCKED])
        else:
            await other.fetch(CLAIM, LOCKED)
        if how == "prepared to commit":
            await other.execute("prepare transaction 'later'")
        try:
            for id in ids[LOCKED : LOCKED + 3]:
                assert [job.id for job in await store.claim(TENANT, ask(limit=1))] == [id]
        finally:
            await other.execute("rollback prepared 'later'" if how == "prepared to commit" else "rollback")
            await other.close()
        rest = await store.claim(TENANT, ask(limit=LOCKED + 10))
        assert [job.id for job in rest] == ids[:LOCKED] + ids[LOCKED + 3 :], (
            "what was not taken after all is there again"
        )


async def test_a_large_claim_skips_locked_jobs_and_loses_none(talkative: PostgresServer) -> None:
    async with (
        fresh_database(talkative) as name,
        opened(PostgresStore.open(talkative.dsn(name, user=APP_LOGIN), size=2)) as store,
    ):
        jobs = [new_job(type=f"t{i % 5}") for i in range(100)]
        ids = [job.id for job in jobs]
        await store.enqueue(TENANT, jobs)
        other = await asyncpg.connect(talkative.dsn(name, user=APP_LOGIN))
        await other.execute("begin")
        await other.fetch("select id from interlock.job_states($1, $2)", TENANT, ids[::3])
        free = [id for i, id in enumerate(ids) if i % 3]
        try:
            assert [job.id for job in await store.claim(TENANT, ask(limit=40))] == free[:40]
        finally:
            await other.execute("rollback")
            await other.close()
        rest = await store.claim(TENANT, ask(limit=100))
        assert [job.id for job in rest] == [id for id in ids if id not in free[:40]]


@pytest.mark.parametrize("table", ["job", "ready"])
@pytest.mark.parametrize("many", [1, 30])
async def test_a_claim_skips_locked_rows_without_waiting(talkative: PostgresServer, table: str, many: int) -> None:
    """Two share each lock, so that its transaction cannot be derived from the row: only SKIP LOCKED passes over it."""
    async with (
        fresh_database(talkative) as name,
        # a waiting transaction gives up
        opened(PostgresStore.open(f"{talkative.dsn(name, user=APP_LOGIN)}?lock_timeout=500", size=2)) as store,
        contextlib.AsyncExitStack() as others,
    ):
        jobs = [new_job() for _ in range(2 * many)]
        ids = [job.id for job in jobs]
        await store.enqueue(TENANT, jobs)
        held = "id" if table == "job" else "job_id"
        for _ in range(2):
            other = await asyncpg.connect(talkative.dsn(name, user=OWNER))
            others.push_async_callback(other.close)
            await other.execute("begin")
            await other.execute("select set_config('interlock.tenant', $1, true)", TENANT)
            await other.execute(f"select from interlock.{table} where {held} = any($1) for share", ids[:many])
        assert [job.id for job in await store.claim(TENANT, ask(limit=many))] == ids[many:]


@pytest.mark.parametrize("many", [1, 30])
async def test_a_claim_checks_the_due_time_again_under_the_lock(talkative: PostgresServer, many: int) -> None:
    """What is ready only leads to the job: where the two differ, as in the middle of an edit, the job decides."""
    async with (
        fresh_database(talkative) as name,
        opened(PostgresStore.open(talkative.dsn(name, user=APP_LOGIN), size=2)) as store,
    ):
        later = [new_job(delay_seconds=3600.0) for _ in range(many)]
        now = [new_job() for _ in range(many)]
        await store.enqueue(TENANT, later + now)
        admin = await asyncpg.connect(talkative.dsn(name))
        try:
            await admin.execute("set session_replication_role = replica")  # past the trigger that keeps ready by hand
            await admin.execute(
                "update interlock.ready set run_at = 'epoch' where run_at > now() + interval '1 minute'"
            )
        finally:
            await admin.close()
        leased = await store.claim(TENANT, ask(limit=many))
        assert [job.id for job in leased] == [job.id for job in now]
        assert await store.claim(TENANT, ask(limit=many)) == []


async def test_edits_and_finishes_of_many_agents_lock_them_in_one_order(talkative: PostgresServer) -> None:
    """Each batch names its jobs in another order; a transaction that waits for another never blocks that one."""
    agents = [f"a{n}" for n in range(6)]
    async with (
        fresh_database(talkative) as name,
        opened(PostgresStore.open(talkative.dsn(name, user=APP_LOGIN), size=4)) as store,
    ):
        for agent in agents:
            await store.registry.set_agent(TENANT, Agent("bot", agent, max_concurrency=1))
        jobs = [new_job(agent_kind="bot", agent_id=agent) for agent in agents * 8]
        await store.enqueue(TENANT, jobs)
        running = await store.claim(TENANT, ask(limit=len(agents)))
        chance = random.Random(1)

        async def edit() -> None:
            for priority in range(20):
                waiting = [EditJob(job.id, OPERATOR, priority=priority) for job in chance.sample(jobs, 8)]
                await store.carry_out(TENANT, waiting)

        async def work() -> None:
            for _ in range(10):
                orders: list[Command] = [release(job) if chance.random() < 0.5 else complete(job) for job in running]
                chance.shuffle(orders)
                await store.carry_out(TENANT, orders)
                running[:] = await store.claim(TENANT, ask(limit=len(agents)))

        await asyncio.gather(edit(), edit(), edit(), work())
        admin = await asyncpg.connect(talkative.dsn(name))
        try:
            found = await admin.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
        finally:
            await admin.close()
        assert found == 0


async def _work(store: PostgresStore, worker: str) -> int:
    done = 0
    while jobs := await store.claim(TENANT, ask(worker=worker, limit=BATCH)):
        receipts = await store.carry_out(TENANT, [CompleteJob(job.id, job.fence, worker) for job in jobs])
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        done += len(jobs)
    return done


async def _updates(dsn: str) -> tuple[int, int]:
    """The updates that the workers' connections, closed by now, have reported."""
    watcher = await asyncpg.connect(dsn)
    reported = (0, 0)

    async def of_all_jobs() -> bool:
        nonlocal reported
        ((updates, in_place),) = await watcher.fetch(UPDATES)
        reported = (updates, in_place)
        return reported[0] >= 2 * JOBS

    try:
        await eventually(of_all_jobs)
        return reported
    finally:
        await watcher.close()
