"""Revoke ends a lease now, as if it had expired."""

from __future__ import annotations

import json

import pytest

from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, NotFound
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, cancel, revoke
from tests.contract.connections import SqlConnection, job_in


async def test_a_revoked_lease_uses_one_attempt_and_the_job_is_retried_immediately(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    receipt = await queue.do(revoke(job.id, reason="runaway"))
    assert (receipt.status, receipt.attempt, receipt.run_at) == (Status.RETRY, 2, queue.clock.now)
    now, rows = await queue.trace(job.id)
    assert (now.worker, now.lease_expires_at) == (None, None)
    assert json.loads(now.error or "")["kind"] == "revoked"
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.REVOKE, OPERATOR, "runaway")
    assert (await queue.again(job)).attempt == 2
    await queue.verify()


async def test_after_a_revoke_the_job_waits_for_its_own_expiry_delay(queue: TenantQueue) -> None:
    job = await queue.running(expiry_delay_seconds=4.0)
    assert (await queue.do(revoke(job.id))).run_at == queue.after(4)


async def test_a_revoke_of_the_last_attempt_goes_to_the_dead_letters(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=1)
    assert (await queue.do(revoke(job.id))).status is Status.DEAD_LETTER


async def test_a_revoke_with_a_cancel_pending_ends_as_cancelled(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id))
    assert (await queue.do(revoke(job.id))).status is Status.CANCELLED


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_a_job_without_a_lease_cannot_be_revoked(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert isinstance(await queue.refused(revoke(job.id)), AlreadyFinished)
    assert await queue.trace(job.id) == before


async def test_revoking_an_unknown_or_foreign_job_is_not_found(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.running()
    for id in (NEVER, theirs.id):
        assert isinstance(await queue.refused(revoke(id)), NotFound)
    assert (await rival.job(theirs.id)).status is Status.RUNNING
