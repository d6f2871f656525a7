"""The checkpoint: one value, compare-and-set on fence and number; it survives everything but its job."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import HeartbeatReply, Rejected
from interlock.errors import CheckpointConflict, LeaseLost, NotFound
from tests.contract.builders import NEVER, Desk, complete, expire, fail, heartbeat, release, revoke, save


async def test_a_checkpoint_is_kept_and_shown(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    assert await remote.checkpoint(save(job, 5, '{"page": 3}')) == 5
    now = await remote.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.updated_at) == (5, '{"page": 3}', remote.clock.now)


async def test_a_checkpoint_writes_no_history_and_moves_no_lease(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.history(job.id)
    remote.clock.advance(1)
    await remote.checkpoint(save(job, 1))
    now = await remote.job(job.id)
    assert await remote.history(job.id) == before
    assert (now.version, now.lease_expires_at, now.heartbeat_at) == (job.version, job.lease_expires_at, None)
    await remote.verify()


async def test_a_newer_number_replaces_the_value(remote: Desk) -> None:
    """G18."""
    job = await remote.running()
    for seq in (1, 2, 10):
        await remote.checkpoint(save(job, seq, str(seq)))
    now = await remote.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint) == (10, "10")


async def test_the_same_checkpoint_again_is_fine_and_changes_nothing(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 2, '"x"'))
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert await remote.checkpoint(save(job, 2, '"x"')) == 2
    assert await remote.trace(job.id) == before


@pytest.mark.parametrize(("seq", "data"), [(2, '"y"'), (1, '"x"'), (1, '"y"'), (-5, '"x"'), (2, '"x" ')])
async def test_an_old_or_equal_number_with_other_data_is_refused(remote: Desk, seq: int, data: str) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 2, '"x"'))
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    error = await remote.checkpoint_refused(save(job, seq, data))
    assert isinstance(error, CheckpointConflict)
    assert (error.seq, error.current) == (seq, 2)
    assert await remote.trace(job.id) == before


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}])
async def test_a_checkpoint_needs_both_the_fence_and_the_worker(remote: Desk, wrong: dict[str, Any]) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    assert isinstance(await remote.checkpoint_refused(save(job, 1, **wrong)), LeaseLost)
    assert await remote.trace(job.id) == before


async def test_a_stale_worker_cannot_overwrite_the_progress_of_the_next(remote: Desk) -> None:
    stale = await remote.running(lease_seconds=10.0)
    await remote.checkpoint(save(stale, 1, '"old"'))
    remote.clock.advance(10)
    current = await remote.again(stale)
    await remote.checkpoint(save(current, 2, '"new"'))
    assert isinstance(await remote.checkpoint_refused(save(stale, 3, '"stale"')), LeaseLost)
    assert isinstance(await remote.checkpoint_refused(save(stale, 2, '"new"')), LeaseLost)
    assert (await remote.job(stale.id)).checkpoint == '"new"'


@pytest.mark.parametrize("end", ["fail", "release", "expire", "revoke"])
async def test_a_checkpoint_survives_until_the_next_run(remote: Desk, end: str) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 7, "[1,2]"))
    if end == "fail":
        await remote.do(fail(job, retry_after_seconds=1.0))
    elif end == "release":
        await remote.do(release(job))
    elif end == "revoke":
        await remote.do(revoke(job.id))
    remote.clock.advance(60)
    if end == "expire":
        await remote.do(expire(job.id))
    again = await remote.again(job)
    assert (again.checkpoint_seq, again.checkpoint) == (7, "[1,2]")
    assert await remote.checkpoint(save(again, 8)) == 8


async def test_a_checkpoint_is_still_shown_when_the_job_has_ended(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 1, '"last"'))
    await remote.do(complete(job))
    assert (await remote.job(job.id)).checkpoint == '"last"'


async def test_a_heartbeat_may_carry_a_checkpoint(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    await remote.heartbeat(heartbeat(job, checkpoint=save(job, 3, '"beat"')))
    now = await remote.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.heartbeat_at) == (3, '"beat"', remote.clock.now)


async def test_a_heartbeat_whose_checkpoint_is_refused_is_refused_as_a_whole(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 5))
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    error = await remote.heartbeat_refused(heartbeat(job, checkpoint=save(job, 4)))
    assert isinstance(error, CheckpointConflict)
    assert await remote.trace(job.id) == before


async def test_a_repeated_heartbeat_with_the_same_checkpoint_is_fine(remote: Desk) -> None:
    job = await remote.running()
    for _ in range(2):
        await remote.heartbeat(heartbeat(job, checkpoint=save(job, 1, '"x"')))
    assert (await remote.job(job.id)).checkpoint_seq == 1


async def test_many_checkpoints_are_answered_each_on_its_own(remote: Desk, rival: Desk) -> None:
    a, b = await remote.running(type="a"), await remote.running(type="b")
    theirs = await rival.running()
    answers = await remote.store.checkpoint(
        remote.tenant, [save(a, 1), save(b, 4), save(theirs, 1), save(a, 2), save(b, 3), save(a, 1, id=NEVER)]
    )
    kinds = [type(x.error) if isinstance(x, Rejected) else x for x in answers]
    assert kinds == [1, 4, NotFound, 2, CheckpointConflict, NotFound]
    assert (await remote.job(a.id)).checkpoint_seq == 2
    assert (await rival.job(theirs.id)).checkpoint is None


async def test_beats_for_one_job_in_one_batch_follow_each_other(remote: Desk) -> None:
    job = await remote.running()
    heartbeats = [heartbeat(job, checkpoint=save(job, seq, str(seq))) for seq in (1, 3, 2)]
    first, second, third = await remote.store.heartbeat(remote.tenant, heartbeats)
    assert isinstance(first, HeartbeatReply)
    assert isinstance(second, HeartbeatReply)
    assert isinstance(third, Rejected)
    assert (await remote.job(job.id)).checkpoint == "3"
