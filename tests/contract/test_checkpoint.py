"""The checkpoint: one value, compare-and-set on fence and number; it survives everything but its job."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Pulse, Refused
from interlock.errors import CheckpointConflict, LeaseLost, NotFound
from tests.contract.builders import NEVER, Desk, beat, complete, expire, fail, release, revoke, save


async def test_a_checkpoint_is_kept_and_shown(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    assert await desk.checkpoint(save(job, 5, '{"page": 3}')) == 5
    now = await desk.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.updated_at) == (5, '{"page": 3}', desk.clock.now)


async def test_a_checkpoint_writes_no_history_and_moves_no_lease(desk: Desk) -> None:
    job = await desk.running()
    before = await desk.history(job.id)
    desk.clock.advance(1)
    await desk.checkpoint(save(job, 1))
    now = await desk.job(job.id)
    assert await desk.history(job.id) == before
    assert (now.version, now.lease_expires_at, now.heartbeat_at) == (job.version, job.lease_expires_at, None)
    await desk.verify()


async def test_a_newer_number_replaces_the_value(desk: Desk) -> None:
    """G18."""
    job = await desk.running()
    for seq in (1, 2, 10):
        await desk.checkpoint(save(job, seq, str(seq)))
    now = await desk.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint) == (10, "10")


async def test_the_same_checkpoint_again_is_fine_and_changes_nothing(desk: Desk) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 2, '"x"'))
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    assert await desk.checkpoint(save(job, 2, '"x"')) == 2
    assert await desk.trace(job.id) == before


@pytest.mark.parametrize(("seq", "data"), [(2, '"y"'), (1, '"x"'), (1, '"y"'), (-5, '"x"'), (2, '"x" ')])
async def test_an_old_or_equal_number_with_other_data_is_refused(desk: Desk, seq: int, data: str) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 2, '"x"'))
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    error = await desk.checkpoint_refused(save(job, seq, data))
    assert isinstance(error, CheckpointConflict)
    assert (error.seq, error.current) == (seq, 2)
    assert await desk.trace(job.id) == before


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}])
async def test_a_checkpoint_needs_both_the_fence_and_the_worker(desk: Desk, wrong: dict[str, Any]) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    assert isinstance(await desk.checkpoint_refused(save(job, 1, **wrong)), LeaseLost)
    assert await desk.trace(job.id) == before


async def test_a_stale_worker_cannot_overwrite_the_progress_of_the_next(desk: Desk) -> None:
    stale = await desk.running(lease_seconds=10.0)
    await desk.checkpoint(save(stale, 1, '"old"'))
    desk.clock.advance(10)
    current = await desk.again(stale)
    await desk.checkpoint(save(current, 2, '"new"'))
    assert isinstance(await desk.checkpoint_refused(save(stale, 3, '"stale"')), LeaseLost)
    assert isinstance(await desk.checkpoint_refused(save(stale, 2, '"new"')), LeaseLost)
    assert (await desk.job(stale.id)).checkpoint == '"new"'


@pytest.mark.parametrize("end", ["fail", "release", "expire", "revoke"])
async def test_a_checkpoint_survives_until_the_next_run(desk: Desk, end: str) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 7, "[1,2]"))
    if end == "fail":
        await desk.do(fail(job, retry_after_seconds=1.0))
    elif end == "release":
        await desk.do(release(job))
    elif end == "revoke":
        await desk.do(revoke(job.id))
    desk.clock.advance(60)
    if end == "expire":
        await desk.do(expire(job.id))
    again = await desk.again(job)
    assert (again.checkpoint_seq, again.checkpoint) == (7, "[1,2]")
    assert await desk.checkpoint(save(again, 8)) == 8


async def test_a_checkpoint_is_still_shown_when_the_job_has_ended(desk: Desk) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 1, '"last"'))
    await desk.do(complete(job))
    assert (await desk.job(job.id)).checkpoint == '"last"'


async def test_a_heartbeat_may_carry_a_checkpoint(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    await desk.heartbeat(beat(job, checkpoint=save(job, 3, '"beat"')))
    now = await desk.job(job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.heartbeat_at) == (3, '"beat"', desk.clock.now)


async def test_a_heartbeat_whose_checkpoint_is_refused_is_refused_as_a_whole(desk: Desk) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 5))
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    error = await desk.heartbeat_refused(beat(job, checkpoint=save(job, 4)))
    assert isinstance(error, CheckpointConflict)
    assert await desk.trace(job.id) == before


async def test_a_repeated_heartbeat_with_the_same_checkpoint_is_fine(desk: Desk) -> None:
    job = await desk.running()
    for _ in range(2):
        await desk.heartbeat(beat(job, checkpoint=save(job, 1, '"x"')))
    assert (await desk.job(job.id)).checkpoint_seq == 1


async def test_many_checkpoints_are_answered_each_on_its_own(desk: Desk, rival: Desk) -> None:
    a, b = await desk.running(type="a"), await desk.running(type="b")
    theirs = await rival.running()
    answers = await desk.store.checkpoint(
        desk.tenant, [save(a, 1), save(b, 4), save(theirs, 1), save(a, 2), save(b, 3), save(a, 1, id=NEVER)]
    )
    kinds = [type(x.error) if isinstance(x, Refused) else x for x in answers]
    assert kinds == [1, 4, NotFound, 2, CheckpointConflict, NotFound]
    assert (await desk.job(a.id)).checkpoint_seq == 2
    assert (await rival.job(theirs.id)).checkpoint is None


async def test_beats_for_one_job_in_one_batch_follow_each_other(desk: Desk) -> None:
    job = await desk.running()
    beats = [beat(job, checkpoint=save(job, seq, str(seq))) for seq in (1, 3, 2)]
    first, second, third = await desk.store.heartbeat(desk.tenant, beats)
    assert isinstance(first, Pulse)
    assert isinstance(second, Pulse)
    assert isinstance(third, Refused)
    assert (await desk.job(job.id)).checkpoint == "3"
