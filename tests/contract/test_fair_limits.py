"""Fair limits: the keys of a limit are served in turn, by weight, however many jobs each of them has."""

from __future__ import annotations

from collections import Counter

import pytest

from interlock.domain import limits
from interlock.domain.limits import Limit, demands_of
from interlock.errors import Invalid
from tests.contract.builders import TenantQueue, complete, fail, release
from tests.contract.test_keyed_limits import of
from tests.contract.test_limits import add, claim, set_limit


async def serve(queue: TenantQueue, *, n: int, batch: int = 1) -> list[str]:
    """The keys of the next n jobs, each of which is completed before the next claim."""
    keys: list[str] = []
    while len(keys) < n:
        jobs = await claim(queue, limit=min(batch, n - len(keys)))
        assert jobs, keys
        for job in jobs:
            keys.append(demands_of(job.limits or "")[0].key)
            await queue.do(complete(job))
    return keys


@pytest.mark.parametrize("batch", [1, 7])
async def test_keys_are_served_in_turn(queue: TenantQueue, batch: int) -> None:
    await set_limit(queue, concurrency=100, keyed=True, fair=True)
    await add(queue, 60, limits=of("big"))
    for key in ("b", "c", "d"):
        await add(queue, 4, limits=of(key))
    keys = await serve(queue, n=16, batch=batch)
    assert Counter(keys) == {"big": 4, "b": 4, "c": 4, "d": 4}
    assert await serve(queue, n=56, batch=batch) == ["big"] * 56


async def test_weights_divide_the_service(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=100, keyed=True, fair=True, weights={"gold": 3.0})
    await add(queue, 40, limits=of("basic"))
    await add(queue, 40, limits=of("gold"))
    assert Counter(await serve(queue, n=40)) == {"gold": 30, "basic": 10}


async def test_a_changed_weight_takes_effect_at_once(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=100, keyed=True, fair=True)
    await add(queue, 40, limits=of("a"))
    await add(queue, 40, limits=of("b"))
    assert Counter(await serve(queue, n=10)) == {"a": 5, "b": 5}
    await set_limit(queue, concurrency=100, keyed=True, fair=True, weights={"b": 4.0})
    served = Counter(await serve(queue, n=25))
    assert abs(served["b"] - 20) <= 1, served


async def test_costs_count_and_not_only_jobs(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 100.0}, per_seconds=1e-3, keyed=True, fair=True)
    await add(queue, 40, limits=of("small", tokens=10.0))
    await add(queue, 40, limits=of("large", tokens=40.0))
    keys = []
    for _ in range(25):
        queue.clock.advance(1)
        keys += await serve(queue, n=1)
    assert Counter(keys) == {"small": 20, "large": 5}


async def test_a_key_that_was_away_does_not_catch_up(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=100, keyed=True, fair=True)
    await add(queue, 1, limits=of("late"))
    await add(queue, 40, limits=of("early"))
    await serve(queue, n=21)
    await add(queue, 10, limits=of("late"))
    await add(queue, 10, limits=of("new"))
    assert Counter(await serve(queue, n=12)) == {"early": 4, "late": 4, "new": 4}


async def test_order_within_a_key_is_by_priority_and_arrival(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True, fair=True)
    made = await add(queue, 3, limits=of("a"))
    (urgent,) = await add(queue, 1, limits=of("a"), priority=3)
    got = []
    for _ in range(4):
        (job,) = await claim(queue)
        got.append(job.id)
        await queue.do(complete(job))
    assert got == [urgent, *made]


async def test_a_key_without_room_waits_and_the_others_go_on(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=2, keyed=True, fair=True)
    await add(queue, 6, limits=of("a"))
    await add(queue, 3, limits=of("b"))
    jobs = await claim(queue, limit=20)
    assert Counter(demands_of(job.limits or "")[0].key for job in jobs) == {"a": 2, "b": 2}
    assert await claim(queue, limit=20) == []
    await queue.do(fail(jobs[0]))
    await queue.do(release(jobs[1]))
    assert len(await claim(queue, limit=20)) == 2
    await set_limit(queue, concurrency=9, keyed=True, fair=True)
    assert len(await claim(queue, limit=20)) == 4  # the failed one waits for its retry
    await queue.verify()


async def test_jobs_of_types_without_workers_are_passed_over(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True, fair=True)
    await add(queue, 30, limits=of("a"), type="idle")
    work = await add(queue, 2, limits=of("b"))
    await add(queue, 2, limits=None)
    got = [job.id for job in await claim(queue, types=frozenset({"work"}))]
    assert work[0] in got
    assert len(got) == 3


async def test_one_key_with_thousands_of_jobs_delays_no_other(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1000, keyed=True, fair=True)
    for _ in range(4):
        await add(queue, 500, limits=of("big"))
    for i in range(30):
        await add(queue, 10, limits=of(f"k{i}"))
    keys = await serve(queue, n=310, batch=100)
    assert Counter(keys)["big"] <= 20


@pytest.mark.parametrize(
    ("rules", "pointer"),
    [
        ({"fair": True}, "/fair"),
        ({"keyed": True, "weights": {"a": 2.0}}, "/weights"),
        ({"keyed": True, "fair": True, "weights": {"a": 0.0}}, "/weights"),
        ({"keyed": True, "fair": True, "weights": {"": 1.0}}, "/weights"),
        ({"keyed": True, "fair": True, "weights": {"a": float("inf")}}, "/weights"),
    ],
)
def test_what_fair_needs(rules: dict[str, object], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        limits.check(Limit("llm", 1, **rules))  # type: ignore[arg-type]
    assert caught.value.pointer == pointer


async def test_many_keys_with_few_jobs_fill_a_claim(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1000, keyed=True, fair=True)
    for i in range(50):
        await add(queue, 2, limits=of(f"k{i}"))
    for n in (60, 40):
        jobs = await claim(queue, limit=n)
        assert len(jobs) == n
        for job in jobs:
            await queue.do(complete(job))


async def test_later_jobs_without_limits_do_not_keep_a_job_from_its_turn(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True, fair=True)
    first, second = await add(queue, 2, limits=of("a"))
    (running,) = await claim(queue, limit=2)
    assert running.id == first
    queue.clock.advance(1)
    later = await add(queue, 6, limits=None)
    (passing,) = await claim(queue, limit=1)
    assert passing.id == later[0]
    await queue.do(complete(running))
    assert [job.id for job in await claim(queue, limit=3)] == [second, *later[1:3]]
    assert {job.id for job in await claim(queue, limit=9)} == {*later[3:]}


async def test_jobs_before_the_turn_of_a_key_are_leased_first(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=9, keyed=True, fair=True)
    await add(queue, 3, limits=of("a"))
    urgent = await add(queue, 2, limits=None, priority=5)
    assert {job.id for job in await claim(queue, limit=2)} == {*urgent}
    assert len(await claim(queue, limit=9)) == 3
