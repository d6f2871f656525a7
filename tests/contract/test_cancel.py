"""Cancel: at once unless the job runs, then by request or by force; a cancelled job is never granted again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from interlock.domain.decide import Command
from interlock.domain.job import Job, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, NotFound
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, cancel, cancel_ack, complete, facts, fail, release
from tests.contract.connections import SqlConnection, job_in


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL])
async def test_a_job_that_is_not_running_is_cancelled_immediately(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    job = await job_in(queue, sql, status)
    queue.clock.advance(1)
    receipt = await queue.do(cancel(job.id, reason="changed my mind"))
    assert receipt == Receipt(job.id, job.fence, Status.CANCELLED, job.attempt, job.version + 1, None, queue.clock.now)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.cancel_reason, now.finished_at) == (
        Status.CANCELLED,
        "changed my mind",
        queue.clock.now,
    )
    assert (now.cancel_requested_at, now.approval_id) == (queue.clock.now, None)
    last = rows[-1]
    assert (last.from_status, last.verb, last.actor, last.reason) == (status, Verb.CANCEL, OPERATOR, "changed my mind")
    assert facts(last) == {"why": "changed my mind"}
    queue.clock.advance(86_400)
    assert await queue.claim(limit=10) == []
    await queue.verify()


async def test_cancelling_a_running_job_only_requests_it(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    receipt = await queue.do(cancel(job.id, reason="stop"))
    assert receipt == Receipt(job.id, 1, Status.RUNNING, 1, 3, None, None)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.worker, now.lease_expires_at) == (Status.RUNNING, "w1", job.lease_expires_at)
    assert (now.cancel_requested_at, now.cancel_reason) == (queue.clock.now, "stop")
    last = rows[-1]
    assert (last.from_status, last.to_status, last.verb) == (Status.RUNNING, Status.RUNNING, Verb.CANCEL)
    assert (last.actor, last.reason) == (OPERATOR, "stop")
    await queue.verify()


async def test_requesting_a_cancel_twice_changes_nothing(queue: TenantQueue) -> None:
    """G12."""
    job = await queue.running()
    receipt = await queue.do(cancel(job.id, reason="first"))
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert await queue.do(cancel(job.id, reason="second")) == receipt
    assert await queue.trace(job.id) == before


async def test_cancelling_twice_changes_nothing(queue: TenantQueue) -> None:
    id = await queue.add()
    receipt = await queue.do(cancel(id))
    before = await queue.trace(id)
    queue.clock.advance(1)
    assert await queue.do(cancel(id)) == receipt
    assert await queue.do(cancel(id, force=True)) == receipt
    assert await queue.trace(id) == before


async def test_the_worker_acknowledges_and_the_job_is_cancelled(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id, reason="stop"))
    receipt = await queue.do(cancel_ack(job))
    assert (receipt.status, receipt.version, receipt.finished_at) == (Status.CANCELLED, 4, queue.clock.now)
    last = (await queue.history(job.id))[-1]
    assert (last.verb, last.actor, last.reason) == (Verb.CANCEL_ACK, "worker:w1", "stop")
    assert facts(last) == {"why": "stop"}


async def test_force_ends_the_lease_immediately(queue: TenantQueue) -> None:
    job = await queue.running()
    receipt = await queue.do(cancel(job.id, reason="now", force=True))
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, queue.clock.now)
    now = await queue.job(job.id)
    assert (now.status, now.worker, now.lease_expires_at, now.cancel_reason) == (Status.CANCELLED, None, None, "now")
    queue.clock.advance(3600)
    assert job.id not in [due.job_id for due in await queue.store.due_leases(10_000)]


async def test_force_after_a_request_keeps_the_time_of_the_request(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id, reason="please"))
    asked_at = queue.clock.now
    queue.clock.advance(5)
    await queue.do(cancel(job.id, force=True))
    now = await queue.job(job.id)
    assert (now.status, now.cancel_requested_at, now.cancel_reason) == (Status.CANCELLED, asked_at, "please")


async def test_a_success_wins_over_a_pending_cancel(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id))
    assert (await queue.do(complete(job))).status is Status.SUCCEEDED


async def test_a_final_failure_wins_over_a_pending_cancel(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id))
    assert (await queue.do(fail(job, retryable=False))).status is Status.FAILED


@pytest.mark.parametrize("end", [fail, release])
async def test_a_pending_cancel_overrides_retry_and_release(queue: TenantQueue, end: Callable[[Job], Command]) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id))
    assert (await queue.do(end(job))).status is Status.CANCELLED
    queue.clock.advance(86_400)
    assert await queue.claim(limit=10) == []


async def test_the_error_of_the_last_attempt_is_kept_when_a_cancel_overrides_its_retry(queue: TenantQueue) -> None:
    first = await queue.running()
    await queue.do(fail(first, error='{"message":"first"}', retry_after_seconds=0.0))
    queue.clock.advance(1)
    job = await queue.again(first)
    await queue.do(cancel(job.id, reason="please"))
    last = '{"message":"last","details":[1.0]}'
    receipt = await queue.do(fail(job, error=last, sanitized=True))
    now, rows = await queue.trace(job.id)
    assert (now.status, now.error, now.sanitized) == (Status.CANCELLED, last, True)
    assert facts(rows[-1]) == {"error": json.loads(last), "why": "please"}
    assert await queue.do(fail(job)) == receipt
    await queue.verify()


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER])
async def test_a_terminal_job_cannot_be_cancelled(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    for force in (False, True):
        error = await queue.refused(cancel(job.id, force=force))
        assert isinstance(error, AlreadyFinished)
        assert status in str(error)
    assert await queue.trace(job.id) == before


async def test_cancelling_an_unknown_or_foreign_job_is_not_found_and_changes_nothing(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    """P08: no residue that could hit a later job."""
    theirs = await rival.add()
    for id in (NEVER, theirs):
        assert isinstance(await queue.refused(cancel(id)), NotFound)
        assert isinstance(await queue.refused(cancel(id, force=True)), NotFound)
    assert (await rival.job(theirs)).status is Status.QUEUED
    created = await queue.add(id=NEVER)
    assert await queue.claimed() == [created]


async def test_a_cancel_needs_no_reason(queue: TenantQueue) -> None:
    id = await queue.add()
    await queue.do(cancel(id))
    now, rows = await queue.trace(id)
    assert (now.cancel_reason, rows[-1].reason) == (None, None)
