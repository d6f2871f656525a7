"""Deadlines: no run starts after one, and a run under way is not touched."""

from __future__ import annotations

import json

import pytest

from interlock.domain.lifecycle import Status, Verb
from tests.contract.builders import FIXED, Desk, complete, facts, fail, heartbeat, pass_deadline, release
from tests.contract.connections import Door, job_in


async def test_a_queued_job_past_its_deadline_is_cancelled_because_of_it(remote: Desk) -> None:
    id = await remote.add(deadline=remote.after(10))
    remote.clock.advance(10)
    receipt = await remote.do(pass_deadline(id))
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, remote.clock.now)
    now, rows = await remote.trace(id)
    assert (now.cancel_reason, now.cancel_requested_at) == ("deadline", remote.clock.now)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.PASS_DEADLINE, "system:sweep", "deadline")
    assert facts(rows[-1]) == {"why": "deadline"}
    await remote.verify()


@pytest.mark.parametrize("status", [Status.RETRY, Status.WAITING_FOR_APPROVAL])
async def test_a_job_between_runs_past_its_deadline_has_failed(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status, deadline=remote.after(10))
    remote.clock.advance(10)
    assert (await remote.do(pass_deadline(job.id))).status is Status.FAILED
    now, rows = await remote.trace(job.id)
    assert json.loads(now.error or "")["kind"] == "deadline"
    assert (rows[-1].from_status, rows[-1].verb, rows[-1].reason) == (status, Verb.PASS_DEADLINE, "deadline")
    await remote.verify()


async def test_a_run_under_way_is_not_touched_by_its_deadline(remote: Desk) -> None:
    job = await remote.running(deadline=remote.after(10))
    remote.clock.advance(20)
    before = await remote.trace(job.id)
    await remote.do(pass_deadline(job.id))
    await remote.sweep()
    assert await remote.trace(job.id) == before
    await remote.heartbeat(heartbeat(job))
    assert (await remote.do(complete(job))).status is Status.SUCCEEDED


async def test_a_deadline_that_has_not_passed_ends_nothing(remote: Desk) -> None:
    id = await remote.add(deadline=remote.after(10))
    remote.clock.advance(9.999999)
    before = await remote.trace(id)
    await remote.do(pass_deadline(id))
    await remote.sweep()
    assert await remote.trace(id) == before


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED])
async def test_an_ended_job_does_not_care_for_its_deadline(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status, deadline=remote.after(10))
    remote.clock.advance(10)
    before = await remote.trace(job.id)
    await remote.do(pass_deadline(job.id))
    await remote.sweep()
    assert await remote.trace(job.id) == before


async def test_passed_deadlines_are_found_for_all_tenants_and_no_others(remote: Desk, rival: Desk) -> None:
    queued = await remote.add(deadline=remote.after(10))
    later = await remote.add(deadline=remote.after(10), delay_seconds=3600.0)
    retrying = await remote.running(type="retry", deadline=remote.after(10))
    await remote.do(fail(retrying, retry_after_seconds=3600.0))
    parent = await remote.running(type="parent", deadline=remote.after(10))
    child = await remote.add(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child,)))
    theirs = await rival.add(deadline=remote.after(10))
    await remote.running(type="running", deadline=remote.after(10))
    await remote.add(deadline=remote.after(11))
    await remote.add(type="none")
    remote.clock.advance(10)
    found = [due for due in await remote.store.due_deadlines(10_000) if due.tenant in (remote.tenant, rival.tenant)]
    ids = [queued, later, retrying.id, parent.id]
    assert sorted(found) == sorted([*((remote.tenant, id) for id in ids), (rival.tenant, theirs)])
    assert len(await remote.store.due_deadlines(1)) == 1
    await remote.sweep()
    assert {(await remote.job(id)).status for id in ids} == {Status.CANCELLED, Status.FAILED}
    assert not [due for due in await remote.store.due_deadlines(10_000) if due.tenant == remote.tenant]


async def test_a_parent_past_its_deadline_waits_for_no_child(remote: Desk) -> None:
    parent = await remote.running(type="parent", deadline=remote.after(10))
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child.id,)))
    remote.clock.advance(10)
    await remote.sweep()
    ended = await remote.job(parent.id)
    assert (ended.status, tuple(ended.awaiting)) == (Status.CANCELLED, ())
    await remote.do(complete(child))
    assert await remote.claim(limit=10) == []


async def test_a_claim_ends_what_may_no_longer_start_whatever_it_asks_for(remote: Desk) -> None:
    """Both engines do the same, so that the same script leaves the same jobs."""
    due = await remote.add(type="a", deadline=remote.after(10))
    later = await remote.add(type="a", deadline=remote.after(10), delay_seconds=3600.0)
    needy = await remote.add(type="a", deadline=remote.after(10), requires=("gpu",))
    retrying = await remote.running(type="b", deadline=remote.after(10), backoff=FIXED)
    await remote.do(fail(retrying))
    remote.clock.advance(10)
    assert await remote.claim(types=frozenset({"c"})) == []
    statuses = [(await remote.job(id)).status for id in (due, later, needy, retrying.id)]
    assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.CANCELLED, Status.FAILED]


async def test_an_expired_lease_past_the_deadline_is_not_granted_again(remote: Desk) -> None:
    job = await remote.running(deadline=remote.after(10), lease_seconds=10.0)
    remote.clock.advance(10)
    assert await remote.claim() == []
    assert (await remote.job(job.id)).status is Status.FAILED
    assert [row.verb for row in await remote.history(job.id)] == ["enqueue", "claim", "expire", "pass_deadline"]
