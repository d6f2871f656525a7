"""Several openers of one SQLite file or one database see the same jobs, and trust nothing that was rolled back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from interlock.domain.job import Job, Receipt
from interlock.storage.contract import Store, cancels_of
from interlock.storage.migrate import migrations
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.sqlite import claim
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys
from interlock.storage.sqlite.store import SQLiteStore
from interlock.storage.wakeup import NextLook
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, ask, cancel, complete, new_job, release, revoke
from tests.contract.connections import DatabaseError
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock, migrated_file


@pytest_asyncio.fixture(loop_scope="module")
async def beside(
    engine: str,
    place: str,
    store: Store,
    tenant: str,
    clock: ManualClock,
    postgres: Postgres,
    request: pytest.FixtureRequest,
) -> AsyncIterator[TenantQueue]:
    """The same tenant through another store on the same file or databases."""
    other: Store
    if engine == "sqlite":
        other = await SQLiteStore.open(place, clock=clock)
    elif engine == "shards":
        databases = request.getfixturevalue("shards")
        addresses = {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
        other = await open_sharded_store(addresses, size=2, clock=clock)
    else:
        other = await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=2, clock=clock)
    try:
        yield TenantQueue(other, tenant, clock)
    finally:
        await other.close()


async def test_jobs_of_one_store_are_claimed_and_finished_by_another(queue: TenantQueue, beside: TenantQueue) -> None:
    for type in ("a", "b", "a"):
        id = await queue.add(type=type, priority=1)
        (job,) = await beside.claim()
        assert job.id == id
        await queue.do(complete(job))
    await beside.verify()


async def test_jobs_added_by_two_stores_are_ordered_and_leased_once(queue: TenantQueue, beside: TenantQueue) -> None:
    ids = []
    for i in range(10):
        ids.append(await (queue, beside)[i % 2].add(type=f"t{i % 3}"))
    got: list[str] = []
    while jobs := await (queue, beside)[len(got) % 2].claim(limit=3):
        got += [job.id for job in jobs]
    assert got == ids


async def test_a_job_that_could_not_be_added_leaves_no_trace(queue: TenantQueue, beside: TenantQueue) -> None:
    """What a rolled back enqueue had learnt is forgotten, even if another process then takes its place."""
    with pytest.raises(DatabaseError):
        await queue.store.enqueue(queue.tenant, [new_job(type="never", max_attempts=101)])
    other = await beside.add(type="other")
    never = await queue.add(type="never")
    assert await queue.claimed(types=frozenset({"other"}), limit=9) == [other]
    assert await beside.claimed(types=frozenset({"never"}), limit=9) == [never]


async def test_a_finish_respects_changes_by_others_since_the_lease(queue: TenantQueue, beside: TenantQueue) -> None:
    """The lease cache of a process is used only while it is valid: same fence, same worker, same version."""
    await queue.add_all([new_job() for _ in range(12)])
    jobs = await queue.claim(limit=12)
    asked, lost = jobs[3], jobs[7]
    await beside.do(cancel(asked.id))
    await beside.do(revoke(lost.id))
    taken = await beside.again(lost, worker="w1")
    answers = await queue.store.carry_out(queue.tenant, [complete(job) for job in jobs])
    versions = {job.id: a.version for job, a in zip(jobs, answers, strict=True) if isinstance(a, Receipt)}
    assert versions == {job.id: 4 if job is asked else 3 for job in jobs if job is not lost}
    await queue.do(complete(taken))
    await beside.verify()


async def test_on_sqlite_a_rolled_back_lease_is_forgotten(tmp_path: Path, clock: ManualClock) -> None:
    """Another process then grants the same jobs at the same fence, and a finish here continues its history."""
    path, tenant = migrated_file(tmp_path / "interlock.db"), "acme"
    here, there = await SQLiteStore.open(path, clock=clock), await SQLiteStore.open(path, clock=clock)
    try:
        queue, beside = TenantQueue(here, tenant, clock), TenantQueue(there, tenant, clock)
        await queue.add_all([new_job() for _ in range(12)])

        def lease_and_fail(connection: Connection) -> None:
            keys = EligibilityKeys(tenant)
            assert len(claim.claim(connection, keys, tenant, ask(limit=12), (), Counter(), NextLook())) == 12
            raise ArithmeticError

        with pytest.raises(ArithmeticError):
            await here._write(lease_and_fail)
        clock.advance(1)
        jobs = await beside.claim(limit=12)
        answers = await here.carry_out(tenant, [complete(job) for job in jobs])
        assert [answer.version for answer in answers if isinstance(answer, Receipt)] == [3] * 12
        await queue.verify()
    finally:
        await here.close()
        await there.close()


async def test_every_change_that_may_make_a_job_claimable_wakes_local_waiters(queue: TenantQueue) -> None:
    job = await queue.running()
    for act in (
        queue.add(),
        queue.do(release(job)),
        queue.store.registry.pause(queue.tenant, "work", actor=None, reason=None),
    ):
        changed = queue.store.watch(queue.tenant)
        assert not changed.is_set()
        await act
        assert changed.is_set()
    assert not queue.store.watch(queue.tenant).is_set()


async def test_work_of_another_tenant_wakes_no_waiter(
    queue: TenantQueue, rival: TenantQueue, neighbour: TenantQueue
) -> None:
    idle = [queue.store.watch(other.tenant) for other in (rival, neighbour)]
    await queue.do(complete(await queue.running()))
    assert not any(changed.is_set() for changed in idle)
    await rival.add()
    assert [changed.is_set() for changed in idle] == [True, False]


async def test_a_job_added_by_one_store_wakes_waiters_of_another(
    queue: TenantQueue, beside: TenantQueue, neighbour: TenantQueue
) -> None:
    changed = beside.store.watch(beside.tenant)
    idle = beside.store.watch(neighbour.tenant)
    async with asyncio.timeout(RETRY_SECONDS):
        while not changed.is_set():  # a hint may be lost while the listener is still connecting
            await queue.add()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 0.2)
    assert await beside.claim(limit=1)
    assert not idle.is_set()


async def test_a_cancel_or_revoke_by_one_store_wakes_watchers_of_another(
    queue: TenantQueue, beside: TenantQueue, engine: str
) -> None:
    hint, numbers = cancels_of(queue.tenant), itertools.count()

    async def running() -> Job:
        return await queue.running(type=f"work-{next(numbers)}")  # a revoked one is due again

    for stop in (cancel, revoke):
        job = await running()
        here, ready = queue.store.watch(hint), queue.store.watch(queue.tenant)
        await queue.add(type="later")
        assert ready.is_set()
        assert not here.is_set()  # what may be claimed is another matter
        changed = beside.store.watch(hint)
        async with asyncio.timeout(RETRY_SECONDS):
            while not changed.is_set():  # a hint may be lost while the listener is still connecting
                await queue.do(stop((await running()).id))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.2)
        assert here.is_set()
        await queue.do(stop(job.id))
        (state,) = await beside.store.lease_states(queue.tenant, [job.id])
        assert state is not None
        assert (state.fence, state.cancel_requested) == (job.fence, stop is cancel)
        assert (state.worker is None) is (stop is revoke)
    assert await beside.store.lease_states(queue.tenant, [NEVER]) == [None]


async def test_a_store_reports_its_durability(queue: TenantQueue, engine: str) -> None:
    facts = await queue.store.facts()
    if engine == "sqlite":
        assert facts["engine"].startswith("SQLite 3.")
        assert (facts["journal_mode"], facts["synchronous"], facts["integrity"]) == ("wal", "full", "ok")
    else:
        assert facts["engine"].startswith("PostgreSQL ")
        assert (facts["synchronous_commit"], facts["fsync"], facts["full_page_writes"]) == ("on", "on", "on")
        assert facts["role"] == APP_LOGIN
    assert facts["schema"] == migrations(f"interlock.storage.{'postgres' if engine == 'shards' else engine}")[-1].name


async def test_time_is_the_clock_of_the_database(queue: TenantQueue, beside: TenantQueue) -> None:
    """P39: what a process thinks the time is decides nothing; here both are given the same clock."""
    assert await queue.store.now() == await beside.store.now() == queue.clock.now
    queue.clock.advance(0.000001)
    assert await queue.store.now() == queue.clock.now


async def test_a_type_paused_by_one_is_paused_for_all(queue: TenantQueue, beside: TenantQueue) -> None:
    id = await queue.add()
    await beside.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason="incident")
    assert await queue.claim() == []
    await beside.store.registry.pause(queue.tenant, "work", actor=None, reason=None)
    assert await queue.claimed() == [id]


async def test_a_job_ended_by_one_store_is_terminal_for_all(queue: TenantQueue, beside: TenantQueue) -> None:
    id = await queue.add()
    await beside.do(cancel(id))
    assert await queue.claim() == []
    assert (await queue.job(id)) == (await beside.job(id))
