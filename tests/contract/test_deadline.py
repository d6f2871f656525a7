"""Deadlines: no run starts after one, and a run in progress is not touched."""

from __future__ import annotations

import json

import pytest

from interlock.domain.lifecycle import Status, Verb
from tests.contract.builders import FIXED, TenantQueue, complete, facts, fail, heartbeat, pass_deadline, release
from tests.contract.connections import SqlConnection, job_in


async def test_a_queued_job_past_its_deadline_is_cancelled(queue: TenantQueue) -> None:
    id = await queue.add(deadline=queue.after(10))
    queue.clock.advance(10)
    receipt = await queue.do(pass_deadline(id))
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, queue.clock.now)
    now, rows = await queue.trace(id)
    assert (now.cancel_reason, now.cancel_requested_at) == ("deadline", queue.clock.now)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.PASS_DEADLINE, "system:sweep", "deadline")
    assert facts(rows[-1]) == {"why": "deadline"}
    await queue.verify()


@pytest.mark.parametrize("status", [Status.RETRY, Status.WAITING_FOR_APPROVAL])
async def test_a_job_between_runs_past_its_deadline_fails(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    job = await job_in(queue, sql, status, deadline=queue.after(10))
    queue.clock.advance(10)
    assert (await queue.do(pass_deadline(job.id))).status is Status.FAILED
    now, rows = await queue.trace(job.id)
    assert json.loads(now.error or "")["kind"] == "deadline"
    assert (rows[-1].from_status, rows[-1].verb, rows[-1].reason) == (status, Verb.PASS_DEADLINE, "deadline")
    await queue.verify()


async def test_a_running_job_is_not_affected_by_its_deadline(queue: TenantQueue) -> None:
    job = await queue.running(deadline=queue.after(10))
    queue.clock.advance(20)
    before = await queue.trace(job.id)
    await queue.do(pass_deadline(job.id))
    await queue.sweep()
    assert await queue.trace(job.id) == before
    await queue.heartbeat(heartbeat(job))
    assert (await queue.do(complete(job))).status is Status.SUCCEEDED


async def test_a_deadline_that_has_not_passed_ends_nothing(queue: TenantQueue) -> None:
    id = await queue.add(deadline=queue.after(10))
    queue.clock.advance(9.999999)
    before = await queue.trace(id)
    await queue.do(pass_deadline(id))
    await queue.sweep()
    assert await queue.trace(id) == before


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED])
async def test_a_terminal_job_ignores_its_deadline(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status, deadline=queue.after(10))
    queue.clock.advance(10)
    before = await queue.trace(job.id)
    await queue.do(pass_deadline(job.id))
    await queue.sweep()
    assert await queue.trace(job.id) == before


async def test_passed_deadlines_are_found_for_all_tenants_and_no_others(queue: TenantQueue, rival: TenantQueue) -> None:
    queued = await queue.add(deadline=queue.after(10))
    later = await queue.add(deadline=queue.after(10), delay_seconds=3600.0)
    retrying = await queue.running(type="retry", deadline=queue.after(10))
    await queue.do(fail(retrying, retry_after_seconds=3600.0))
    parent = await queue.running(type="parent", deadline=queue.after(10))
    child = await queue.add(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child,)))
    theirs = await rival.add(deadline=queue.after(10))
    await queue.running(type="running", deadline=queue.after(10))
    await queue.add(deadline=queue.after(11))
    await queue.add(type="none")
    queue.clock.advance(10)
    found = [due for due in await queue.store.due_deadlines(10_000) if due.tenant in (queue.tenant, rival.tenant)]
    ids = [queued, later, retrying.id, parent.id]
    assert sorted(found) == sorted([*((queue.tenant, id) for id in ids), (rival.tenant, theirs)])
    assert len(await queue.store.due_deadlines(1)) == 1
    await queue.sweep()
    assert {(await queue.job(id)).status for id in ids} == {Status.CANCELLED, Status.FAILED}
    assert not [due for due in await queue.store.due_deadlines(10_000) if due.tenant == queue.tenant]


async def test_a_parent_past_its_deadline_waits_for_no_child(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent", deadline=queue.after(10))
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child.id,)))
    queue.clock.advance(10)
    await queue.sweep()
    ended = await queue.job(parent.id)
    assert (ended.status, tuple(ended.awaiting)) == (Status.CANCELLED, ())
    await queue.do(complete(child))
    assert await queue.claim(limit=10) == []


async def test_any_claim_ends_jobs_past_their_deadline(queue: TenantQueue) -> None:
    """Both engines do the same, so that the same script leaves the same jobs."""
    due = await queue.add(type="a", deadline=queue.after(10))
    later = await queue.add(type="a", deadline=queue.after(10), delay_seconds=3600.0)
    needy = await queue.add(type="a", deadline=queue.after(10), requires=("gpu",))
    retrying = await queue.running(type="b", deadline=queue.after(10), backoff=FIXED)
    await queue.do(fail(retrying))
    queue.clock.advance(10)
    assert await queue.claim(types=frozenset({"c"})) == []
    statuses = [(await queue.job(id)).status for id in (due, later, needy, retrying.id)]
    assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.CANCELLED, Status.FAILED]


async def test_an_expired_lease_past_the_deadline_is_not_leased_again(queue: TenantQueue) -> None:
    job = await queue.running(deadline=queue.after(10), lease_seconds=10.0)
    queue.clock.advance(10)
    assert await queue.claim() == []
    assert (await queue.job(job.id)).status is Status.FAILED
    assert [row.verb for row in await queue.history(job.id)] == ["enqueue", "claim", "expire", "pass_deadline"]
