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
from tests.contract.builders import TenantQueue, cancel, cancel_ack, complete, fail, heartbeat, release, revoke, save
from tests.contract.connections import SqlConnection
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


async def test_every_operation_of_a_worker_from_before_the_restore_is_rejected(
    queue: TenantQueue, owned: Store
) -> None:
    job = await queue.running()
    await restored(owned)
    before = await queue.trace(job.id)
    for order in finishes(job):
        assert isinstance(await queue.refused(order), LeaseLost), order
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job)), LeaseLost)
    assert isinstance(await queue.checkpoint_rejected(save(job, 1)), LeaseLost)
    (kept,) = await queue.store.save_steps(queue.tenant, [step(job)])
    (reported,) = await queue.store.add_events(queue.tenant, [report(job, event())])
    opening = Opening(Holder(job.id, job.fence, str(job.worker)), "report.md", "0" * 32, 1)
    (opened,) = await queue.store.artifacts.open_uploads(queue.tenant, [opening], quota=None)
    for answer in (kept, reported, opened):
        assert isinstance(answer, Rejected)
        assert isinstance(answer.error, LeaseLost)
    assert await queue.trace(job.id) == before


async def test_a_running_job_is_retried_under_a_fence_above_all_previous_ones(queue: TenantQueue, owned: Store) -> None:
    job = await queue.running()
    answer = await restored(owned)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.attempt, now.worker) == (Status.RETRY, 2, None)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.REVOKE, "system:restored", REASON)
    again = await queue.again(job, worker="w1")
    assert again.fence > answer.epoch << 32 > job.fence
    assert isinstance(await queue.refused(complete(job)), LeaseLost)
    await queue.do(complete(again))
    await queue.verify()


async def test_a_lease_missing_from_the_backup_is_never_reissued(
    queue: TenantQueue, owned: Store, sql: SqlConnection
) -> None:
    """What a restore does: the job waits as it did before the worker got it, and the next grant goes to the same worker."""
    job = await queue.running()
    lost = job._replace(fence=job.fence + 1)  # granted after the backup was made, to the same worker
    await queue.do(release(job))
    await restored(owned)
    again = await queue.again(job, worker="w1")
    assert again.fence != lost.fence
    for order in finishes(lost):
        assert isinstance(await queue.refused(order), LeaseLost), order
    assert (await queue.job(job.id)).status is Status.RUNNING


async def test_a_claim_id_from_before_the_restore_returns_no_old_leases(queue: TenantQueue, owned: Store) -> None:
    await queue.add()
    (job,) = await queue.claim(claim_id="c1")
    await restored(owned)
    (again,) = await queue.claim(claim_id="c1")
    assert again.id == job.id
    assert again.fence >= job.fence + (1 << 32)
    assert await queue.claim(claim_id="c1") == [again]


async def test_every_tenant_is_covered_and_jobs_without_a_lease_are_untouched(
    queue: TenantQueue, neighbour: TenantQueue, owned: Store
) -> None:
    mine, theirs = await queue.running(), await neighbour.running()
    waiting = await queue.add(type="other")
    ended = await queue.running(type="ended")
    await queue.do(complete(ended))
    untouched = [await queue.trace(id) for id in (waiting, ended.id)]
    assert (await restored(owned)).revoked >= 2
    assert (await queue.job(mine.id)).status is Status.RETRY
    assert (await neighbour.job(theirs.id)).status is Status.RETRY
    assert [await queue.trace(id) for id in (waiting, ended.id)] == untouched


async def test_more_jobs_than_one_page_are_all_expired(
    queue: TenantQueue, owned: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.restore.BATCH_SIZE", 2)
    held = [await queue.running() for _ in range(5)]
    assert (await restored(owned)).revoked >= 5
    assert {(await queue.job(job.id)).status for job in held} == {Status.RETRY}


async def test_a_pending_cancel_ends_the_job_and_a_last_attempt_is_a_dead_letter(
    queue: TenantQueue, owned: Store
) -> None:
    unwanted, last = await queue.running(), await queue.running(max_attempts=1)
    await queue.do(cancel(unwanted.id))
    await restored(owned)
    assert (await queue.job(unwanted.id)).status is Status.CANCELLED
    assert (await queue.job(last.id)).status is Status.DEAD_LETTER


async def test_a_second_restore_raises_the_epoch_again_and_voids_newer_leases(queue: TenantQueue, owned: Store) -> None:
    job = await queue.running()
    first = await restored(owned)
    second = await restored(owned)
    assert second.epoch > first.epoch
    assert second.revoked == 0
    again = await queue.again(job)
    assert again.fence == (second.epoch << 32) + 1
    assert (await restored(owned)).revoked == 1
    assert isinstance(await queue.refused(complete(again)), LeaseLost)


async def test_a_lease_issued_since_is_untouched(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    await queue.do(revoke(job.id, below=job.fence))
    assert await queue.trace(job.id) == before
    assert (await queue.do(revoke(job.id, below=job.fence + 1))).status is Status.RETRY


async def test_restoring_the_same_backup_on_another_day_gives_another_epoch(
    queue: TenantQueue, owned: Store, sql: SqlConnection, clock: ManualClock
) -> None:
    async def from_the_backup() -> int:
        await sql.run("UPDATE epoch SET value = 0")
        return (await restored(owned)).epoch

    first = await from_the_backup()
    clock.advance(86_400)
    second = await from_the_backup()
    assert first == (clock.now - 86_400_000_000 - CALENDAR_START) // CALENDAR_STEP + 1
    assert second == first + 144
    assert (second << 32) + 1000 < 1 << 53


async def test_only_an_admin_may_declare_a_restore(queue: TenantQueue) -> None:
    for roles in (frozenset[str](), frozenset({"operate", "read", "produce", "work", "approve"})):
        with pytest.raises(Forbidden):
            await Restore(queue.store).restored(Principal(queue.tenant, "user:x", roles))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_the_app_role_may_not_raise_the_epoch(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    before = await sql.run("SELECT value FROM epoch")
    with pytest.raises(Forbidden, match="owner's database URL"):
        await restored(queue.store)
    assert await sql.run("SELECT value FROM epoch") == before
    await queue.do(complete(job))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_raising_the_epoch_waits_for_claims_that_read_the_old_one(
    queue: TenantQueue, owned: Store, sql: SqlConnection
) -> None:
    await sql.run("BEGIN")
    await sql.run("SELECT value FROM epoch")  # as a claim does that has not ended yet
    raising = asyncio.create_task(owned.raise_epoch(0))
    done, _ = await asyncio.wait([raising], timeout=0.2)
    assert not done
    await sql.run("COMMIT")
    assert await raising > 0
