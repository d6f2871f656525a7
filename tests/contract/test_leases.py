"""Leases: valid until they expire, extended by heartbeats; the clock alone never admits a stale worker."""

from __future__ import annotations

import json

import pytest

from interlock.domain.job import HeartbeatReply, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, LeaseLost, NotFound, NotRunning
from tests.contract.builders import (
    NEVER,
    OPERATOR,
    TenantQueue,
    cancel,
    complete,
    expire,
    fail,
    heartbeat,
    new_job,
    release,
    revoke,
    save,
)  # fmt: skip
from tests.contract.connections import SqlConnection


async def test_a_lease_lasts_for_the_requested_duration(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=12.5)
    assert job.lease_expires_at == queue.after(12.5)


async def test_the_fence_rises_with_every_lease_and_is_never_reused(queue: TenantQueue) -> None:
    """G04."""
    job = await queue.running(max_attempts=100)
    fences = [job.fence]
    for end in (release, fail, release, fail):
        await queue.do(end(job))
        queue.clock.advance(1000)
        job = await queue.again(job)
        fences.append(job.fence)
    assert fences == [1, 2, 3, 4, 5]


async def test_a_raised_epoch_lifts_every_later_fence_above_all_previous_ones(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    """G29: after a restore no fence from before can be current."""
    job = await queue.running(max_attempts=5)
    await queue.do(release(job))
    await sql.run("UPDATE epoch SET value = value + 3")
    try:
        lifted = await queue.again(job)
        assert lifted.fence == (3 << 32) + 1
        await queue.do(release(lifted))
        assert (await queue.again(job)).fence == (3 << 32) + 2
    finally:
        await sql.run("UPDATE epoch SET value = value - 3")


async def test_a_heartbeat_extends_the_lease_by_its_duration(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=30.0)
    queue.clock.advance(20)
    (reply,) = await queue.heartbeat(heartbeat(job))
    assert reply == HeartbeatReply(job.id, queue.after(30), False, None, False)
    now = await queue.job(job.id)
    assert (now.lease_expires_at, now.heartbeat_at, now.updated_at) == (
        queue.after(30),
        queue.clock.now,
        queue.clock.now,
    )


async def test_a_heartbeat_may_request_another_duration(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=30.0)
    (reply,) = await queue.heartbeat(heartbeat(job, lease_seconds=5.0))
    assert reply.lease_expires_at == queue.after(5)
    (reply,) = await queue.heartbeat(heartbeat(job))
    assert reply.lease_expires_at == queue.after(30)


async def test_a_heartbeat_adds_no_history(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.history(job.id)
    queue.clock.advance(1)
    await queue.heartbeat(heartbeat(job))
    assert await queue.history(job.id) == before
    assert (await queue.job(job.id)).version == job.version
    await queue.verify()


async def test_a_heartbeat_never_extends_beyond_the_timeout_of_the_run(queue: TenantQueue) -> None:
    job = await queue.running(timeout_seconds=100.0, lease_seconds=60.0)
    ends = queue.after(100)
    queue.clock.advance(50)
    (reply,) = await queue.heartbeat(heartbeat(job))
    assert reply.lease_expires_at == ends
    (reply,) = await queue.heartbeat(heartbeat(job, lease_seconds=3600.0))
    assert reply.lease_expires_at == ends


async def test_a_first_lease_never_lasts_beyond_the_timeout_of_the_run(queue: TenantQueue) -> None:
    job = await queue.running(timeout_seconds=7.5, lease_seconds=60.0)
    assert job.lease_expires_at == (await queue.job(job.id)).lease_expires_at == queue.after(7.5)


async def test_the_timeout_starts_again_with_every_run(queue: TenantQueue) -> None:
    job = await queue.running(timeout_seconds=50.0)
    queue.clock.advance(40)
    await queue.do(release(job))
    second = await queue.again(job, lease_seconds=3600.0)
    assert second.lease_expires_at == queue.after(50)


async def test_a_late_heartbeat_whose_fence_is_current_is_accepted(queue: TenantQueue) -> None:
    """G06: time alone ends nothing."""
    job = await queue.running(lease_seconds=10.0)
    queue.clock.advance(3600)
    (reply,) = await queue.heartbeat(heartbeat(job))
    assert reply.lease_expires_at == queue.after(10)
    await queue.sweep()
    assert (await queue.job(job.id)).status is Status.RUNNING


async def test_a_heartbeat_returns_a_cancel_request(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id, reason="too dear"))
    for _ in range(2):
        (reply,) = await queue.heartbeat(heartbeat(job))
        assert (reply.cancel_requested, reply.cancel_reason) == (True, "too dear")


async def test_a_heartbeat_returns_that_the_type_is_paused(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason=None)
    assert [reply.paused for reply in await queue.heartbeat(heartbeat(job))] == [True]
    await queue.store.registry.pause(queue.tenant, "work", actor=None, reason=None)
    assert [reply.paused for reply in await queue.heartbeat(heartbeat(job))] == [False]


async def test_each_heartbeat_of_a_batch_gets_its_own_result(queue: TenantQueue, rival: TenantQueue) -> None:
    held = await queue.running(type="a")
    done = await queue.running(type="b")
    lost = await queue.running(type="c")
    foreign = await rival.running(type="d")
    await queue.do(complete(done))
    await queue.do(revoke(lost.id))
    heartbeats = [
        heartbeat(lost),
        heartbeat(held),
        heartbeat(foreign),
        heartbeat(done),
        heartbeat(held)._replace(id=NEVER),
        heartbeat(held),
    ]
    answers = await queue.store.heartbeat(queue.tenant, heartbeats)
    kinds = [type(a.error) if isinstance(a, Rejected) else type(a) for a in answers]
    assert kinds == [LeaseLost, HeartbeatReply, NotFound, NotRunning, NotFound, HeartbeatReply]
    assert (await rival.job(foreign.id)).heartbeat_at is None


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"worker": "W1"}])
async def test_a_heartbeat_needs_both_the_fence_and_the_worker(queue: TenantQueue, wrong: dict[str, object]) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job, **wrong)), LeaseLost)
    assert await queue.trace(job.id) == before


