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
from tests.contract.builders import NEVER, Desk, beat, cancel, cancel_ack, complete, expire, fail, new_id, release

MAKERS: dict[str, Callable[..., Finish]] = {
    "complete": complete, "fail": fail, "release": release, "cancel_ack": cancel_ack,
}  # fmt: skip


async def held(desk: Desk, **fields: Any) -> Job:
    """A job in its second grant, which a cancel was requested for."""
    first = await desk.running(**fields)
    await desk.do(release(first))
    job = await desk.again(first, worker="w1")
    assert job.fence > 1
    await desk.do(cancel(job.id))
    return job


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_finish_takes_whatever_fence_the_worker_holds(desk: Desk, verb: str) -> None:
    job = await held(desk)
    receipt = await desk.do(MAKERS[verb](job, fence=ANY_FENCE))
    assert receipt.fence == job.fence
    now, rows = await desk.trace(job.id)
    assert now.status is (Status.SUCCEEDED if verb == "complete" else Status.CANCELLED)
    assert (rows[-1].fence, rows[-1].actor) == (job.fence, "worker:w1")
    await desk.verify()


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_worker_that_does_not_hold_the_job_changes_nothing(desk: Desk, verb: str) -> None:
    job = await held(desk)
    before, _ = await desk.trace(job.id)
    refusal = await desk.refused(MAKERS[verb](job, fence=ANY_FENCE, worker="w2"))
    assert isinstance(refusal, LeaseLost)
    assert (await desk.trace(job.id))[0] == before
    unknown = await desk.refused(MAKERS[verb](job, fence=ANY_FENCE, id=NEVER))
    assert isinstance(unknown, NotFound)


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_lease_that_was_lost_stays_lost_without_a_fence_too(desk: Desk, verb: str) -> None:
    job = await desk.running(lease_seconds=5.0)
    desk.clock.advance(6)
    await desk.do(expire(job.id))
    assert isinstance(await desk.refused(MAKERS[verb](job, fence=ANY_FENCE)), LeaseLost)
    await desk.again(job, worker="w2")
    assert isinstance(await desk.refused(MAKERS[verb](job, fence=ANY_FENCE)), LeaseLost)


async def test_a_heartbeat_takes_whatever_fence_the_worker_holds(desk: Desk) -> None:
    job = await held(desk)
    (pulse,) = await desk.heartbeat(beat(job, fence=ANY_FENCE, lease_seconds=90.0))
    assert (pulse.lease_expires_at, pulse.cancel_requested) == (desk.after(90), True)
    assert isinstance(await desk.heartbeat_refused(beat(job, fence=ANY_FENCE, worker="w2")), LeaseLost)
    desk.clock.advance(91)
    await desk.do(expire(job.id))
    assert isinstance(await desk.heartbeat_refused(beat(job, fence=ANY_FENCE)), LeaseLost)


async def test_progress_is_saved_under_a_fence_that_is_named(desk: Desk) -> None:
    job = await desk.running()
    told = beat(job, fence=ANY_FENCE, events=(Event(new_id(), Level.INFO, "half way"),))
    with pytest.raises(Invalid):
        await Engine(desk.store).leases.heartbeat(desk.tenant, told)


async def test_both_engines_mean_the_same_number() -> None:
    for verb in ("beats", "change"):
        text = (files("interlock.storage.postgres") / "verbs" / f"{verb}.sql").read_text()
        assert f".fence, {ANY_FENCE})" in text
