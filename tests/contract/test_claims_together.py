"""Several workers may ask as one: each is granted jobs of its own, and nobody can tell the difference afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from interlock.domain.job import Job, Refused
from interlock.domain.policy import ClaimAsk
from interlock.errors import LeaseLost
from interlock.storage.batching import merged
from interlock.storage.contract import Store
from tests.contract.builders import Desk, ask, complete, new_job


class Watched:
    """A store that remembers who asked it together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[Sequence[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, tenant: str, ask: ClaimAsk, *, takers: Sequence[str] = ()) -> list[Job]:
        self.asked.append(takers)
        return await self._store.claim(tenant, ask, takers=takers)

    async def at_one_time(self, tenant: str, asks: Sequence[ClaimAsk]) -> list[list[Job]]:
        """The answers to asks that come in the same moment."""
        front = merged(cast(Store, self))
        return await asyncio.gather(*(front.claim(tenant, one) for one in asks))


async def test_each_of_several_takers_holds_a_job_of_its_own(desk: Desk) -> None:
    ids = [await desk.add() for _ in range(3)]
    takers = ["w1", "w2", "w3"]
    granted = await desk.store.claim(desk.tenant, ask(limit=3), takers=takers)
    assert {job.id for job in granted} == set(ids)
    assert {job.worker for job in granted} == set(takers)
    for job in granted:
        (kept,) = await desk.store.get(desk.tenant, [job.id])
        assert kept is not None
        assert kept.worker == job.worker
        assert (await desk.history(job.id))[-1].actor == f"worker:{job.worker}"
    for job, other in zip(granted, [*granted[1:], granted[0]], strict=True):
        (refused,) = await desk.store.carry_out(desk.tenant, [complete(job)._replace(worker=other.worker or "")])
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, LeaseLost)
        (receipt,) = await desk.store.carry_out(desk.tenant, [complete(job)])
        assert not isinstance(receipt, Refused)


@pytest.mark.parametrize("many", [3, 40])
async def test_the_first_of_several_takers_gets_the_best_job(desk: Desk, many: int) -> None:
    jobs = [new_job(type=f"t{n % 4}", priority=n % 7) for n in range(many)]
    await desk.add_all([*jobs])
    takers = [f"w{n}" for n in range(many)]
    granted = await desk.store.claim(desk.tenant, ask(limit=many), takers=takers)
    assert [job.id for job in granted] == [job.id for job in sorted(jobs, key=lambda job: -job.priority)]
    assert [job.worker for job in granted] == takers


async def test_where_jobs_are_few_the_first_takers_get_them(desk: Desk) -> None:
    for _ in range(2):
        await desk.add()
    granted = await desk.store.claim(desk.tenant, ask(limit=5), takers=["w1", "w1", "w2", "w3", "w4"])
    assert [job.worker for job in granted] == ["w1", "w1"]
    assert await desk.store.claim(desk.tenant, ask(limit=2), takers=["w1", "w2"]) == []


async def test_claims_of_different_workers_share_a_call_and_each_gets_its_own(desk: Desk) -> None:
    for _ in range(6):
        await desk.add()
    watched = Watched(desk.store)
    asks = [ask(worker="w1", limit=2), ask(worker="w2"), ask(worker="w3"), ask(worker="w1"), ask(worker="w4", limit=9)]
    answers = await watched.at_one_time(desk.tenant, asks)
    assert [len(jobs) for jobs in answers] == [2, 1, 1, 1, 1]
    assert [{job.worker for job in jobs} for jobs in answers] == [{"w1"}, {"w2"}, {"w3"}, {"w1"}, {"w4"}]
    assert len({job.id for jobs in answers for job in jobs}) == 6
    assert watched.asked == [["w1", "w1", "w2", "w3", "w1", *["w4"] * 9]]


async def test_claims_that_want_different_things_or_have_a_name_are_not_merged(desk: Desk) -> None:
    for type in ("work", "work", "play", "play"):
        await desk.add(type=type)
    watched = Watched(desk.store)
    asks = [
        ask(worker="w1", types=frozenset({"work"})),
        ask(worker="w2", types=frozenset({"play"})),
        ask(worker="w3", types=frozenset({"play"}), lease_seconds=30.0),
        ask(worker="w4", types=frozenset({"work"}), claim_id="mine"),
    ]
    answers = await watched.at_one_time(desk.tenant, asks)
    assert [[(job.type, job.worker) for job in jobs] for jobs in answers] == [
        [("work", "w1")],
        [("play", "w2")],
        [("play", "w3")],
        [("work", "w4")],
    ]
    assert watched.asked == [()] * 4


async def test_what_a_claim_ends_on_its_way_is_told(desk: Desk) -> None:
    before = desk.store.swept.copy()
    lost = await desk.running(lease_seconds=5.0)
    spent = await desk.running(lease_seconds=5.0, max_attempts=1)
    late = await desk.add(deadline=desk.clock.now + 5_000_000)
    desk.clock.advance(6)
    (again,) = await desk.store.claim(desk.tenant, ask(limit=5))
    assert again.id == lost.id
    told = desk.store.swept - before
    assert told == {("expire", "retry"): 1, ("expire", "dead_letter"): 1, ("pass_deadline", "cancelled"): 1}
    assert [(await desk.history(id))[-1].verb for id in (spent.id, late)] == ["expire", "pass_deadline"]
    await desk.store.claim(desk.tenant, ask(limit=5))
    assert desk.store.swept - before == told