async def test_an_expired_lease_uses_one_attempt_and_is_retried_immediately(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=10.0)
    queue.clock.advance(10)
    receipt = await queue.do(expire(job.id))
    assert (receipt.status, receipt.attempt, receipt.run_at) == (Status.RETRY, 2, queue.clock.now)
    now, rows = await queue.trace(job.id)
    assert json.loads(now.error or "")["kind"] == "lease_expired"
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.EXPIRE, "system:sweep", "lease_expired")
    assert (rows[-1].attempt, rows[-1].fence) == (1, job.fence)
    assert (now.worker, now.lease_expires_at, now.heartbeat_at) == (None, None, None)


async def test_after_an_expiry_the_job_waits_for_its_own_expiry_delay(queue: TenantQueue) -> None:
    job = await queue.running(expiry_delay_seconds=7.5, lease_seconds=10.0)
    queue.clock.advance(10)
    assert (await queue.do(expire(job.id))).run_at == queue.after(7.5)


async def test_a_run_that_reached_its_timeout_ends_as_an_expiry_of_kind_timeout(queue: TenantQueue) -> None:
    job = await queue.running(timeout_seconds=30.0, lease_seconds=20.0)
    queue.clock.advance(15)
    await queue.heartbeat(heartbeat(job))
    queue.clock.advance(15)
    await queue.do(expire(job.id))
    now, rows = await queue.trace(job.id)
    assert now.status is Status.RETRY
    assert json.loads(now.error or "")["kind"] == rows[-1].reason == "timeout"


@pytest.mark.parametrize("seen_after_seconds", [20, 3600])
async def test_a_lease_that_expired_before_the_timeout_is_not_a_timeout(
    queue: TenantQueue, seen_after_seconds: int
) -> None:
    job = await queue.running(timeout_seconds=30.0, lease_seconds=20.0)
    queue.clock.advance(seen_after_seconds)
    await queue.do(expire(job.id))
    assert json.loads((await queue.job(job.id)).error or "")["kind"] == "lease_expired"


async def test_a_current_lease_does_not_expire(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=10.0)
    queue.clock.advance(9.999999)
    before = await queue.trace(job.id)
    await queue.do(expire(job.id))
    assert await queue.trace(job.id) == before


async def test_a_lease_extended_in_time_does_not_expire(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=10.0)
    queue.clock.advance(9)
    await queue.heartbeat(heartbeat(job))
    queue.clock.advance(9)
    assert job.id not in [due.job_id for due in await queue.store.due_leases(10_000)]
    await queue.do(expire(job.id))
    assert (await queue.job(job.id)).status is Status.RUNNING


