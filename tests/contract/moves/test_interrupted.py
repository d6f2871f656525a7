"""Moves that were interrupted or called off, and what the next one makes of them."""

from __future__ import annotations

import pytest

from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus
from interlock.domain.job import Filter, Job
from interlock.errors import Conflict
from interlock.storage.shards.tenant_copy import Copier
from tests.contract.approvals import command, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import TenantQueue, complete, fail
from tests.contract.moves.moving import Stop, home_of, move
from tests.contract.test_prune import prune


@pytest.mark.parametrize(
    "point", ["noted", "leaving", "copied job", "step", "counted", "arrived", "gone", "switched", "cleared job"]
)
async def test_an_interrupted_move_is_finished_by_the_next(
    queue: TenantQueue, owners: dict[str, str], point: str
) -> None:
    held, *ended = [await queue.running() for _ in range(4)]
    for job in ended:
        await queue.do(complete(job))
    with pytest.raises(Stop):
        await move(owners, queue, "b", until=point)
    if point not in ("gone", "switched", "cleared job"):
        # Until the old shard lets go, the tenant lives there as if nothing had happened.
        assert await home_of(queue) == "a"
        await queue.do(fail(held, retryable=False))
        await queue.add()
    await move(owners, queue, "b")
    assert await home_of(queue) == "b"
    assert len(await queue.store.find(queue.tenant, Filter())) == 4 + (point not in ("gone", "switched", "cleared job"))
    await queue.verify()
    assert (await move(owners, queue, "a"))[1:3] == ("b", "a")
    await queue.verify()


@pytest.mark.parametrize("point", ["noted", "step", "arrived", "gone"])
async def test_a_move_can_be_aborted_until_the_tenant_has_left(
    queue: TenantQueue, owners: dict[str, str], point: str
) -> None:
    held, *ended = [await queue.running() for _ in range(4)]
    for job in ended:
        await queue.do(complete(job))
    with pytest.raises(Stop):
        await move(owners, queue, "b", until=point)
    if point == "gone":
        with pytest.raises(Conflict, match="has left shard 'a' already"):
            await move(owners, queue, "a")
        await move(owners, queue, "b")
    else:
        await move(owners, queue, "a")
        assert await home_of(queue) == "a"
        queue.clock.advance(8 * 86_400)
        assert (await prune(queue)).deleted == 3
        await move(owners, queue, "b")
    assert await home_of(queue) == "b"
    assert await queue.job(held.id)
    await queue.verify()


async def asked_and_ended(queue: TenantQueue) -> Job:
    """A job that needed an approval, and that has an artifact."""
    job = await queue.running()
    await show(queue, file(job))
    return await approved_and_ended(queue, await waiting(queue, job=job))


async def approved_and_ended(queue: TenantQueue, asking: tuple[Job, Approval]) -> Job:
    await decided(queue, command(asking[1]))
    (job,) = await queue.claim(limit=1)
    assert job.id == asking[0].id
    await queue.do(complete(job))
    return job


async def test_a_job_that_ends_during_the_copy_keeps_its_approval(
    queue: TenantQueue, owners: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = await waiting(queue)
    ended: list[Job] = []
    move_deltas = Copier.move_deltas

    async def end_first(copier: Copier) -> list[str]:
        if not ended:
            ended.append(await approved_and_ended(queue, asking))
        return await move_deltas(copier)

    monkeypatch.setattr(Copier, "move_deltas", end_first)
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="caught up")
    assert ended
    await move(owners, queue, "b")
    (approval,) = await queue.store.approvals.get(queue.tenant, [asking[1].id])
    assert approval is not None
    assert approval.status is ApprovalStatus.APPROVED


@pytest.mark.parametrize("point", ["not expected", "staying", "cleared approval", "cleared job", "cleared job_history"])
async def test_a_half_aborted_move_can_be_resumed(queue: TenantQueue, owners: dict[str, str], point: str) -> None:
    job = await asked_and_ended(queue)
    await queue.do(fail(await queue.running(), retryable=False))
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="arrived" if point == "not expected" else "caught up")
    before = (await listed(queue, job), await queue.store.approvals.find(queue.tenant, ApprovalFilter()))
    with pytest.raises(Stop):
        await move(owners, queue, "a", until=point)
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="leaving" if point == "not expected" else "cleared job")
    await move(owners, queue, "b")
    assert (await listed(queue, job), await queue.store.approvals.find(queue.tenant, ApprovalFilter())) == before
    await queue.verify()


async def test_rows_pruned_between_two_attempts_stay_pruned(queue: TenantQueue, owners: dict[str, str]) -> None:
    forgotten, other = await asked_and_ended(queue), await asked_and_ended(queue)
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="caught up")
    assert await queue.store.artifacts.forget(queue.tenant, [forgotten.id]) == 1
    await move(owners, queue, "b")
    assert (len(await listed(queue, forgotten)), len(await listed(queue, other))) == (0, 1)
    await queue.verify()
