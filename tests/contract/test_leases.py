"""Leases: a grant holds until its time, a heartbeat moves it on, and the clock alone never lets a stale worker in."""

from __future__ import annotations

import json

import pytest

from interlock.domain.job import HeartbeatReply, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, LeaseLost, NotFound, NotRunning
from tests.contract.builders import (
    NEVER,
    OPERATOR,
    Desk,
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
from tests.contract.connections import Door


async def test_a_lease_holds_for_the_seconds_asked_for(remote: Desk) -> None:
    job = await remote.running(lease_seconds=12.5)
    assert job.lease_expires_at == remote.after(12.5)


async def test_the_fence_rises_at_every_grant_and_is_never_used_again(remote: Desk) -> None:
    """G04."""
    job = await remote.running(max_attempts=100)
    fences = [job.fence]
    for end in (release, fail, release, fail):
        await remote.do(end(job))
        remote.clock.advance(1000)
        job = await remote.again(job)
        fences.append(job.fence)
    assert fences == [1, 2, 3, 4, 5]


async def test_a_raised_epoch_lifts_every_later_fence_above_all_before(remote: Desk, adapter: Door) -> None:
    """G29: after a restore no fence from before can be current."""
    job = await remote.running(max_attempts=5)
    await remote.do(release(job))
    await adapter.run("UPDATE epoch SET value = value + 3")
    try:
        lifted = await remote.again(job)
        assert lifted.fence == (3 << 32) + 1
        await remote.do(release(lifted))
        assert (await remote.again(job)).fence == (3 << 32) + 2
    finally:
        await adapter.run("UPDATE epoch SET value = value - 3")


async def test_a_heartbeat_extends_the_lease_by_its_own_length(remote: Desk) -> None:
    job = await remote.running(lease_seconds=30.0)
    remote.clock.advance(20)
    (reply,) = await remote.heartbeat(heartbeat(job))
    assert reply == HeartbeatReply(job.id, remote.after(30), False, None, False)
    now = await remote.job(job.id)
    assert (now.lease_expires_at, now.heartbeat_at, now.updated_at) == (
        remote.after(30),
        remote.clock.now,
        remote.clock.now,
    )


async def test_a_heartbeat_may_ask_for_another_length(remote: Desk) -> None:
    job = await remote.running(lease_seconds=30.0)
    (reply,) = await remote.heartbeat(heartbeat(job, lease_seconds=5.0))
    assert reply.lease_expires_at == remote.after(5)
    (reply,) = await remote.heartbeat(heartbeat(job))
    assert reply.lease_expires_at == remote.after(30)


async def test_a_heartbeat_writes_no_history(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.history(job.id)
    remote.clock.advance(1)
    await remote.heartbeat(heartbeat(job))
    assert await remote.history(job.id) == before
    assert (await remote.job(job.id)).version == job.version
    await remote.verify()


async def test_a_heartbeat_never_goes_beyond_the_timeout_of_the_run(remote: Desk) -> None:
    job = await remote.running(timeout_seconds=100.0, lease_seconds=60.0)
    ends = remote.after(100)
    remote.clock.advance(50)
    (reply,) = await remote.heartbeat(heartbeat(job))
    assert reply.lease_expires_at == ends
    (reply,) = await remote.heartbeat(heartbeat(job, lease_seconds=3600.0))
    assert reply.lease_expires_at == ends


async def test_a_first_lease_never_goes_beyond_the_timeout_of_the_run(remote: Desk) -> None:
    job = await remote.running(timeout_seconds=7.5, lease_seconds=60.0)
    assert job.lease_expires_at == remote.after(7.5)


async def test_the_timeout_counts_anew_for_every_run(remote: Desk) -> None:
    job = await remote.running(timeout_seconds=50.0)
    remote.clock.advance(40)
    await remote.do(release(job))
    second = await remote.again(job, lease_seconds=3600.0)
    assert second.lease_expires_at == remote.after(50)


async def test_a_late_heartbeat_whose_fence_is_current_is_accepted(remote: Desk) -> None:
    """G06: time alone ends nothing."""
    job = await remote.running(lease_seconds=10.0)
    remote.clock.advance(3600)
    (reply,) = await remote.heartbeat(heartbeat(job))
    assert reply.lease_expires_at == remote.after(10)
    await remote.sweep()
    assert (await remote.job(job.id)).status is Status.RUNNING


async def test_a_heartbeat_tells_of_a_cancel_request(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id, reason="too dear"))
    for _ in range(2):
        (reply,) = await remote.heartbeat(heartbeat(job))
        assert (reply.cancel_requested, reply.cancel_reason) == (True, "too dear")


async def test_a_heartbeat_tells_that_the_type_is_paused(remote: Desk) -> None:
    job = await remote.running()
    await remote.store.pause(remote.tenant, "work", actor=OPERATOR, reason=None)
    assert [reply.paused for reply in await remote.heartbeat(heartbeat(job))] == [True]
    await remote.store.pause(remote.tenant, "work", actor=None, reason=None)
    assert [reply.paused for reply in await remote.heartbeat(heartbeat(job))] == [False]


async def test_many_heartbeats_are_answered_each_on_its_own(remote: Desk, rival: Desk) -> None:
    held = await remote.running(type="a")
    done = await remote.running(type="b")
    lost = await remote.running(type="c")
    foreign = await rival.running(type="d")
    await remote.do(complete(done))
    await remote.do(revoke(lost.id))
    heartbeats = [
        heartbeat(lost),
        heartbeat(held),
        heartbeat(foreign),
        heartbeat(done),
        heartbeat(held)._replace(id=NEVER),
        heartbeat(held),
    ]
    answers = await remote.store.heartbeat(remote.tenant, heartbeats)
    kinds = [type(a.error) if isinstance(a, Rejected) else type(a) for a in answers]
    assert kinds == [LeaseLost, HeartbeatReply, NotFound, NotRunning, NotFound, HeartbeatReply]
    assert (await rival.job(foreign.id)).heartbeat_at is None


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"worker": "W1"}])
async def test_a_heartbeat_needs_both_the_fence_and_the_worker(remote: Desk, wrong: dict[str, object]) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job, **wrong)), LeaseLost)
    assert await remote.trace(job.id) == before


