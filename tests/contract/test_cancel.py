"""Cancel: at once unless the job runs, then by request or by force; a cancelled job is never granted again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from interlock.domain.decide import Command
from interlock.domain.job import Job, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, NotFound
from tests.contract.builders import NEVER, OPERATOR, Desk, cancel, cancel_ack, complete, facts, fail, release
from tests.contract.connections import Door, job_in


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL])
async def test_a_job_that_does_not_run_is_cancelled_at_once(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    remote.clock.advance(1)
    receipt = await remote.do(cancel(job.id, reason="changed my mind"))
    assert receipt == Receipt(job.id, job.fence, Status.CANCELLED, job.attempt, job.version + 1, None, remote.clock.now)
    now, rows = await remote.trace(job.id)
    assert (now.status, now.cancel_reason, now.finished_at) == (
        Status.CANCELLED,
        "changed my mind",
        remote.clock.now,
    )
    assert (now.cancel_requested_at, now.approval_id) == (remote.clock.now, None)
    last = rows[-1]
    assert (last.from_status, last.verb, last.actor, last.reason) == (status, Verb.CANCEL, OPERATOR, "changed my mind")
    assert facts(last) == {"why": "changed my mind"}
    remote.clock.advance(86_400)
    assert await remote.claim(limit=10) == []
    await remote.verify()


async def test_a_running_job_is_asked_to_stop_and_goes_on(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    receipt = await remote.do(cancel(job.id, reason="stop"))
    assert receipt == Receipt(job.id, 1, Status.RUNNING, 1, 3, None, None)
    now, rows = await remote.trace(job.id)
    assert (now.status, now.worker, now.lease_expires_at) == (Status.RUNNING, "w1", job.lease_expires_at)
    assert (now.cancel_requested_at, now.cancel_reason) == (remote.clock.now, "stop")
    last = rows[-1]
    assert (last.from_status, last.to_status, last.verb) == (Status.RUNNING, Status.RUNNING, Verb.CANCEL)
    assert (last.actor, last.reason) == (OPERATOR, "stop")
    await remote.verify()


async def test_asking_twice_is_asking_once(remote: Desk) -> None:
    """G12."""
    job = await remote.running()
    receipt = await remote.do(cancel(job.id, reason="first"))
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert await remote.do(cancel(job.id, reason="second")) == receipt
    assert await remote.trace(job.id) == before


async def test_cancelling_twice_is_cancelling_once(remote: Desk) -> None:
    id = await remote.add()
    receipt = await remote.do(cancel(id))
    before = await remote.trace(id)
    remote.clock.advance(1)
    assert await remote.do(cancel(id)) == receipt
    assert await remote.do(cancel(id, force=True)) == receipt
    assert await remote.trace(id) == before


async def test_the_worker_acknowledges_and_the_job_is_cancelled(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id, reason="stop"))
    receipt = await remote.do(cancel_ack(job))
    assert (receipt.status, receipt.version, receipt.finished_at) == (Status.CANCELLED, 4, remote.clock.now)
    last = (await remote.history(job.id))[-1]
    assert (last.verb, last.actor, last.reason) == (Verb.CANCEL_ACK, "worker:w1", "stop")
    assert facts(last) == {"why": "stop"}


async def test_force_takes_the_lease_away_at_once(remote: Desk) -> None:
    job = await remote.running()
    receipt = await remote.do(cancel(job.id, reason="now", force=True))
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, remote.clock.now)
    now = await remote.job(job.id)
    assert (now.status, now.worker, now.lease_expires_at, now.cancel_reason) == (Status.CANCELLED, None, None, "now")
    remote.clock.advance(3600)
    assert job.id not in [due.job_id for due in await remote.store.due_leases(10_000)]


async def test_force_after_a_request_keeps_when_it_was_asked_for(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id, reason="please"))
    asked_at = remote.clock.now
    remote.clock.advance(5)
    await remote.do(cancel(job.id, force=True))
    now = await remote.job(job.id)
    assert (now.status, now.cancel_requested_at, now.cancel_reason) == (Status.CANCELLED, asked_at, "please")


async def test_a_success_wins_over_a_pending_cancel(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id))
    assert (await remote.do(complete(job))).status is Status.SUCCEEDED


async def test_a_final_failure_wins_over_a_pending_cancel(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id))
    assert (await remote.do(fail(job, retryable=False))).status is Status.FAILED


@pytest.mark.parametrize("end", [fail, release])
async def test_a_pending_cancel_beats_retry_and_release(remote: Desk, end: Callable[[Job], Command]) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id))
    assert (await remote.do(end(job))).status is Status.CANCELLED
    remote.clock.advance(86_400)
    assert await remote.claim(limit=10) == []


async def test_the_error_of_the_last_failed_attempt_is_kept_though_a_cancel_beats_its_retry(remote: Desk) -> None:
    first = await remote.running()
    await remote.do(fail(first, error='{"message":"first"}', retry_after_seconds=0.0))
    remote.clock.advance(1)
    job = await remote.again(first)
    await remote.do(cancel(job.id, reason="please"))
    last = '{"message":"last","details":[1.0]}'
    receipt = await remote.do(fail(job, error=last, sanitized=True))
    now, rows = await remote.trace(job.id)
    assert (now.status, now.error, now.sanitized) == (Status.CANCELLED, last, True)
    assert facts(rows[-1]) == {"error": json.loads(last), "why": "please"}
    assert await remote.do(fail(job)) == receipt
    await remote.verify()


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER])
async def test_a_job_that_has_ended_otherwise_cannot_be_cancelled(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    for force in (False, True):
        error = await remote.refused(cancel(job.id, force=force))
        assert isinstance(error, AlreadyFinished)
        assert status in str(error)
    assert await remote.trace(job.id) == before


async def test_cancelling_an_unknown_or_foreign_job_is_not_found_and_leaves_nothing(remote: Desk, rival: Desk) -> None:
    """P08: no residue that could hit a later job."""
    theirs = await rival.add()
    for id in (NEVER, theirs):
        assert isinstance(await remote.refused(cancel(id)), NotFound)
        assert isinstance(await remote.refused(cancel(id, force=True)), NotFound)
    assert (await rival.job(theirs)).status is Status.QUEUED
    created = await remote.add(id=NEVER)
    assert await remote.claimed() == [created]


async def test_a_cancel_without_a_reason_is_fine(remote: Desk) -> None:
    id = await remote.add()
    await remote.do(cancel(id))
    now, rows = await remote.trace(id)
    assert (now.cancel_reason, rows[-1].reason) == (None, None)
