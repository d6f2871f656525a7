"""Claims of several workers may be merged: each gets its own jobs, and the result is that of separate claims."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from interlock.domain.job import Job, Rejected
from interlock.domain.policy import ClaimFilter
from interlock.errors import LeaseLost
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from tests.contract.builders import TenantQueue, ask, complete, new_job


class Watched:
    """A store that remembers who asked it together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[Sequence[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        self.asked.append(claimants)
        return await self._store.claim(tenant, ask, claimants=claimants)

    async def at_one_time(self, tenant: str, asks: Sequence[ClaimFilter]) -> list[list[Job]]:
        """The answers to asks that come in the same moment."""
        front = batched(cast(Store, self))
        return await asyncio.gather(*(front.claim(tenant, one) for one in asks))


async def test_each_of_several_workers_gets_its_own_job(queue: TenantQueue) -> None:
    ids = [await queue.add() for _ in range(3)]
    claimants = ["w1", "w2", "w3"]
    leased = await queue.store.claim(queue.tenant, ask(limit=3), claimants=claimants)
    assert {job.id for job in leased} == set(ids)
    assert {job.worker for job in leased} == set(claimants)
    for job in leased:
        (kept,) = await queue.store.get(queue.tenant, [job.id])
        assert kept is not None
        assert kept.worker == job.worker
        assert (await queue.history(job.id))[-1].actor == f"worker:{job.worker}"
    for job, other in zip(leased, [*leased[1:], leased[0]], strict=True):
        (refused,) = await queue.store.carry_out(queue.tenant, [complete(job)._replace(worker=other.worker or "")])
        assert isinstance(refused, Rejected)
        assert isinstance(refused.error, LeaseLost)
        (receipt,) = await queue.store.carry_out(queue.tenant, [complete(job)])
        assert not isinstance(receipt, Rejected)


@pytest.mark.parametrize("many", [3, 40])
async def test_the_first_of_several_workers_gets_the_best_job(queue: TenantQueue, many: int) -> None:
    jobs = [new_job(type=f"t{n % 4}", priority=n % 7) for n in range(many)]
    await queue.add_all([*jobs])
    claimants = [f"w{n}" for n in range(many)]
    leased = await queue.store.claim(queue.tenant, ask(limit=many), claimants=claimants)
    assert [job.id for job in leased] == [job.id for job in sorted(jobs, key=lambda job: -job.priority)]
    assert [job.worker for job in leased] == claimants


async def test_if_jobs_are_scarce_the_first_workers_get_them(queue: TenantQueue) -> None:
    for _ in range(2):
        await queue.add()
    leased = await queue.store.claim(queue.tenant, ask(limit=5), claimants=["w1", "w1", "w2", "w3", "w4"])
    assert [job.worker for job in leased] == ["w1", "w1"]
    assert await queue.store.claim(queue.tenant, ask(limit=2), claimants=["w1", "w2"]) == []


async def test_claims_of_different_workers_share_a_batch_and_each_gets_its_own_jobs(queue: TenantQueue) -> None:
    for _ in range(6):
        await queue.add()
    watched = Watched(queue.store)
    asks = [ask(worker="w1", limit=2), ask(worker="w2"), ask(worker="w3"), ask(worker="w1"), ask(worker="w4", limit=9)]
    answers = await watched.at_one_time(queue.tenant, asks)
    assert [len(jobs) for jobs in answers] == [2, 1, 1, 1, 1]
    assert [{job.worker for job in jobs} for jobs in answers] == [{"w1"}, {"w2"}, {"w3"}, {"w1"}, {"w4"}]
    assert len({job.id for jobs in answers for job in jobs}) == 6
    assert watched.asked == [["w1", "w1", "w2", "w3", "w1", *["w4"] * 9]]


async def test_different_filters_and_claims_with_an_id_are_not_merged(queue: TenantQueue) -> None:
    for type in ("work", "work", "play", "play"):
        await queue.add(type=type)
    watched = Watched(queue.store)
    asks = [
        ask(worker="w1", types=frozenset({"work"})),
        ask(worker="w2", types=frozenset({"play"})),
        ask(worker="w3", types=frozenset({"play"}), lease_seconds=30.0),
        ask(worker="w4", types=frozenset({"work"}), claim_id="mine"),
    ]
    answers = await watched.at_one_time(queue.tenant, asks)
    assert [[(job.type, job.worker) for job in jobs] for jobs in answers] == [
        [("work", "w1")],
        [("play", "w2")],
        [("play", "w3")],
        [("work", "w4")],
    ]
    assert watched.asked == [()] * 4


async def test_leases_and_deadlines_expired_by_a_claim_are_counted(queue: TenantQueue) -> None:
    before = queue.store.expired.copy()
    lost = await queue.running(lease_seconds=5.0)
    spent = await queue.running(lease_seconds=5.0, max_attempts=1)
    late = await queue.add(deadline=queue.clock.now + 5_000_000)
    queue.clock.advance(6)
    (again,) = await queue.store.claim(queue.tenant, ask(limit=5))
    assert again.id == lost.id
    reported = queue.store.expired - before
    assert reported == {("expire", "retry"): 1, ("expire", "dead_letter"): 1, ("pass_deadline", "cancelled"): 1}
    assert [(await queue.history(id))[-1].verb for id in (spent.id, late)] == ["expire", "pass_deadline"]
    await queue.store.claim(queue.tenant, ask(limit=5))
    assert queue.store.expired - before == reported