async def test_an_expired_lease_costs_one_attempt_and_is_tried_again_at_once(remote: Desk) -> None:
    job = await remote.running(lease_seconds=10.0)
    remote.clock.advance(10)
    receipt = await remote.do(expire(job.id))
    assert (receipt.status, receipt.attempt, receipt.run_at) == (Status.RETRY, 2, remote.clock.now)
    now, rows = await remote.trace(job.id)
    assert json.loads(now.error or "")["kind"] == "lease_expired"
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.EXPIRE, "system:sweep", "lease_expired")
    assert (rows[-1].attempt, rows[-1].fence) == (1, job.fence)
    assert (now.worker, now.lease_expires_at, now.heartbeat_at) == (None, None, None)


async def test_after_an_expiry_the_job_waits_for_its_own_expiry_delay(remote: Desk) -> None:
    job = await remote.running(expiry_delay_seconds=7.5, lease_seconds=10.0)
    remote.clock.advance(10)
    assert (await remote.do(expire(job.id))).run_at == remote.after(7.5)


async def test_a_run_that_reached_its_timeout_ends_as_an_expiry_of_kind_timeout(remote: Desk) -> None:
    job = await remote.running(timeout_seconds=30.0, lease_seconds=20.0)
    remote.clock.advance(15)
    await remote.heartbeat(heartbeat(job))
    remote.clock.advance(15)
    await remote.do(expire(job.id))
    now, rows = await remote.trace(job.id)
    assert now.status is Status.RETRY
    assert json.loads(now.error or "")["kind"] == rows[-1].reason == "timeout"


@pytest.mark.parametrize("seen_after_seconds", [20, 3600])
async def test_a_lease_that_ran_out_before_the_timeout_is_no_timeout(remote: Desk, seen_after_seconds: int) -> None:
    job = await remote.running(timeout_seconds=30.0, lease_seconds=20.0)
    remote.clock.advance(seen_after_seconds)
    await remote.do(expire(job.id))
    assert json.loads((await remote.job(job.id)).error or "")["kind"] == "lease_expired"


async def test_a_lease_that_still_holds_does_not_expire(remote: Desk) -> None:
    job = await remote.running(lease_seconds=10.0)
    remote.clock.advance(9.999999)
    before = await remote.trace(job.id)
    await remote.do(expire(job.id))
    assert await remote.trace(job.id) == before


async def test_a_lease_that_was_moved_on_in_time_does_not_expire(remote: Desk) -> None:
    job = await remote.running(lease_seconds=10.0)
    remote.clock.advance(9)
    await remote.heartbeat(heartbeat(job))
    remote.clock.advance(9)
    assert job.id not in [due.job_id for due in await remote.store.due_leases(10_000)]
    await remote.do(expire(job.id))
    assert (await remote.job(job.id)).status is Status.RUNNING


