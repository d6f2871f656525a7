"""Moves that were interrupted or called off, and what the next one makes of them."""

from __future__ import annotations

import pytest

from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus
from interlock.domain.job import Filter, Job
from interlock.errors import Conflict
from interlock.storage.shards.tenant_copy import Copier
from tests.contract.approvals import command, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import Desk, complete, fail
from tests.contract.moves.moving import Stop, home_of, move
from tests.contract.test_prune import prune


@pytest.mark.parametrize(
    "point", ["noted", "leaving", "copied job", "step", "counted", "arrived", "gone", "switched", "cleared job"]
)
async def test_a_move_that_was_interrupted_is_finished_by_the_next(
    remote: Desk, owners: dict[str, str], point: str
) -> None:
    held, *ended = [await remote.running() for _ in range(4)]
    for job in ended:
        await remote.do(complete(job))
    with pytest.raises(Stop):
        await move(owners, remote, "b", until=point)
    if point not in ("gone", "switched", "cleared job"):
        # Until the old shard lets go, the tenant lives there as if nothing had happened.
        assert await home_of(remote) == "a"
        await remote.do(fail(held, retryable=False))
        await remote.add()
    await move(owners, remote, "b")
    assert await home_of(remote) == "b"
    assert len(await remote.store.find(remote.tenant, Filter())) == 4 + (
        point not in ("gone", "switched", "cleared job")
    )
    await remote.verify()
    assert (await move(owners, remote, "a"))[1:3] == ("b", "a")
    await remote.verify()


@pytest.mark.parametrize("point", ["noted", "step", "arrived", "gone"])
async def test_a_move_that_was_begun_can_be_called_off_until_the_tenant_has_left(
    remote: Desk, owners: dict[str, str], point: str
) -> None:
    held, *ended = [await remote.running() for _ in range(4)]
    for job in ended:
        await remote.do(complete(job))
    with pytest.raises(Stop):
        await move(owners, remote, "b", until=point)
    if point == "gone":
        with pytest.raises(Conflict, match="has left shard 'a' already"):
            await move(owners, remote, "a")
        await move(owners, remote, "b")
    else:
        await move(owners, remote, "a")
        assert await home_of(remote) == "a"
        remote.clock.advance(8 * 86_400)
        assert (await prune(remote)).deleted == 3
        await move(owners, remote, "b")
    assert await home_of(remote) == "b"
    assert await remote.job(held.id)
    await remote.verify()


async def asked_and_ended(remote: Desk) -> Job:
    """A job that somebody had to approve, and that has left a file behind."""
    job = await remote.running()
    await show(remote, file(job))
    return await approved_and_ended(remote, await waiting(remote, job=job))


async def approved_and_ended(remote: Desk, asking: tuple[Job, Approval]) -> Job:
    await decided(remote, command(asking[1]))
    (job,) = await remote.claim(limit=1)
    assert job.id == asking[0].id
    await remote.do(complete(job))
    return job


async def test_a_job_that_ends_while_it_is_copied_has_its_gate_whoever_ends_the_move(
    remote: Desk, owners: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = await waiting(remote)
    ended: list[Job] = []
    move_deltas = Copier.move_deltas

    async def end_first(copier: Copier) -> list[str]:
        if not ended:
            ended.append(await approved_and_ended(remote, asking))
        return await move_deltas(copier)

    monkeypatch.setattr(Copier, "move_deltas", end_first)
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="caught up")
    assert ended
    await move(owners, remote, "b")
    (approval,) = await remote.store.approvals(remote.tenant, [asking[1].id])
    assert approval is not None
    assert approval.status is ApprovalStatus.APPROVED


@pytest.mark.parametrize("point", ["not expected", "staying", "cleared approval", "cleared job", "cleared job_history"])
async def test_a_move_that_was_half_called_off_can_still_be_made(
    remote: Desk, owners: dict[str, str], point: str
) -> None:
    job = await asked_and_ended(remote)
    await remote.do(fail(await remote.running(), retryable=False))
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="arrived" if point == "not expected" else "caught up")
    before = (await listed(remote, job), await remote.store.find_approvals(remote.tenant, ApprovalFilter()))
    with pytest.raises(Stop):
        await move(owners, remote, "a", until=point)
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="leaving" if point == "not expected" else "cleared job")
    await move(owners, remote, "b")
    assert (await listed(remote, job), await remote.store.find_approvals(remote.tenant, ApprovalFilter())) == before
    await remote.verify()


async def test_what_is_forgotten_of_an_ended_job_between_two_attempts_stays_forgotten(
    remote: Desk, owners: dict[str, str]
) -> None:
    forgotten, other = await asked_and_ended(remote), await asked_and_ended(remote)
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="caught up")
    assert await remote.store.forget_artifacts(remote.tenant, [forgotten.id]) == 1
    await move(owners, remote, "b")
    assert (len(await listed(remote, forgotten)), len(await listed(remote, other))) == (0, 1)
    await remote.verify()
