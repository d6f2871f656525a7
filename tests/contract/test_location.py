"""Where a job is found follows from what it is now."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location, Status
from tests.contract.builders import Desk, complete, release
from tests.contract.connections import Door, job_in

AT_ONCE = {
    Status.QUEUED: Location.READY,
    Status.RETRY: Location.DELAYED,
    Status.WAITING_FOR_APPROVAL: Location.BLOCKED,
    Status.RUNNING: Location.IN_PROGRESS,
    Status.SUCCEEDED: Location.NONE,
    Status.FAILED: Location.NONE,
    Status.CANCELLED: Location.NONE,
    Status.DEAD_LETTER: Location.DEAD_LETTER,
}


@pytest.mark.parametrize("status", Status)
async def test_each_status_has_its_location(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status)
    assert job.location(await desk.store.now()) is AT_ONCE[status]


async def test_a_job_due_later_is_delayed_until_its_time(desk: Desk) -> None:
    job = await desk.job(await desk.add(delay_seconds=10.0))
    assert job.location(desk.clock.now) is Location.DELAYED
    desk.clock.advance(10)
    assert job.location(await desk.store.now()) is Location.READY


async def test_a_retry_is_ready_when_its_time_has_come(desk: Desk, door: Door) -> None:
    job = await job_in(desk, door, Status.RETRY)
    desk.clock.advance(5)
    assert job.location(await desk.store.now()) is Location.READY


async def test_a_job_that_waits_for_children_is_blocked(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child.id,)))
    assert (await desk.job(parent.id)).location(desk.clock.now) is Location.BLOCKED
    await desk.do(complete(child))
    assert (await desk.job(parent.id)).location(desk.clock.now) is Location.READY
