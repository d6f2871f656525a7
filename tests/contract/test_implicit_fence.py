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
from interlock.storage.postgres.migrate import functions
from tests.contract.builders import (
    NEVER,
    TenantQueue,
    cancel,
    cancel_ack,
    complete,
    expire,
    fail,
    heartbeat,
    new_id,
    release,
)

MAKERS: dict[str, Callable[..., Finish]] = {
    "complete": complete, "fail": fail, "release": release, "cancel_ack": cancel_ack,
}  # fmt: skip


async def held(queue: TenantQueue, **fields: Any) -> Job:
    """A job in its second grant, which a cancel was requested for."""
    first = await queue.running(**fields)
    await queue.do(release(first))
    job = await queue.again(first, worker="w1")
    assert job.fence > 1
    await queue.do(cancel(job.id))
    return job


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_finish_without_a_fence_uses_the_current_lease_of_the_worker(queue: TenantQueue, verb: str) -> None:
    job = await held(queue)
    receipt = await queue.do(MAKERS[verb](job, fence=ANY_FENCE))
    assert receipt.fence == job.fence
    now, rows = await queue.trace(job.id)
    assert now.status is (Status.SUCCEEDED if verb == "complete" else Status.CANCELLED)
    assert (rows[-1].fence, rows[-1].actor) == (job.fence, "worker:w1")
    await queue.verify()


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_worker_without_the_lease_changes_nothing(queue: TenantQueue, verb: str) -> None:
    job = await held(queue)
    before, _ = await queue.trace(job.id)
    rejection = await queue.refused(MAKERS[verb](job, fence=ANY_FENCE, worker="w2"))
    assert isinstance(rejection, LeaseLost)
    assert (await queue.trace(job.id))[0] == before
    unknown = await queue.refused(MAKERS[verb](job, fence=ANY_FENCE, id=NEVER))
    assert isinstance(unknown, NotFound)


@pytest.mark.parametrize("verb", MAKERS)
async def test_a_lost_lease_stays_lost_without_a_fence_too(queue: TenantQueue, verb: str) -> None:
    job = await queue.running(lease_seconds=5.0)
    queue.clock.advance(6)
    await queue.do(expire(job.id))
    assert isinstance(await queue.refused(MAKERS[verb](job, fence=ANY_FENCE)), LeaseLost)
    await queue.again(job, worker="w2")
    assert isinstance(await queue.refused(MAKERS[verb](job, fence=ANY_FENCE)), LeaseLost)


async def test_a_heartbeat_without_a_fence_uses_the_current_lease_of_the_worker(queue: TenantQueue) -> None:
    job = await held(queue)
    (reply,) = await queue.heartbeat(heartbeat(job, fence=ANY_FENCE, lease_seconds=90.0))
    assert (reply.lease_expires_at, reply.cancel_requested) == (queue.after(90), True)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job, fence=ANY_FENCE, worker="w2")), LeaseLost)
    queue.clock.advance(91)
    await queue.do(expire(job.id))
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job, fence=ANY_FENCE)), LeaseLost)


async def test_progress_requires_an_explicit_fence(queue: TenantQueue) -> None:
    job = await queue.running()
    reported = heartbeat(job, fence=ANY_FENCE, events=(Event(new_id(), Level.INFO, "half way"),))
    with pytest.raises(Invalid):
        await Engine(queue.store).leases.heartbeat(queue.tenant, reported)


def test_sql_takes_the_number_from_the_domain() -> None:
    assert functions().text.count(f".fence, {ANY_FENCE})") == 3
    written = [file.read_text() for file in (files("interlock.storage.postgres") / "functions").iterdir()]
    assert not [text for text in written if str(ANY_FENCE) in text]
