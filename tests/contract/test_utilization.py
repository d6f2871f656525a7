"""How much of a rate is used while jobs wait, by a ledger of the test's own."""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate
from typing import Final

import pytest

from tests.contract.builders import TenantQueue, complete
from tests.contract.test_limits import add, claim, set_limit, uses

WORKERS: Final = 4
RATE: Final = 100.0
BURST: Final = 100.0
STEP: Final = 0.025
SECONDS: Final = 8
JOBS: Final = 60


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("others", [False, True])
async def test_a_rate_is_used_and_never_exceeded(queue: TenantQueue, key: str | None, others: bool) -> None:
    """Mixed costs up to half of the burst; with `others`, a second limit holds back some of the jobs."""
    dice = random.Random(7)
    units = {"tokens": RATE}
    await set_limit(queue, units=units, per_seconds=1.0, burst={"tokens": BURST}, keyed=key is not None)
    await set_limit(queue, "slots", concurrency=1)
    book: dict[str, float] = {}

    async def refill() -> None:
        costs = [dice.choice((1.0, 5.0, 20.0, BURST / 2)) for _ in range(JOBS)]
        for cost in costs:
            named = [("llm", key, {"tokens": cost})]
            named += [("slots", None, {})] * (others and dice.random() < 0.2)
            (id,) = await add(queue, 1, limits=uses(*named), priority=dice.choice((0, 0, 1)))
            book[id] = cost

    await refill()
    waiting = JOBS
    grants: list[tuple[float, float]] = []
    busy: list[float] = [0.0] * WORKERS
    running = [await claim(queue, limit=1) for _ in range(WORKERS)]
    grants += [(0.0, book[job.id]) for jobs in running for job in jobs]
    for step in range(1, round(SECONDS / STEP) + 1):
        queue.clock.now = queue.after(STEP)
        now = step * STEP
        for number in range(WORKERS):
            if busy[number] > now:
                continue
            for job in running[number]:
                await queue.do(complete(job))
            running[number] = await claim(queue, limit=1)
            grants += [(now, book[job.id]) for job in running[number]]
            waiting -= len(running[number])
            busy[number] = now + dice.choice((0.02, 0.1)) if running[number] else 0.0
        if waiting < JOBS // 2:
            await refill()
            waiting += JOBS
    total = sum(cost for _, cost in grants)
    assert total >= 0.95 * RATE * SECONDS
    for first in range(len(grants)):
        began = grants[first][0]
        for (at, _), sum_ in zip(grants[first:], accumulate(cost for _, cost in grants[first:]), strict=True):
            assert sum_ <= BURST + RATE * (at - began) + 1e-6
    await queue.verify()


@pytest.mark.parametrize("key", [None, "k"])
async def test_waiting_claims_are_woken_when_a_rate_has_refilled(queue: TenantQueue, key: str | None) -> None:
    """Else they would look again only after a pause, and a small burst would be full long before."""
    await set_limit(queue, units={"tokens": 100.0}, per_seconds=1.0, burst={"tokens": 10.0}, keyed=key is not None)
    await add(queue, 2, limits=uses(("llm", key, {"tokens": 10.0})))
    assert len(await claim(queue)) == 1
    woken = queue.store.watch(queue.tenant)
    assert await claim(queue) == []
    await asyncio.wait_for(woken.wait(), 30)
    queue.clock.now = queue.after(0.1)
    assert len(await claim(queue)) == 1
