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
from tests.contract.builders import NEVER, OPERATOR, Desk, ask, cancel, complete, new_job, release, revoke
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
) -> AsyncIterator[Desk]:
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
        yield Desk(other, tenant, clock)
    finally:
        await other.close()


async def test_jobs_of_one_opener_are_claimed_and_finished_by_another(remote: Desk, beside: Desk) -> None:
    for type in ("a", "b", "a"):
        id = await remote.add(type=type, priority=1)
        (job,) = await beside.claim()
        assert job.id == id
        await remote.do(complete(job))
    await beside.verify()


async def test_what_both_add_is_ordered_and_granted_once(remote: Desk, beside: Desk) -> None:
    ids = []
    for i in range(10):
        ids.append(await (remote, beside)[i % 2].add(type=f"t{i % 3}"))
    got: list[str] = []
    while jobs := await (remote, beside)[len(got) % 2].claim(limit=3):
        got += [job.id for job in jobs]
    assert got == ids


async def test_a_job_that_could_not_be_added_leaves_nothing_to_mistake(remote: Desk, beside: Desk) -> None:
    """What a rolled back enqueue had learnt is forgotten, even if another process then takes its place."""
    with pytest.raises(DatabaseError):
        await remote.store.enqueue(remote.tenant, [new_job(type="never", max_attempts=101)])
    other = await beside.add(type="other")
    never = await remote.add(type="never")
    assert await remote.claimed(types=frozenset({"other"}), limit=9) == [other]
    assert await beside.claimed(types=frozenset({"never"}), limit=9) == [never]


async def test_a_finish_goes_by_what_others_have_done_since_the_grant(remote: Desk, beside: Desk) -> None:
    """What a process remembers of its grants is used only while it holds: same fence, same worker, same version."""
    await remote.add_all([new_job() for _ in range(12)])
    jobs = await remote.claim(limit=12)
    asked, lost = jobs[3], jobs[7]
    await beside.do(cancel(asked.id))
    await beside.do(revoke(lost.id))
    taken = await beside.again(lost, worker="w1")
    answers = await remote.store.carry_out(remote.tenant, [complete(job) for job in jobs])
    versions = {job.id: a.version for job, a in zip(jobs, answers, strict=True) if isinstance(a, Receipt)}
    assert versions == {job.id: 4 if job is asked else 3 for job in jobs if job is not lost}
    await remote.do(complete(taken))
    await beside.verify()


async def test_on_sqlite_a_grant_that_was_rolled_back_is_forgotten(tmp_path: Path, clock: ManualClock) -> None:
    """Another process then grants the same jobs at the same fence, and a finish here continues its history."""
    path, tenant = migrated_file(tmp_path / "interlock.db"), "acme"
    here, there = await SQLiteStore.open(path, clock=clock), await SQLiteStore.open(path, clock=clock)
    try:
        remote, beside = Desk(here, tenant, clock), Desk(there, tenant, clock)
        await remote.add_all([new_job() for _ in range(12)])

        def grant_and_fail(connection: Connection) -> None:
            assert len(claim.claim(connection, EligibilityKeys(tenant), tenant, ask(limit=12), (), Counter())) == 12
            raise ArithmeticError

        with pytest.raises(ArithmeticError):
            await here._write(grant_and_fail)
        clock.advance(1)
        jobs = await beside.claim(limit=12)
        answers = await here.carry_out(tenant, [complete(job) for job in jobs])
        assert [answer.version for answer in answers if isinstance(answer, Receipt)] == [3] * 12
        await remote.verify()
    finally:
        await here.close()
        await there.close()


async def test_whatever_may_make_a_job_claimable_wakes_who_waits_here(remote: Desk) -> None:
    job = await remote.running()
    for act in (
        remote.add(),
        remote.do(release(job)),
        remote.store.pause(remote.tenant, "work", actor=None, reason=None),
    ):
        changed = remote.store.watch(remote.tenant)
        assert not changed.is_set()
        await act
        assert changed.is_set()
    assert not remote.store.watch(remote.tenant).is_set()


