"""Where a job is found follows from what it is now."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location, Status
from tests.contract.builders import TenantQueue, complete, release
from tests.contract.connections import SqlConnection, job_in

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
async def test_each_status_has_its_location(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status)
    assert job.location(await queue.store.now()) is BATCH_SIZE[status]


async def test_a_job_due_later_is_delayed_until_its_time(queue: TenantQueue) -> None:
    job = await queue.job(await queue.add(delay_seconds=10.0))
    assert job.location(queue.clock.now) is Location.DELAYED
    queue.clock.advance(10)
    assert job.location(await queue.store.now()) is Location.READY


async def test_a_retry_is_ready_once_due(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await job_in(queue, sql, Status.RETRY)
    queue.clock.advance(5)
    assert job.location(await queue.store.now()) is Location.READY


async def test_a_job_that_waits_for_children_is_blocked(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child.id,)))
    assert (await queue.job(parent.id)).location(queue.clock.now) is Location.BLOCKED
    await queue.do(complete(child))
    assert (await queue.job(parent.id)).location(queue.clock.now) is Location.READY
