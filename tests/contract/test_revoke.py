"""Revoke ends a lease now, as if it had expired."""

from __future__ import annotations

import json

import pytest

from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, NotFound
from tests.contract.builders import NEVER, OPERATOR, Desk, cancel, revoke
from tests.contract.connections import Door, job_in


async def test_a_revoked_lease_costs_one_attempt_and_the_job_is_tried_again_at_once(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    receipt = await remote.do(revoke(job.id, reason="runaway"))
    assert (receipt.status, receipt.attempt, receipt.run_at) == (Status.RETRY, 2, remote.clock.now)
    now, rows = await remote.trace(job.id)
    assert (now.worker, now.lease_expires_at) == (None, None)
    assert json.loads(now.error or "")["kind"] == "revoked"
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.REVOKE, OPERATOR, "runaway")
    assert (await remote.again(job)).attempt == 2
    await remote.verify()


async def test_after_a_revoke_the_job_waits_for_its_own_expiry_delay(remote: Desk) -> None:
    job = await remote.running(expiry_delay_seconds=4.0)
    assert (await remote.do(revoke(job.id))).run_at == remote.after(4)


async def test_a_revoke_of_the_last_attempt_goes_to_the_dead_letters(remote: Desk) -> None:
    job = await remote.running(max_attempts=1)
    assert (await remote.do(revoke(job.id))).status is Status.DEAD_LETTER


async def test_a_revoke_with_a_cancel_pending_ends_as_cancelled(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id))
    assert (await remote.do(revoke(job.id))).status is Status.CANCELLED


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_what_nobody_holds_cannot_be_revoked(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert isinstance(await remote.refused(revoke(job.id)), AlreadyFinished)
    assert await remote.trace(job.id) == before


async def test_revoking_an_unknown_or_foreign_job_is_not_found(remote: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    for id in (NEVER, theirs.id):
        assert isinstance(await remote.refused(revoke(id)), NotFound)
    assert (await rival.job(theirs.id)).status is Status.RUNNING
