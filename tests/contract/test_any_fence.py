"""Workers whose protocol knows no fences: a verb takes the one they hold, in the same statement, and no other."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from interlock.domain.decide import Finish
from interlock.domain.job import ANY_FENCE, Job
from interlock.domain.lifecycle import Status
from interlock.domain.progress import Event, Level
from interlock.engine.engine import Engine
from interlock.errors import Invalid, LeaseLost, NotFound
from tests.contract.builders import NEVER, Desk, cancel, cancel_ack, complete, expire, fail, heartbeat, new_id, release

MAKERS: dict[str, Callable[..., Finish]] = {
    "complete": complete, "fail": fail, "release": release, "cancel_ack": cancel_ack,
}  # fmt: skip


async def held(remote: Desk, **fields: Any) -> Job:
    """A job in its second grant, which a cancel was requested for."""
    first = await remote.running(**fields)
    await remote.do(release(first))
    job = await remote.again(first, worker="w1")
    assert job.fence > 1
    await remote.do(cancel(job.id))
    return job


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_finish_takes_whatever_fence_the_worker_holds(remote: Desk, verb: str) -> None:
    job = await held(remote)
    receipt = await remote.do(MAKERS[verb](job, fence=ANY_FENCE))
    assert receipt.fence == job.fence
    now, rows = await remote.trace(job.id)
    assert now.status is (Status.SUCCEEDED if verb == "complete" else Status.CANCELLED)
    assert (rows[-1].fence, rows[-1].actor) == (job.fence, "worker:w1")
    await remote.verify()


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_worker_that_does_not_hold_the_job_changes_nothing(remote: Desk, verb: str) -> None:
    job = await held(remote)
    before, _ = await remote.trace(job.id)
    refusal = await remote.refused(MAKERS[verb](job, fence=ANY_FENCE, worker="w2"))
    assert isinstance(refusal, LeaseLost)
    assert (await remote.trace(job.id))[0] == before
    unknown = await remote.refused(MAKERS[verb](job, fence=ANY_FENCE, id=NEVER))
    assert isinstance(unknown, NotFound)


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_lease_that_was_lost_stays_lost_without_a_fence_too(remote: Desk, verb: str) -> None:
    job = await remote.running(lease_seconds=5.0)
    remote.clock.advance(6)
    await remote.do(expire(job.id))
    assert isinstance(await remote.refused(MAKERS[verb](job, fence=ANY_FENCE)), LeaseLost)
    await remote.again(job, worker="w2")
    assert isinstance(await remote.refused(MAKERS[verb](job, fence=ANY_FENCE)), LeaseLost)


async def test_a_heartbeat_takes_whatever_fence_the_worker_holds(remote: Desk) -> None:
    job = await held(remote)
    (reply,) = await remote.heartbeat(heartbeat(job, fence=ANY_FENCE, lease_seconds=90.0))
    assert (reply.lease_expires_at, reply.cancel_requested) == (remote.after(90), True)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job, fence=ANY_FENCE, worker="w2")), LeaseLost)
    remote.clock.advance(91)
    await remote.do(expire(job.id))
    assert isinstance(await remote.heartbeat_refused(heartbeat(job, fence=ANY_FENCE)), LeaseLost)


async def test_progress_is_saved_under_a_fence_that_is_named(remote: Desk) -> None:
    job = await remote.running()
    reported = heartbeat(job, fence=ANY_FENCE, events=(Event(new_id(), Level.INFO, "half way"),))
    with pytest.raises(Invalid):
        await Engine(remote.store).leases.heartbeat(remote.tenant, reported)


async def test_both_engines_mean_the_same_number() -> None:
    for verb in ("heartbeats", "transition"):
        text = (files("interlock.storage.postgres") / "functions" / f"{verb}.sql").read_text()
        assert f".fence, {ANY_FENCE})" in text