async def test_expiring_twice_costs_one_attempt(remote: Desk) -> None:
    job = await remote.running(lease_seconds=10.0)
    remote.clock.advance(10)
    receipt = await remote.do(expire(job.id))
    assert await remote.do(expire(job.id)) == receipt
    assert (await remote.job(job.id)).attempt == 2


async def test_due_leases_are_found_for_all_tenants_and_no_others(remote: Desk, rival: Desk) -> None:
    mine = await remote.running(lease_seconds=10.0)
    theirs = await rival.running(lease_seconds=10.0)
    await remote.running(type="longer", lease_seconds=11.0)
    await remote.add(type="waiting")
    remote.clock.advance(10)
    found = {due for due in await remote.store.due_leases(10_000) if due.tenant in (remote.tenant, rival.tenant)}
    assert found == {(remote.tenant, mine.id), (rival.tenant, theirs.id)}
    assert len(await remote.store.due_leases(1)) == 1


async def test_a_claim_reprocesses_expired_leases_first(remote: Desk) -> None:
    dead = await remote.running(priority=1, lease_seconds=10.0)
    waiting = await remote.add()
    remote.clock.advance(10)
    assert await remote.claimed(worker="w2", limit=2) == [dead.id, waiting]
    assert [row.verb for row in await remote.history(dead.id)] == ["enqueue", "claim", "expire", "claim"]


async def test_a_claim_that_wants_other_work_still_reprocesses_expired_leases(remote: Desk) -> None:
    dead = await remote.running(type="a", max_attempts=1, lease_seconds=10.0)
    remote.clock.advance(10)
    assert await remote.claimed(types=frozenset({"b"})) == []
    assert (await remote.job(dead.id)).status is Status.DEAD_LETTER


async def test_a_thousand_leases_that_end_together_are_all_tried_again(remote: Desk) -> None:
    await remote.add_all([new_job() for _ in range(1000)])
    assert len(await remote.claim(limit=1000, lease_seconds=10.0)) == 1000
    remote.clock.advance(10)
    await remote.sweep()
    assert len(await remote.claim(worker="w2", limit=1000)) == 1000
    await remote.verify()


async def test_a_stale_worker_changes_nothing(remote: Desk) -> None:
    """G05: whatever it sends, not even updated_at moves."""
    stale = await remote.running(lease_seconds=10.0)
    remote.clock.advance(10)
    current = await remote.again(stale, worker="w2")
    before = await remote.trace(stale.id)
    remote.clock.advance(1)
    assert isinstance(await remote.heartbeat_refused(heartbeat(stale)), LeaseLost)
    assert isinstance(await remote.heartbeat_refused(heartbeat(stale, checkpoint=save(stale, 9))), LeaseLost)
    assert isinstance(await remote.checkpoint_refused(save(stale, 9)), LeaseLost)
    for order in (complete(stale), fail(stale), fail(stale, retryable=False), release(stale)):
        assert isinstance(await remote.refused(order), LeaseLost)
    assert await remote.trace(stale.id) == before
    await remote.do(complete(current))


async def test_the_same_worker_with_an_old_fence_is_stale_too(remote: Desk) -> None:
    first = await remote.running()
    await remote.do(release(first))
    second = await remote.again(first, worker="w1")
    before = await remote.trace(first.id)
    assert isinstance(await remote.refused(complete(first)), AlreadyFinished)
    assert isinstance(await remote.heartbeat_refused(heartbeat(first)), NotRunning)
    assert await remote.trace(first.id) == before
    await remote.do(complete(second))


async def test_a_worker_that_always_dies_spends_exactly_max_attempts(remote: Desk) -> None:
    """G09."""
    id = await remote.add(max_attempts=4)
    for attempt in range(1, 5):
        (job,) = await remote.claim(worker=f"w{attempt}", lease_seconds=5.0)
        assert (job.id, job.attempt) == (id, attempt)
        remote.clock.advance(5)
    assert await remote.claim() == []
    job, rows = await remote.trace(id)
    assert (job.status, job.attempt) == (Status.DEAD_LETTER, 4)
    assert [row.verb for row in rows].count(Verb.CLAIM) == 4
    remote.clock.advance(86_400)
    assert await remote.claim() == []


async def test_a_lease_that_ends_with_a_cancel_pending_ends_as_cancelled(remote: Desk) -> None:
    job = await remote.running(lease_seconds=10.0)
    await remote.do(cancel(job.id, reason="stop"))
    remote.clock.advance(10)
    assert (await remote.do(expire(job.id))).status is Status.CANCELLED
    assert (await remote.history(job.id))[-1].reason == "stop"