async def test_expiring_twice_uses_one_attempt(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=10.0)
    queue.clock.advance(10)
    receipt = await queue.do(expire(job.id))
    assert await queue.do(expire(job.id)) == receipt
    assert (await queue.job(job.id)).attempt == 2


async def test_due_leases_are_found_for_all_tenants_and_no_others(queue: TenantQueue, rival: TenantQueue) -> None:
    mine = await queue.running(lease_seconds=10.0)
    theirs = await rival.running(lease_seconds=10.0)
    await queue.running(type="longer", lease_seconds=11.0)
    await queue.add(type="waiting")
    queue.clock.advance(10)
    found = {due for due in await queue.store.due_leases(10_000) if due.tenant in (queue.tenant, rival.tenant)}
    assert found == {(queue.tenant, mine.id), (rival.tenant, theirs.id)}
    assert len(await queue.store.due_leases(1)) == 1


async def test_a_claim_expires_leases_first(queue: TenantQueue) -> None:
    dead = await queue.running(priority=1, lease_seconds=10.0)
    waiting = await queue.add()
    queue.clock.advance(10)
    assert await queue.claimed(worker="w2", limit=2) == [dead.id, waiting]
    assert [row.verb for row in await queue.history(dead.id)] == ["enqueue", "claim", "expire", "claim"]


async def test_a_claim_for_other_types_still_expires_leases(queue: TenantQueue) -> None:
    dead = await queue.running(type="a", max_attempts=1, lease_seconds=10.0)
    queue.clock.advance(10)
    assert await queue.claimed(types=frozenset({"b"})) == []
    assert (await queue.job(dead.id)).status is Status.DEAD_LETTER


async def test_a_thousand_leases_that_expire_together_are_all_retried(queue: TenantQueue) -> None:
    await queue.add_all([new_job() for _ in range(1000)])
    assert len(await queue.claim(limit=1000, lease_seconds=10.0)) == 1000
    queue.clock.advance(10)
    await queue.sweep()
    assert len(await queue.claim(worker="w2", limit=1000)) == 1000
    await queue.verify()


async def test_a_stale_worker_changes_nothing(queue: TenantQueue) -> None:
    """G05: no call of a stale worker changes even updated_at."""
    stale = await queue.running(lease_seconds=10.0)
    queue.clock.advance(10)
    current = await queue.again(stale, worker="w2")
    before = await queue.trace(stale.id)
    queue.clock.advance(1)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(stale)), LeaseLost)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(stale, checkpoint=save(stale, 9))), LeaseLost)
    assert isinstance(await queue.checkpoint_rejected(save(stale, 9)), LeaseLost)
    for order in (complete(stale), fail(stale), fail(stale, retryable=False), release(stale)):
        assert isinstance(await queue.refused(order), LeaseLost)
    assert await queue.trace(stale.id) == before
    await queue.do(complete(current))


async def test_the_same_worker_with_an_old_fence_is_stale_too(queue: TenantQueue) -> None:
    first = await queue.running()
    await queue.do(release(first))
    second = await queue.again(first, worker="w1")
    before = await queue.trace(first.id)
    assert isinstance(await queue.refused(complete(first)), AlreadyFinished)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(first)), NotRunning)
    assert await queue.trace(first.id) == before
    await queue.do(complete(second))


async def test_a_worker_that_always_crashes_uses_exactly_max_attempts(queue: TenantQueue) -> None:
    """G09."""
    id = await queue.add(max_attempts=4)
    for attempt in range(1, 5):
        (job,) = await queue.claim(worker=f"w{attempt}", lease_seconds=5.0)
        assert (job.id, job.attempt) == (id, attempt)
        queue.clock.advance(5)
    assert await queue.claim() == []
    job, rows = await queue.trace(id)
    assert (job.status, job.attempt) == (Status.DEAD_LETTER, 4)
    assert [row.verb for row in rows].count(Verb.CLAIM) == 4
    queue.clock.advance(86_400)
    assert await queue.claim() == []


async def test_a_lease_that_expires_with_a_cancel_pending_ends_as_cancelled(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=10.0)
    await queue.do(cancel(job.id, reason="stop"))
    queue.clock.advance(10)
    assert (await queue.do(expire(job.id))).status is Status.CANCELLED
    assert (await queue.history(job.id))[-1].reason == "stop"