async def test_nobody_is_woken_for_the_work_of_another_tenant(remote: Desk, rival: Desk, neighbour: Desk) -> None:
    idle = [remote.store.watch(other.tenant) for other in (rival, neighbour)]
    await remote.do(complete(await remote.running()))
    assert not any(changed.is_set() for changed in idle)
    await rival.add()
    assert [changed.is_set() for changed in idle] == [True, False]


async def test_what_one_opener_adds_wakes_who_waits_at_another(remote: Desk, beside: Desk, neighbour: Desk) -> None:
    changed = beside.store.watch(beside.tenant)
    idle = beside.store.watch(neighbour.tenant)
    async with asyncio.timeout(RETRY_SECONDS):
        while not changed.is_set():  # a hint may be lost while the listener is still connecting
            await remote.add()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 0.2)
    assert await beside.claim(limit=1)
    assert not idle.is_set()


async def test_a_cancel_or_revoke_by_one_opener_wakes_who_watches_for_it_at_another(
    remote: Desk, beside: Desk, engine: str
) -> None:
    hint, numbers = cancels_of(remote.tenant), itertools.count()

    async def running() -> Job:
        return await remote.running(type=f"work-{next(numbers)}")  # a revoked one is due again

    for stop in (cancel, revoke):
        job = await running()
        here, ready = remote.store.watch(hint), remote.store.watch(remote.tenant)
        await remote.add(type="later")
        assert ready.is_set()
        assert not here.is_set()  # what may be claimed is another matter
        changed = beside.store.watch(hint)
        async with asyncio.timeout(RETRY_SECONDS):
            while not changed.is_set():  # a hint may be lost while the listener is still connecting
                await remote.do(stop((await running()).id))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.2)
        assert here.is_set()
        await remote.do(stop(job.id))
        (state,) = await beside.store.lease_states(remote.tenant, [job.id])
        assert state is not None
        assert (state.fence, state.cancel_requested) == (job.fence, stop is cancel)
        assert (state.worker is None) is (stop is revoke)
    assert await beside.store.lease_states(remote.tenant, [NEVER]) == [None]


async def test_a_store_says_how_durable_it_is(remote: Desk, engine: str) -> None:
    facts = await remote.store.facts()
    if engine == "sqlite":
        assert facts["engine"].startswith("SQLite 3.")
        assert (facts["journal_mode"], facts["synchronous"], facts["integrity"]) == ("wal", "full", "ok")
    else:
        assert facts["engine"].startswith("PostgreSQL ")
        assert (facts["synchronous_commit"], facts["fsync"], facts["full_page_writes"]) == ("on", "on", "on")
        assert facts["role"] == APP_LOGIN
    assert facts["schema"] == migrations(f"interlock.storage.{'postgres' if engine == 'shards' else engine}")[-1].name


async def test_time_is_the_clock_of_the_database(remote: Desk, beside: Desk) -> None:
    """P39: what a process thinks the time is decides nothing; here both are given the same clock."""
    assert await remote.store.now() == await beside.store.now() == remote.clock.now
    remote.clock.advance(0.000001)
    assert await remote.store.now() == remote.clock.now


async def test_a_type_paused_by_one_is_paused_for_all(remote: Desk, beside: Desk) -> None:
    id = await remote.add()
    await beside.store.pause(remote.tenant, "work", actor=OPERATOR, reason="incident")
    assert await remote.claim() == []
    await beside.store.pause(remote.tenant, "work", actor=None, reason=None)
    assert await remote.claimed() == [id]


async def test_a_job_ended_by_one_is_ended_for_all(remote: Desk, beside: Desk) -> None:
    id = await remote.add()
    await beside.do(cancel(id))
    assert await remote.claim() == []
    assert (await remote.job(id)) == (await beside.job(id))
