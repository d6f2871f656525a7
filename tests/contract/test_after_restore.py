"""After a restore every lease from before is void, and no fence of old ever comes again (G29)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from interlock.domain.approval import OpenGate
from interlock.domain.artifact import Holder, Opening
from interlock.domain.decide import Order
from interlock.domain.job import Job, Refused
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.principal import Principal, local
from interlock.engine.restore import CALENDAR_START, CALENDAR_STEP, REASON, Restore, Restored
from interlock.errors import Forbidden, LeaseLost
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import Desk, beat, cancel, cancel_ack, complete, fail, release, revoke, save
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


def finishes(job: Job) -> list[Order]:
    gate = OpenGate(job.id, job.fence, str(job.worker), "0193a1b2-c3d4-7e5f-8a9b-0123456789ab", "Go on?")
    return [complete(job), fail(job), fail(job, retryable=False), release(job), cancel_ack(job), gate]


async def test_a_worker_from_before_the_restore_is_refused_whatever_it_says(desk: Desk, owned: Store) -> None:
    job = await desk.running()
    await restored(owned)
    before = await desk.trace(job.id)
    for order in finishes(job):
        assert isinstance(await desk.refused(order), LeaseLost), order
    assert isinstance(await desk.heartbeat_refused(beat(job)), LeaseLost)
    assert isinstance(await desk.checkpoint_refused(save(job, 1)), LeaseLost)
    (kept,) = await desk.store.save_steps(desk.tenant, [step(job)])
    (told,) = await desk.store.add_events(desk.tenant, [report(job, event())])
    opening = Opening(Holder(job.id, job.fence, str(job.worker)), "report.md", "0" * 32, 1)
    (opened,) = await desk.store.open_uploads(desk.tenant, [opening], quota=None)
    for answer in (kept, told, opened):
        assert isinstance(answer, Refused)
        assert isinstance(answer.error, LeaseLost)
    assert await desk.trace(job.id) == before


async def test_a_job_that_ran_is_tried_again_under_a_fence_above_all_before(desk: Desk, owned: Store) -> None:
    job = await desk.running()
    answer = await restored(owned)
    now, rows = await desk.trace(job.id)
    assert (now.status, now.attempt, now.worker) == (Status.RETRY, 2, None)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.REVOKE, "system:restored", REASON)
    again = await desk.again(job, worker="w1")
    assert again.fence > answer.epoch << 32 > job.fence
    assert isinstance(await desk.refused(complete(job)), LeaseLost)
    await desk.do(complete(again))
    await desk.verify()


async def test_a_grant_that_the_backup_never_saw_does_not_come_again(desk: Desk, owned: Store, door: Door) -> None:
    """What a restore does: the job waits as it did before the worker got it, and the next grant goes to the same worker."""
    job = await desk.running()
    lost = job._replace(fence=job.fence + 1)  # granted after the backup was made, to the same worker
    await desk.do(release(job))
    await restored(owned)
    again = await desk.again(job, worker="w1")
    assert again.fence != lost.fence
    for order in finishes(lost):
        assert isinstance(await desk.refused(order), LeaseLost), order
    assert (await desk.job(job.id)).status is Status.RUNNING


async def test_a_claim_remembered_from_before_grants_nothing_of_before(desk: Desk, owned: Store) -> None:
    await desk.add()
    (job,) = await desk.claim(claim_id="c1")
    await restored(owned)
    (again,) = await desk.claim(claim_id="c1")
    assert again.id == job.id
    assert again.fence >= job.fence + (1 << 32)
    assert await desk.claim(claim_id="c1") == [again]


async def test_every_tenant_is_covered_and_jobs_that_nobody_holds_are_not_touched(
    desk: Desk, neighbour: Desk, owned: Store
) -> None:
    mine, theirs = await desk.running(), await neighbour.running()
    waiting = await desk.add(type="other")
    ended = await desk.running(type="ended")
    await desk.do(complete(ended))
    untouched = [await desk.trace(id) for id in (waiting, ended.id)]
    assert (await restored(owned)).revoked >= 2
    assert (await desk.job(mine.id)).status is Status.RETRY
    assert (await neighbour.job(theirs.id)).status is Status.RETRY
    assert [await desk.trace(id) for id in (waiting, ended.id)] == untouched


async def test_more_jobs_than_one_page_holds_are_all_taken_back(
    desk: Desk, owned: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.restore.AT_ONCE", 2)
    held = [await desk.running() for _ in range(5)]
    assert (await restored(owned)).revoked >= 5
    assert {(await desk.job(job.id)).status for job in held} == {Status.RETRY}


async def test_a_cancel_that_was_pending_ends_the_job_and_a_last_attempt_is_a_dead_letter(
    desk: Desk, owned: Store
) -> None:
    unwanted, last = await desk.running(), await desk.running(max_attempts=1)
    await desk.do(cancel(unwanted.id))
    await restored(owned)
    assert (await desk.job(unwanted.id)).status is Status.CANCELLED
    assert (await desk.job(last.id)).status is Status.DEAD_LETTER


async def test_doing_it_twice_raises_the_epoch_again_and_leaves_new_leases_below_it_no_right(
    desk: Desk, owned: Store
) -> None:
    job = await desk.running()
    first = await restored(owned)
    second = await restored(owned)
    assert second.epoch > first.epoch
    assert second.revoked == 0
    again = await desk.again(job)
    assert again.fence == (second.epoch << 32) + 1
    assert (await restored(owned)).revoked == 1
    assert isinstance(await desk.refused(complete(again)), LeaseLost)


async def test_a_lease_granted_since_is_left_alone(desk: Desk) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    await desk.do(revoke(job.id, below=job.fence))
    assert await desk.trace(job.id) == before
    assert (await desk.do(revoke(job.id, below=job.fence + 1))).status is Status.RETRY


async def test_the_same_backup_restored_on_another_day_gets_another_epoch(
    desk: Desk, owned: Store, door: Door, clock: ManualClock
) -> None:
    async def from_the_backup() -> int:
        await door.run("UPDATE epoch SET value = 0")
        return (await restored(owned)).epoch

    first = await from_the_backup()
    clock.advance(86_400)
    second = await from_the_backup()
    assert first == (clock.now - 86_400_000_000 - CALENDAR_START) // CALENDAR_STEP + 1
    assert second == first + 144
    assert (second << 32) + 1000 < 1 << 53


async def test_only_an_admin_may_say_so(desk: Desk) -> None:
    for roles in (frozenset[str](), frozenset({"operate", "read", "produce", "work", "approve"})):
        with pytest.raises(Forbidden):
            await Restore(desk.store).restored(Principal(desk.tenant, "user:x", roles))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_the_app_role_may_not_raise_the_epoch(desk: Desk, door: Door) -> None:
    job = await desk.running()
    before = await door.run("SELECT value FROM epoch")
    with pytest.raises(Forbidden, match="owner's database URL"):
        await restored(desk.store)
    assert await door.run("SELECT value FROM epoch") == before
    await desk.do(complete(job))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_the_epoch_waits_for_claims_that_have_read_the_old_one(
    desk: Desk, owned: Store, door: Door
) -> None:
    await door.run("BEGIN")
    await door.run("SELECT value FROM epoch")  # as a claim does that has not ended yet
    raising = asyncio.create_task(owned.raise_epoch(0))
    done, _ = await asyncio.wait([raising], timeout=0.2)
    assert not done
    await door.run("COMMIT")
    assert await raising > 0
