"""Leases: a grant holds until its time, a heartbeat moves it on, and the clock alone never lets a stale worker in."""

from __future__ import annotations

import json

import pytest

from interlock.domain.job import Pulse, Refused
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, LeaseLost, NotFound, NotRunning
from tests.contract.builders import (
    NEVER,
    OPERATOR,
    Desk,
    beat,
    cancel,
    complete,
    expire,
    fail,
    new_job,
    release,
    revoke,
    save,
)  # fmt: skip
from tests.contract.connections import Door


async def test_a_lease_holds_for_the_seconds_asked_for(desk: Desk) -> None:
    job = await desk.running(lease_seconds=12.5)
    assert job.lease_expires_at == desk.after(12.5)


async def test_the_fence_rises_at_every_grant_and_is_never_used_again(desk: Desk) -> None:
    """G04."""
    job = await desk.running(max_attempts=100)
    fences = [job.fence]
    for end in (release, fail, release, fail):
        await desk.do(end(job))
        desk.clock.advance(1000)
        job = await desk.again(job)
        fences.append(job.fence)
    assert fences == [1, 2, 3, 4, 5]


async def test_a_raised_epoch_lifts_every_later_fence_above_all_before(desk: Desk, door: Door) -> None:
    """G29: after a restore no fence from before can be current."""
    job = await desk.running(max_attempts=5)
    await desk.do(release(job))
    await door.run("UPDATE epoch SET value = value + 3")
    try:
        lifted = await desk.again(job)
        assert lifted.fence == (3 << 32) + 1
        await desk.do(release(lifted))
        assert (await desk.again(job)).fence == (3 << 32) + 2
    finally:
        await door.run("UPDATE epoch SET value = value - 3")


async def test_a_heartbeat_extends_the_lease_by_its_own_length(desk: Desk) -> None:
    job = await desk.running(lease_seconds=30.0)
    desk.clock.advance(20)
    (pulse,) = await desk.heartbeat(beat(job))
    assert pulse == Pulse(job.id, desk.after(30), False, None, False)
    now = await desk.job(job.id)
    assert (now.lease_expires_at, now.heartbeat_at, now.updated_at) == (desk.after(30), desk.clock.now, desk.clock.now)


async def test_a_heartbeat_may_ask_for_another_length(desk: Desk) -> None:
    job = await desk.running(lease_seconds=30.0)
    (pulse,) = await desk.heartbeat(beat(job, lease_seconds=5.0))
    assert pulse.lease_expires_at == desk.after(5)
    (pulse,) = await desk.heartbeat(beat(job))
    assert pulse.lease_expires_at == desk.after(30)


async def test_a_heartbeat_writes_no_history(desk: Desk) -> None:
    job = await desk.running()
    before = await desk.history(job.id)
    desk.clock.advance(1)
    await desk.heartbeat(beat(job))
    assert await desk.history(job.id) == before
    assert (await desk.job(job.id)).version == job.version
    await desk.verify()


async def test_a_heartbeat_never_goes_beyond_the_timeout_of_the_run(desk: Desk) -> None:
    job = await desk.running(timeout_seconds=100.0, lease_seconds=60.0)
    ends = desk.after(100)
    desk.clock.advance(50)
    (pulse,) = await desk.heartbeat(beat(job))
    assert pulse.lease_expires_at == ends
    (pulse,) = await desk.heartbeat(beat(job, lease_seconds=3600.0))
    assert pulse.lease_expires_at == ends


async def test_a_first_lease_never_goes_beyond_the_timeout_of_the_run(desk: Desk) -> None:
    job = await desk.running(timeout_seconds=7.5, lease_seconds=60.0)
    assert job.lease_expires_at == desk.after(7.5)


async def test_the_timeout_counts_anew_for_every_run(desk: Desk) -> None:
    job = await desk.running(timeout_seconds=50.0)
    desk.clock.advance(40)
    await desk.do(release(job))
    second = await desk.again(job, lease_seconds=3600.0)
    assert second.lease_expires_at == desk.after(50)


async def test_a_late_heartbeat_whose_fence_is_current_is_accepted(desk: Desk) -> None:
    """G06: time alone ends nothing."""
    job = await desk.running(lease_seconds=10.0)
    desk.clock.advance(3600)
    (pulse,) = await desk.heartbeat(beat(job))
    assert pulse.lease_expires_at == desk.after(10)
    await desk.sweep()
    assert (await desk.job(job.id)).status is Status.RUNNING


