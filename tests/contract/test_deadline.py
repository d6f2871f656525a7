"""Deadlines: no run starts after one, and a run under way is not touched."""

from __future__ import annotations

import json

import pytest

from interlock.domain.lifecycle import Status, Verb
from tests.contract.builders import FIXED, Desk, beat, complete, facts, fail, pass_deadline, release
from tests.contract.connections import Door, job_in


async def test_a_queued_job_past_its_deadline_is_cancelled_because_of_it(desk: Desk) -> None:
    id = await desk.add(deadline=desk.after(10))
    desk.clock.advance(10)
    receipt = await desk.do(pass_deadline(id))
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, desk.clock.now)
    now, rows = await desk.trace(id)
    assert (now.cancel_reason, now.cancel_requested_at) == ("deadline", desk.clock.now)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.PASS_DEADLINE, "system:sweep", "deadline")
    assert facts(rows[-1]) == {"why": "deadline"}
    await desk.verify()


@pytest.mark.parametrize("status", [Status.RETRY, Status.WAITING_FOR_APPROVAL])
async def test_a_job_between_runs_past_its_deadline_has_failed(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status, deadline=desk.after(10))
    desk.clock.advance(10)
    assert (await desk.do(pass_deadline(job.id))).status is Status.FAILED
    now, rows = await desk.trace(job.id)
    assert json.loads(now.error or "")["kind"] == "deadline"
    assert (rows[-1].from_status, rows[-1].verb, rows[-1].reason) == (status, Verb.PASS_DEADLINE, "deadline")
    await desk.verify()


async def test_a_run_under_way_is_not_touched_by_its_deadline(desk: Desk) -> None:
    job = await desk.running(deadline=desk.after(10))
    desk.clock.advance(20)
    before = await desk.trace(job.id)
    await desk.do(pass_deadline(job.id))
    await desk.sweep()
    assert await desk.trace(job.id) == before
    await desk.heartbeat(beat(job))
    assert (await desk.do(complete(job))).status is Status.SUCCEEDED


async def test_a_deadline_that_has_not_passed_ends_nothing(desk: Desk) -> None:
    id = await desk.add(deadline=desk.after(10))
    desk.clock.advance(9.999999)
    before = await desk.trace(id)
    await desk.do(pass_deadline(id))
    await desk.sweep()
    assert await desk.trace(id) == before


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED])
async def test_an_ended_job_does_not_care_for_its_deadline(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status, deadline=desk.after(10))
    desk.clock.advance(10)
    before = await desk.trace(job.id)
    await desk.do(pass_deadline(job.id))
    await desk.sweep()
    assert await desk.trace(job.id) == before


async def test_passed_deadlines_are_found_for_all_tenants_and_no_others(desk: Desk, rival: Desk) -> None:
    queued = await desk.add(deadline=desk.after(10))
    later = await desk.add(deadline=desk.after(10), delay_seconds=3600.0)
    retrying = await desk.running(type="retry", deadline=desk.after(10))
    await desk.do(fail(retrying, retry_after_seconds=3600.0))
    parent = await desk.running(type="parent", deadline=desk.after(10))
    child = await desk.add(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child,)))
    theirs = await rival.add(deadline=desk.after(10))
    await desk.running(type="running", deadline=desk.after(10))
    await desk.add(deadline=desk.after(11))
    await desk.add(type="none")
    desk.clock.advance(10)
    found = [due for due in await desk.store.due_deadlines(10_000) if due.tenant in (desk.tenant, rival.tenant)]
    ids = [queued, later, retrying.id, parent.id]
    assert sorted(found) == sorted([*((desk.tenant, id) for id in ids), (rival.tenant, theirs)])
    assert len(await desk.store.due_deadlines(1)) == 1
    await desk.sweep()
    assert {(await desk.job(id)).status for id in ids} == {Status.CANCELLED, Status.FAILED}
    assert not [due for due in await desk.store.due_deadlines(10_000) if due.tenant == desk.tenant]


async def test_a_parent_past_its_deadline_waits_for_no_child(desk: Desk) -> None:
    parent = await desk.running(type="parent", deadline=desk.after(10))
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child.id,)))
    desk.clock.advance(10)
    await desk.sweep()
    ended = await desk.job(parent.id)
    assert (ended.status, tuple(ended.awaiting)) == (Status.CANCELLED, ())
    await desk.do(complete(child))
    assert await desk.claim(limit=10) == []


async def test_a_claim_ends_what_may_no_longer_start_whatever_it_asks_for(desk: Desk) -> None:
    """Both engines do the same, so that the same script leaves the same jobs."""
    due = await desk.add(type="a", deadline=desk.after(10))
    later = await desk.add(type="a", deadline=desk.after(10), delay_seconds=3600.0)
    needy = await desk.add(type="a", deadline=desk.after(10), requires=("gpu",))
    retrying = await desk.running(type="b", deadline=desk.after(10), backoff=FIXED)
    await desk.do(fail(retrying))
    desk.clock.advance(10)
    assert await desk.claim(types=frozenset({"c"})) == []
    statuses = [(await desk.job(id)).status for id in (due, later, needy, retrying.id)]
    assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.CANCELLED, Status.FAILED]


async def test_an_expired_lease_past_the_deadline_is_not_granted_again(desk: Desk) -> None:
    job = await desk.running(deadline=desk.after(10), lease_seconds=10.0)
    desk.clock.advance(10)
    assert await desk.claim() == []
    assert (await desk.job(job.id)).status is Status.FAILED
    assert [row.verb for row in await desk.history(job.id)] == ["enqueue", "claim", "expire", "pass_deadline"]
