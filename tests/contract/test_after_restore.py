"""After a restore every lease from before is void, and no fence of old ever comes again (G29)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from interlock.domain.approval import RequestApproval
from interlock.domain.artifact import Holder, Opening
from interlock.domain.decide import Command
from interlock.domain.job import Job, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.principal import Principal, local
from interlock.engine.restore import CALENDAR_START, CALENDAR_STEP, REASON, Restore, Restored
from interlock.errors import Forbidden, LeaseLost
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import Desk, cancel, cancel_ack, complete, fail, heartbeat, release, revoke, save
from tests.contract.connections import Door
from tests.contract.progress import event, report, step
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import ManualClock


@pytest_asyncio.fixture(loop_scope="module")
async def owned(engine: str, place: str, store: Store, clock: ManualClock, postgres: Postgres) -> AsyncIterator[Store]:
    """The store as the owner of the database opens it."""
    if engine == "sqlite":
        yield store
        return
    opened = await PostgresStore.open(postgres.dsn(place, user=OWNER), size=2, clock=clock)
    try:
        yield opened
    finally:
        await opened.close()


async def restored(store: Store) -> Restored:
    return await Restore(store).restored(local())


def finishes(job: Job) -> list[Command]:
    approval = RequestApproval(job.id, job.fence, str(job.worker), "0193a1b2-c3d4-7e5f-8a9b-0123456789ab", "Go on?")
    return [complete(job), fail(job), fail(job, retryable=False), release(job), cancel_ack(job), approval]


async def test_a_worker_from_before_the_restore_is_refused_whatever_it_says(remote: Desk, owned: Store) -> None:
    job = await remote.running()
    await restored(owned)
    before = await remote.trace(job.id)
    for order in finishes(job):
        assert isinstance(await remote.refused(order), LeaseLost), order
    assert isinstance(await remote.heartbeat_refused(heartbeat(job)), LeaseLost)
    assert isinstance(await remote.checkpoint_refused(save(job, 1)), LeaseLost)
    (kept,) = await remote.store.save_steps(remote.tenant, [step(job)])
    (reported,) = await remote.store.add_events(remote.tenant, [report(job, event())])
    opening = Opening(Holder(job.id, job.fence, str(job.worker)), "report.md", "0" * 32, 1)
    (opened,) = await remote.store.open_uploads(remote.tenant, [opening], quota=None)
    for answer in (kept, reported, opened):
        assert isinstance(answer, Rejected)
        assert isinstance(answer.error, LeaseLost)
    assert await remote.trace(job.id) == before


async def test_a_job_that_ran_is_tried_again_under_a_fence_above_all_before(remote: Desk, owned: Store) -> None:
    job = await remote.running()
    answer = await restored(owned)
    now, rows = await remote.trace(job.id)
    assert (now.status, now.attempt, now.worker) == (Status.RETRY, 2, None)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.REVOKE, "system:restored", REASON)
    again = await remote.again(job, worker="w1")
    assert again.fence > answer.epoch << 32 > job.fence
    assert isinstance(await remote.refused(complete(job)), LeaseLost)
    await remote.do(complete(again))
    await remote.verify()


async def test_a_grant_that_the_backup_never_saw_does_not_come_again(remote: Desk, owned: Store, adapter: Door) -> None:
    """What a restore does: the job waits as it did before the worker got it, and the next grant goes to the same worker."""
    job = await remote.running()
    lost = job._replace(fence=job.fence + 1)  # granted after the backup was made, to the same worker
    await remote.do(release(job))
    await restored(owned)
    again = await remote.again(job, worker="w1")
    assert again.fence != lost.fence
    for order in finishes(lost):
        assert isinstance(await remote.refused(order), LeaseLost), order
    assert (await remote.job(job.id)).status is Status.RUNNING


async def test_a_claim_remembered_from_before_grants_nothing_of_before(remote: Desk, owned: Store) -> None:
    await remote.add()
    (job,) = await remote.claim(claim_id="c1")
    await restored(owned)
    (again,) = await remote.claim(claim_id="c1")
    assert again.id == job.id
    assert again.fence >= job.fence + (1 << 32)
    assert await remote.claim(claim_id="c1") == [again]


async def test_every_tenant_is_covered_and_jobs_that_nobody_holds_are_not_touched(
    remote: Desk, neighbour: Desk, owned: Store
) -> None:
    mine, theirs = await remote.running(), await neighbour.running()
    waiting = await remote.add(type="other")
    ended = await remote.running(type="ended")
    await remote.do(complete(ended))
    untouched = [await remote.trace(id) for id in (waiting, ended.id)]
    assert (await restored(owned)).revoked >= 2
    assert (await remote.job(mine.id)).status is Status.RETRY
    assert (await neighbour.job(theirs.id)).status is Status.RETRY
    assert [await remote.trace(id) for id in (waiting, ended.id)] == untouched


async def test_more_jobs_than_one_page_holds_are_all_taken_back(
    remote: Desk, owned: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.restore.BATCH_SIZE", 2)
    held = [await remote.running() for _ in range(5)]
    assert (await restored(owned)).revoked >= 5
    assert {(await remote.job(job.id)).status for job in held} == {Status.RETRY}


async def test_a_cancel_that_was_pending_ends_the_job_and_a_last_attempt_is_a_dead_letter(
    remote: Desk, owned: Store
) -> None:
    unwanted, last = await remote.running(), await remote.running(max_attempts=1)
    await remote.do(cancel(unwanted.id))
    await restored(owned)
    assert (await remote.job(unwanted.id)).status is Status.CANCELLED
    assert (await remote.job(last.id)).status is Status.DEAD_LETTER


async def test_doing_it_twice_raises_the_epoch_again_and_leaves_new_leases_below_it_no_right(
    remote: Desk, owned: Store
) -> None:
    job = await remote.running()
    first = await restored(owned)
    second = await restored(owned)
    assert second.epoch > first.epoch
    assert second.revoked == 0
    again = await remote.again(job)
    assert again.fence == (second.epoch << 32) + 1
    assert (await restored(owned)).revoked == 1
    assert isinstance(await remote.refused(complete(again)), LeaseLost)


async def test_a_lease_granted_since_is_left_alone(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    await remote.do(revoke(job.id, below=job.fence))
    assert await remote.trace(job.id) == before
    assert (await remote.do(revoke(job.id, below=job.fence + 1))).status is Status.RETRY


async def test_the_same_backup_restored_on_another_day_gets_another_epoch(
    remote: Desk, owned: Store, adapter: Door, clock: ManualClock
) -> None:
    async def from_the_backup() -> int:
        await adapter.run("UPDATE epoch SET value = 0")
        return (await restored(owned)).epoch

    first = await from_the_backup()
    clock.advance(86_400)
    second = await from_the_backup()
    assert first == (clock.now - 86_400_000_000 - CALENDAR_START) // CALENDAR_STEP + 1
    assert second == first + 144
    assert (second << 32) + 1000 < 1 << 53


async def test_only_an_admin_may_say_so(remote: Desk) -> None:
    for roles in (frozenset[str](), frozenset({"operate", "read", "produce", "work", "approve"})):
        with pytest.raises(Forbidden):
            await Restore(remote.store).restored(Principal(remote.tenant, "user:x", roles))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_the_app_role_may_not_raise_the_epoch(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    before = await adapter.run("SELECT value FROM epoch")
    with pytest.raises(Forbidden, match="owner's database URL"):
        await restored(remote.store)
    assert await adapter.run("SELECT value FROM epoch") == before
    await remote.do(complete(job))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_the_epoch_waits_for_claims_that_have_read_the_old_one(
    remote: Desk, owned: Store, adapter: Door
) -> None:
    await adapter.run("BEGIN")
    await adapter.run("SELECT value FROM epoch")  # as a claim does that has not ended yet
    raising = asyncio.create_task(owned.raise_epoch(0))
    done, _ = await asyncio.wait([raising], timeout=0.2)
    assert not done
    await adapter.run("COMMIT")
    assert await raising > 0
