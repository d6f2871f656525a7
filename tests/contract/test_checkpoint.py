"""The checkpoint: one value, compare-and-set on fence and number; it survives everything but its job."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import HeartbeatReply, Rejected
from interlock.errors import CheckpointConflict, LeaseLost, NotFound
from tests.contract.builders import NEVER, TenantQueue, complete, expire, fail, heartbeat, release, revoke, save


async def test_a_checkpoint_is_stored_and_returned(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    assert await queue.checkpoint(save(job, 5, '{"page": 3}')) == 5
    now = await queue.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.updated_at) == (5, '{"page": 3}', queue.clock.now)


async def test_a_checkpoint_adds_no_history_and_extends_no_lease(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.history(job.id)
    queue.clock.advance(1)
    await queue.checkpoint(save(job, 1))
    now = await queue.job(job.id)
    assert await queue.history(job.id) == before
    assert (now.version, now.lease_expires_at, now.heartbeat_at) == (job.version, job.lease_expires_at, None)
    await queue.verify()


async def test_a_newer_number_replaces_the_value(queue: TenantQueue) -> None:
    """G18."""
    job = await queue.running()
    for seq in (1, 2, 10):
        await queue.checkpoint(save(job, seq, str(seq)))
    now = await queue.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint) == (10, "10")


async def test_the_same_checkpoint_again_changes_nothing(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 2, '"x"'))
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert await queue.checkpoint(save(job, 2, '"x"')) == 2
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize(("seq", "data"), [(2, '"y"'), (1, '"x"'), (1, '"y"'), (-5, '"x"'), (2, '"x" ')])
async def test_an_old_or_equal_number_with_other_data_is_rejected(queue: TenantQueue, seq: int, data: str) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 2, '"x"'))
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    error = await queue.checkpoint_rejected(save(job, seq, data))
    assert isinstance(error, CheckpointConflict)
    assert (error.seq, error.current) == (seq, 2)
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}])
async def test_a_checkpoint_needs_both_the_fence_and_the_worker(queue: TenantQueue, wrong: dict[str, Any]) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    assert isinstance(await queue.checkpoint_rejected(save(job, 1, **wrong)), LeaseLost)
    assert await queue.trace(job.id) == before


async def test_a_stale_worker_cannot_overwrite_the_progress_of_the_next(queue: TenantQueue) -> None:
    stale = await queue.running(lease_seconds=10.0)
    await queue.checkpoint(save(stale, 1, '"old"'))
    queue.clock.advance(10)
    current = await queue.again(stale)
    await queue.checkpoint(save(current, 2, '"new"'))
    assert isinstance(await queue.checkpoint_rejected(save(stale, 3, '"stale"')), LeaseLost)
    assert isinstance(await queue.checkpoint_rejected(save(stale, 2, '"new"')), LeaseLost)
    assert (await queue.job(stale.id)).checkpoint == '"new"'


@pytest.mark.parametrize("end", ["fail", "release", "expire", "revoke"])
async def test_a_checkpoint_survives_until_the_next_run(queue: TenantQueue, end: str) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 7, "[1,2]"))
    if end == "fail":
        await queue.do(fail(job, retry_after_seconds=1.0))
    elif end == "release":
        await queue.do(release(job))
    elif end == "revoke":
        await queue.do(revoke(job.id))
    queue.clock.advance(60)
    if end == "expire":
        await queue.do(expire(job.id))
    again = await queue.again(job)
    assert (again.checkpoint_seq, again.checkpoint) == (7, "[1,2]")
    assert await queue.checkpoint(save(again, 8)) == 8


async def test_a_checkpoint_of_a_terminal_job_is_still_returned(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 1, '"last"'))
    await queue.do(complete(job))
    assert (await queue.job(job.id)).checkpoint == '"last"'


async def test_a_heartbeat_may_include_a_checkpoint(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    await queue.heartbeat(heartbeat(job, checkpoint=save(job, 3, '"beat"')))
    now = await queue.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.heartbeat_at) == (3, '"beat"', queue.clock.now)


async def test_a_heartbeat_with_a_rejected_checkpoint_is_rejected_as_a_whole(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 5))
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    error = await queue.heartbeat_rejected(heartbeat(job, checkpoint=save(job, 4)))
    assert isinstance(error, CheckpointConflict)
    assert await queue.trace(job.id) == before


async def test_a_repeated_heartbeat_with_the_same_checkpoint_succeeds(queue: TenantQueue) -> None:
    job = await queue.running()
    for _ in range(2):
        await queue.heartbeat(heartbeat(job, checkpoint=save(job, 1, '"x"')))
    assert (await queue.job(job.id)).checkpoint_seq == 1


async def test_each_checkpoint_of_a_batch_gets_its_own_result(queue: TenantQueue, rival: TenantQueue) -> None:
    a, b = await queue.running(type="a"), await queue.running(type="b")
    theirs = await rival.running()
    answers = await queue.store.checkpoint(
        queue.tenant, [save(a, 1), save(b, 4), save(theirs, 1), save(a, 2), save(b, 3), save(a, 1, id=NEVER)]
    )
    kinds = [type(x.error) if isinstance(x, Rejected) else x for x in answers]
    assert kinds == [1, 4, NotFound, 2, CheckpointConflict, NotFound]
    assert (await queue.job(a.id)).checkpoint_seq == 2
    assert (await rival.job(theirs.id)).checkpoint is None


async def test_heartbeats_for_one_job_in_one_batch_are_applied_in_order(queue: TenantQueue) -> None:
    job = await queue.running()
    heartbeats = [heartbeat(job, checkpoint=save(job, seq, str(seq))) for seq in (1, 3, 2)]
    first, second, third = await queue.store.heartbeat(queue.tenant, heartbeats)
    assert isinstance(first, HeartbeatReply)
    assert isinstance(second, HeartbeatReply)
    assert isinstance(third, Rejected)
    assert (await queue.job(job.id)).checkpoint == "3"