async def test_a_heartbeat_tells_of_a_cancel_request(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id, reason="too dear"))
    for _ in range(2):
        (pulse,) = await desk.heartbeat(beat(job))
        assert (pulse.cancel_requested, pulse.cancel_reason) == (True, "too dear")


async def test_a_heartbeat_tells_that_the_type_is_paused(desk: Desk) -> None:
    job = await desk.running()
    await desk.store.pause(desk.tenant, "work", actor=OPERATOR, reason=None)
    assert [pulse.paused for pulse in await desk.heartbeat(beat(job))] == [True]
    await desk.store.pause(desk.tenant, "work", actor=None, reason=None)
    assert [pulse.paused for pulse in await desk.heartbeat(beat(job))] == [False]


async def test_many_heartbeats_are_answered_each_on_its_own(desk: Desk, rival: Desk) -> None:
    held = await desk.running(type="a")
    done = await desk.running(type="b")
    lost = await desk.running(type="c")
    foreign = await rival.running(type="d")
    await desk.do(complete(done))
    await desk.do(revoke(lost.id))
    beats = [beat(lost), beat(held), beat(foreign), beat(done), beat(held)._replace(id=NEVER), beat(held)]
    answers = await desk.store.heartbeat(desk.tenant, beats)
    kinds = [type(a.error) if isinstance(a, Refused) else type(a) for a in answers]
    assert kinds == [LeaseLost, Pulse, NotFound, NotRunning, NotFound, Pulse]
    assert (await rival.job(foreign.id)).heartbeat_at is None


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"worker": "W1"}])
async def test_a_heartbeat_needs_both_the_fence_and_the_worker(desk: Desk, wrong: dict[str, object]) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    assert isinstance(await desk.heartbeat_refused(beat(job, **wrong)), LeaseLost)
    assert await desk.trace(job.id) == before


async def test_an_expired_lease_costs_one_attempt_and_is_tried_again_at_once(desk: Desk) -> None:
    job = await desk.running(lease_seconds=10.0)
    desk.clock.advance(10)
    receipt = await desk.do(expire(job.id))
    assert (receipt.status, receipt.attempt, receipt.run_at) == (Status.RETRY, 2, desk.clock.now)
    now, rows = await desk.trace(job.id)
    assert json.loads(now.error or "")["kind"] == "lease_expired"
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.EXPIRE, "system:sweep", "lease_expired")
    assert (rows[-1].attempt, rows[-1].fence) == (1, job.fence)
    assert (now.worker, now.lease_expires_at, now.heartbeat_at) == (None, None, None)


async def test_after_an_expiry_the_job_waits_for_its_own_expiry_delay(desk: Desk) -> None:
    job = await desk.running(expiry_delay_seconds=7.5, lease_seconds=10.0)
    desk.clock.advance(10)
    assert (await desk.do(expire(job.id))).run_at == desk.after(7.5)


async def test_a_run_that_reached_its_timeout_ends_as_an_expiry_of_kind_timeout(desk: Desk) -> None:
    job = await desk.running(timeout_seconds=30.0, lease_seconds=20.0)
    desk.clock.advance(15)
    await desk.heartbeat(beat(job))
    desk.clock.advance(15)
    await desk.do(expire(job.id))
    now, rows = await desk.trace(job.id)
    assert now.status is Status.RETRY
    assert json.loads(now.error or "")["kind"] == rows[-1].reason == "timeout"


@pytest.mark.parametrize("seen_after_seconds", [20, 3600])
async def test_a_lease_that_ran_out_before_the_timeout_is_no_timeout(desk: Desk, seen_after_seconds: int) -> None:
    job = await desk.running(timeout_seconds=30.0, lease_seconds=20.0)
    desk.clock.advance(seen_after_seconds)
    await desk.do(expire(job.id))
    assert json.loads((await desk.job(job.id)).error or "")["kind"] == "lease_expired"


async def test_a_lease_that_still_holds_does_not_expire(desk: Desk) -> None:
    job = await desk.running(lease_seconds=10.0)
    desk.clock.advance(9.999999)
    before = await desk.trace(job.id)
    await desk.do(expire(job.id))
    assert await desk.trace(job.id) == before


async def test_a_lease_that_was_moved_on_in_time_does_not_expire(desk: Desk) -> None:
    job = await desk.running(lease_seconds=10.0)
    desk.clock.advance(9)
    await desk.heartbeat(beat(job))
    desk.clock.advance(9)
    assert job.id not in [due.job_id for due in await desk.store.due_leases(10_000)]
    await desk.do(expire(job.id))
    assert (await desk.job(job.id)).status is Status.RUNNING


