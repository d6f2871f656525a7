"""Where a job is found follows from what it is now."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location, Status
from tests.contract.builders import Desk, complete, release
from tests.contract.connections import Door, job_in

BATCH_SIZE = {
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
async def test_each_status_has_its_location(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    assert job.location(await remote.store.now()) is BATCH_SIZE[status]


async def test_a_job_due_later_is_delayed_until_its_time(remote: Desk) -> None:
    job = await remote.job(await remote.add(delay_seconds=10.0))
    assert job.location(remote.clock.now) is Location.DELAYED
    remote.clock.advance(10)
    assert job.location(await remote.store.now()) is Location.READY


async def test_a_retry_is_ready_when_its_time_has_come(remote: Desk, adapter: Door) -> None:
    job = await job_in(remote, adapter, Status.RETRY)
    remote.clock.advance(5)
    assert job.location(await remote.store.now()) is Location.READY


async def test_a_job_that_waits_for_children_is_blocked(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child.id,)))
    assert (await remote.job(parent.id)).location(remote.clock.now) is Location.BLOCKED
    await remote.do(complete(child))
    assert (await remote.job(parent.id)).location(remote.clock.now) is Location.READY
