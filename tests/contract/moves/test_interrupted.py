"""Moves that were interrupted or called off, and what the next one makes of them."""

from __future__ import annotations

import pytest

from interlock.domain.approval import Approval, GateFilter, GateStatus
from interlock.domain.job import Filter, Job
from interlock.errors import Conflict
from interlock.storage.shards.tenant_copy import Copier
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import Desk, complete, fail
from tests.contract.moves.moving import Stop, home_of, move
from tests.contract.test_prune import prune


@pytest.mark.parametrize(
    "point", ["noted", "leaving", "copied job", "step", "counted", "arrived", "gone", "switched", "cleared job"]
)
async def test_a_move_that_was_interrupted_is_finished_by_the_next(
    desk: Desk, owners: dict[str, str], point: str
) -> None:
    held, *ended = [await desk.running() for _ in range(4)]
    for job in ended:
        await desk.do(complete(job))
    with pytest.raises(Stop):
        await move(owners, desk, "b", until=point)
    if point not in ("gone", "switched", "cleared job"):
        # Until the old shard lets go, the tenant lives there as if nothing had happened.
        assert await home_of(desk) == "a"
        await desk.do(fail(held, retryable=False))
        await desk.add()
    await move(owners, desk, "b")
    assert await home_of(desk) == "b"
    assert len(await desk.store.find(desk.tenant, Filter())) == 4 + (point not in ("gone", "switched", "cleared job"))
    await desk.verify()
    assert (await move(owners, desk, "a"))[1:3] == ("b", "a")
    await desk.verify()


@pytest.mark.parametrize("point", ["noted", "step", "arrived", "gone"])
async def test_a_move_that_was_begun_can_be_called_off_until_the_tenant_has_left(
    desk: Desk, owners: dict[str, str], point: str
) -> None:
    held, *ended = [await desk.running() for _ in range(4)]
    for job in ended:
        await desk.do(complete(job))
    with pytest.raises(Stop):
        await move(owners, desk, "b", until=point)
    if point == "gone":
        with pytest.raises(Conflict, match="has left shard 'a' already"):
            await move(owners, desk, "a")
        await move(owners, desk, "b")
    else:
        await move(owners, desk, "a")
        assert await home_of(desk) == "a"
        desk.clock.advance(8 * 86_400)
        assert (await prune(desk)).deleted == 3
        await move(owners, desk, "b")
    assert await home_of(desk) == "b"
    assert await desk.job(held.id)
    await desk.verify()


async def asked_and_ended(desk: Desk) -> Job:
    """A job that somebody had to approve, and that has left a file behind."""
    job = await desk.running()
    await show(desk, file(job))
    return await approved_and_ended(desk, await waiting(desk, job=job))


async def approved_and_ended(desk: Desk, asking: tuple[Job, Approval]) -> Job:
    await decided(desk, ballot(asking[1]))
    (job,) = await desk.claim(limit=1)
    assert job.id == asking[0].id
    await desk.do(complete(job))
    return job


async def test_a_job_that_ends_while_it_is_copied_has_its_gate_whoever_ends_the_move(
    desk: Desk, owners: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = await waiting(desk)
    ended: list[Job] = []
    stragglers = Copier.stragglers

    async def end_first(copier: Copier) -> list[str]:
        if not ended:
            ended.append(await approved_and_ended(desk, asking))
        return await stragglers(copier)

    monkeypatch.setattr(Copier, "stragglers", end_first)
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="caught up")
    assert ended
    await move(owners, desk, "b")
    (gate,) = await desk.store.approvals(desk.tenant, [asking[1].id])
    assert gate is not None
    assert gate.status is GateStatus.APPROVED


@pytest.mark.parametrize("point", ["not expected", "staying", "cleared approval", "cleared job", "cleared job_history"])
async def test_a_move_that_was_half_called_off_can_still_be_made(
    desk: Desk, owners: dict[str, str], point: str
) -> None:
    job = await asked_and_ended(desk)
    await desk.do(fail(await desk.running(), retryable=False))
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="arrived" if point == "not expected" else "caught up")
    before = (await listed(desk, job), await desk.store.find_approvals(desk.tenant, GateFilter()))
    with pytest.raises(Stop):
        await move(owners, desk, "a", until=point)
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="leaving" if point == "not expected" else "cleared job")
    await move(owners, desk, "b")
    assert (await listed(desk, job), await desk.store.find_approvals(desk.tenant, GateFilter())) == before
    await desk.verify()


async def test_what_is_forgotten_of_an_ended_job_between_two_attempts_stays_forgotten(
    desk: Desk, owners: dict[str, str]
) -> None:
    forgotten, other = await asked_and_ended(desk), await asked_and_ended(desk)
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="caught up")
    assert await desk.store.forget_artifacts(desk.tenant, [forgotten.id]) == 1
    await move(owners, desk, "b")
    assert (len(await listed(desk, forgotten)), len(await listed(desk, other))) == (0, 1)
    await desk.verify()