async def test_expiring_twice_costs_one_attempt(desk: Desk) -> None:
    job = await desk.running(lease_seconds=10.0)
    desk.clock.advance(10)
    receipt = await desk.do(expire(job.id))
    assert await desk.do(expire(job.id)) == receipt
    assert (await desk.job(job.id)).attempt == 2


async def test_due_leases_are_found_for_all_tenants_and_no_others(desk: Desk, rival: Desk) -> None:
    mine = await desk.running(lease_seconds=10.0)
    theirs = await rival.running(lease_seconds=10.0)
    await desk.running(type="longer", lease_seconds=11.0)
    await desk.add(type="waiting")
    desk.clock.advance(10)
    found = {due for due in await desk.store.due_leases(10_000) if due.tenant in (desk.tenant, rival.tenant)}
    assert found == {(desk.tenant, mine.id), (rival.tenant, theirs.id)}
    assert len(await desk.store.due_leases(1)) == 1


async def test_a_claim_reprocesses_expired_leases_first(desk: Desk) -> None:
    dead = await desk.running(priority=1, lease_seconds=10.0)
    waiting = await desk.add()
    desk.clock.advance(10)
    assert await desk.claimed(worker="w2", limit=2) == [dead.id, waiting]
    assert [row.verb for row in await desk.history(dead.id)] == ["enqueue", "claim", "expire", "claim"]


async def test_a_claim_that_wants_other_work_still_reprocesses_expired_leases(desk: Desk) -> None:
    dead = await desk.running(type="a", max_attempts=1, lease_seconds=10.0)
    desk.clock.advance(10)
    assert await desk.claimed(types=frozenset({"b"})) == []
    assert (await desk.job(dead.id)).status is Status.DEAD_LETTER


async def test_a_thousand_leases_that_end_together_are_all_tried_again(desk: Desk) -> None:
    await desk.add_all([new_job() for _ in range(1000)])
    assert len(await desk.claim(limit=1000, lease_seconds=10.0)) == 1000
    desk.clock.advance(10)
    await desk.sweep()
    assert len(await desk.claim(worker="w2", limit=1000)) == 1000
    await desk.verify()


async def test_a_stale_worker_changes_nothing(desk: Desk) -> None:
    """G05: whatever it sends, not even updated_at moves."""
    stale = await desk.running(lease_seconds=10.0)
    desk.clock.advance(10)
    current = await desk.again(stale, worker="w2")
    before = await desk.trace(stale.id)
    desk.clock.advance(1)
    assert isinstance(await desk.heartbeat_refused(beat(stale)), LeaseLost)
    assert isinstance(await desk.heartbeat_refused(beat(stale, checkpoint=save(stale, 9))), LeaseLost)
    assert isinstance(await desk.checkpoint_refused(save(stale, 9)), LeaseLost)
    for order in (complete(stale), fail(stale), fail(stale, retryable=False), release(stale)):
        assert isinstance(await desk.refused(order), LeaseLost)
    assert await desk.trace(stale.id) == before
    await desk.do(complete(current))


async def test_the_same_worker_with_an_old_fence_is_stale_too(desk: Desk) -> None:
    first = await desk.running()
    await desk.do(release(first))
    second = await desk.again(first, worker="w1")
    before = await desk.trace(first.id)
    assert isinstance(await desk.refused(complete(first)), AlreadyFinished)
    assert isinstance(await desk.heartbeat_refused(beat(first)), NotRunning)
    assert await desk.trace(first.id) == before
    await desk.do(complete(second))


async def test_a_worker_that_always_dies_spends_exactly_max_attempts(desk: Desk) -> None:
    """G09."""
    id = await desk.add(max_attempts=4)
    for attempt in range(1, 5):
        (job,) = await desk.claim(worker=f"w{attempt}", lease_seconds=5.0)
        assert (job.id, job.attempt) == (id, attempt)
        desk.clock.advance(5)
    assert await desk.claim() == []
    job, rows = await desk.trace(id)
    assert (job.status, job.attempt) == (Status.DEAD_LETTER, 4)
    assert [row.verb for row in rows].count(Verb.CLAIM) == 4
    desk.clock.advance(86_400)
    assert await desk.claim() == []


async def test_a_lease_that_ends_with_a_cancel_pending_ends_as_cancelled(desk: Desk) -> None:
    job = await desk.running(lease_seconds=10.0)
    await desk.do(cancel(job.id, reason="stop"))
    desk.clock.advance(10)
    assert (await desk.do(expire(job.id))).status is Status.CANCELLED
    assert (await desk.history(job.id))[-1].reason == "stop"
