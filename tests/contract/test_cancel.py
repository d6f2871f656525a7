"""Cancel: at once unless the job runs, then by request or by force; a cancelled job is never granted again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from interlock.domain.decide import Order
from interlock.domain.job import Job, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, NotFound
from tests.contract.builders import NEVER, OPERATOR, Desk, cancel, cancel_ack, complete, facts, fail, release
from tests.contract.connections import Door, job_in


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL])
async def test_a_job_that_does_not_run_is_cancelled_at_once(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status)
    desk.clock.advance(1)
    receipt = await desk.do(cancel(job.id, reason="changed my mind"))
    assert receipt == Receipt(job.id, job.fence, Status.CANCELLED, job.attempt, job.version + 1, None, desk.clock.now)
    now, rows = await desk.trace(job.id)
    assert (now.status, now.cancel_reason, now.finished_at) == (
        Status.CANCELLED,
        "changed my mind",
        desk.clock.now,
    )
    assert (now.cancel_requested_at, now.gate_id) == (desk.clock.now, None)
    last = rows[-1]
    assert (last.from_status, last.verb, last.actor, last.reason) == (status, Verb.CANCEL, OPERATOR, "changed my mind")
    assert facts(last) == {"why": "changed my mind"}
    desk.clock.advance(86_400)
    assert await desk.claim(limit=10) == []
    await desk.verify()


async def test_a_running_job_is_asked_to_stop_and_goes_on(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    receipt = await desk.do(cancel(job.id, reason="stop"))
    assert receipt == Receipt(job.id, 1, Status.RUNNING, 1, 3, None, None)
    now, rows = await desk.trace(job.id)
    assert (now.status, now.worker, now.lease_expires_at) == (Status.RUNNING, "w1", job.lease_expires_at)
    assert (now.cancel_requested_at, now.cancel_reason) == (desk.clock.now, "stop")
    last = rows[-1]
    assert (last.from_status, last.to_status, last.verb) == (Status.RUNNING, Status.RUNNING, Verb.CANCEL)
    assert (last.actor, last.reason) == (OPERATOR, "stop")
    await desk.verify()


async def test_asking_twice_is_asking_once(desk: Desk) -> None:
    """G12."""
    job = await desk.running()
    receipt = await desk.do(cancel(job.id, reason="first"))
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    assert await desk.do(cancel(job.id, reason="second")) == receipt
    assert await desk.trace(job.id) == before


async def test_cancelling_twice_is_cancelling_once(desk: Desk) -> None:
    id = await desk.add()
    receipt = await desk.do(cancel(id))
    before = await desk.trace(id)
    desk.clock.advance(1)
    assert await desk.do(cancel(id)) == receipt
    assert await desk.do(cancel(id, force=True)) == receipt
    assert await desk.trace(id) == before


async def test_the_worker_acknowledges_and_the_job_is_cancelled(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id, reason="stop"))
    receipt = await desk.do(cancel_ack(job))
    assert (receipt.status, receipt.version, receipt.finished_at) == (Status.CANCELLED, 4, desk.clock.now)
    last = (await desk.history(job.id))[-1]
    assert (last.verb, last.actor, last.reason) == (Verb.CANCEL_ACK, "worker:w1", "stop")
    assert facts(last) == {"why": "stop"}


async def test_force_takes_the_lease_away_at_once(desk: Desk) -> None:
    job = await desk.running()
    receipt = await desk.do(cancel(job.id, reason="now", force=True))
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, desk.clock.now)
    now = await desk.job(job.id)
    assert (now.status, now.worker, now.lease_expires_at, now.cancel_reason) == (Status.CANCELLED, None, None, "now")
    desk.clock.advance(3600)
    assert job.id not in [due.job_id for due in await desk.store.due_leases(10_000)]


async def test_force_after_a_request_keeps_when_it_was_asked_for(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id, reason="please"))
    asked_at = desk.clock.now
    desk.clock.advance(5)
    await desk.do(cancel(job.id, force=True))
    now = await desk.job(job.id)
    assert (now.status, now.cancel_requested_at, now.cancel_reason) == (Status.CANCELLED, asked_at, "please")


async def test_a_success_wins_over_a_pending_cancel(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id))
    assert (await desk.do(complete(job))).status is Status.SUCCEEDED


async def test_a_final_failure_wins_over_a_pending_cancel(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id))
    assert (await desk.do(fail(job, retryable=False))).status is Status.FAILED


@pytest.mark.parametrize("end", [fail, release])
async def test_a_pending_cancel_beats_retry_and_release(desk: Desk, end: Callable[[Job], Order]) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id))
    assert (await desk.do(end(job))).status is Status.CANCELLED
    desk.clock.advance(86_400)
    assert await desk.claim(limit=10) == []


async def test_the_error_of_the_last_failed_attempt_is_kept_though_a_cancel_beats_its_retry(desk: Desk) -> None:
    first = await desk.running()
    await desk.do(fail(first, error='{"message":"first"}', retry_after_seconds=0.0))
    desk.clock.advance(1)
    job = await desk.again(first)
    await desk.do(cancel(job.id, reason="please"))
    last = '{"message":"last","details":[1.0]}'
    receipt = await desk.do(fail(job, error=last, sanitized=True))
    now, rows = await desk.trace(job.id)
    assert (now.status, now.error, now.sanitized) == (Status.CANCELLED, last, True)
    assert facts(rows[-1]) == {"error": json.loads(last), "why": "please"}
    assert await desk.do(fail(job)) == receipt
    await desk.verify()


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER])
async def test_a_job_that_has_ended_otherwise_cannot_be_cancelled(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status)
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    for force in (False, True):
        error = await desk.refused(cancel(job.id, force=force))
        assert isinstance(error, AlreadyFinished)
        assert status in str(error)
    assert await desk.trace(job.id) == before


async def test_cancelling_an_unknown_or_foreign_job_is_not_found_and_leaves_nothing(desk: Desk, rival: Desk) -> None:
    """P08: no residue that could hit a later job."""
    theirs = await rival.add()
    for id in (NEVER, theirs):
        assert isinstance(await desk.refused(cancel(id)), NotFound)
        assert isinstance(await desk.refused(cancel(id, force=True)), NotFound)
    assert (await rival.job(theirs)).status is Status.QUEUED
    born = await desk.add(id=NEVER)
    assert await desk.claimed() == [born]


async def test_a_cancel_without_a_reason_is_fine(desk: Desk) -> None:
    id = await desk.add()
    await desk.do(cancel(id))
    now, rows = await desk.trace(id)
    assert (now.cancel_reason, rows[-1].reason) == (None, None)
