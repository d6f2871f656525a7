"""Tickets: a job that did not fit keeps its rank, without holding up others for nothing."""

from __future__ import annotations

import pytest

from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete
from tests.contract.connections import SqlConnection
from tests.contract.test_keyed_limits import edited
from tests.contract.test_limits import add, available, claim, ids, set_limit, uses, why

BIG, SMALL = frozenset({"big"}), frozenset({"small"})


async def a_large_job_waits(queue: TenantQueue, key: str | None = None) -> str:
    """Return a job that needs the full bucket, which is full in 8 seconds."""
    burst = {"tokens": 10.0}
    await set_limit(queue, units={"tokens": 1.0}, per_seconds=1.0, burst=burst, keyed=key is not None)
    await add(queue, 1, limits=uses(("llm", key, {"tokens": 8.0})), type="big")
    assert len(await claim(queue)) == 1
    (large,) = await add(queue, 1, limits=uses(("llm", key, {"tokens": 10.0})), type="big")
    assert await claim(queue) == []
    return large


async def small_jobs(queue: TenantQueue, n: int = 1, key: str | None = None, **fields: object) -> list[str]:
    return await add(queue, n, limits=uses(("llm", key, {"tokens": 1.0})), type="small", **fields)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("how", ["cancel", "postpone", "lower", "pause", "deadline"])
async def test_a_ticket_ends_with_the_wait_of_its_job(queue: TenantQueue, how: str, key: str | None) -> None:
    large = await a_large_job_waits(queue, key)
    (small,) = await small_jobs(queue, key=key)
    assert await claim(queue) == []  # it does not pass the large one
    match how:
        case "cancel":
            await queue.do(cancel(large))
        case "postpone":
            await queue.do(edited(large, run_at=queue.after(3600)))
        case "lower":
            await queue.do(edited(large, priority=-1))
        case "pause":
            await queue.store.registry.pause(queue.tenant, "big", actor=OPERATOR, reason=None)
        case "deadline":
            await queue.do(edited(large, deadline=queue.after(0.5)))
            queue.clock.now = queue.after(1)
            await queue.sweep()
    assert await ids(queue) == [small]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_of_a_higher_priority_passes_a_ticket_at_once(queue: TenantQueue, key: str | None) -> None:
    await a_large_job_waits(queue, key)
    (urgent,) = await small_jobs(queue, key=key, priority=5)
    await small_jobs(queue, key=key)
    assert await ids(queue) == [urgent]


async def test_a_ticket_stays_until_its_job_fits_although_others_pass_it(queue: TenantQueue) -> None:
    large = await a_large_job_waits(queue)
    await small_jobs(queue, 2, priority=5)
    assert len(await claim(queue)) == 2
    await small_jobs(queue, 5)
    queue.clock.now = queue.after(9)
    assert await claim(queue, types=SMALL) == []
    queue.clock.now = queue.after(1)
    assert await claim(queue, types=SMALL) == []
    assert await ids(queue, types=BIG) == [large]


async def test_a_type_without_workers_holds_a_limit_for_two_seconds_at_most(queue: TenantQueue) -> None:
    await a_large_job_waits(queue)
    (small,) = await small_jobs(queue)
    queue.clock.now = queue.after(9.9)
    assert await claim(queue, types=SMALL) == []
    queue.clock.now = queue.after(0.2)
    assert await ids(queue, types=SMALL) == [small]


@pytest.mark.parametrize("order", [("llm", "customer"), ("customer", "llm")])
async def test_a_job_that_another_limit_holds_back_leaves_its_room_to_others(
    queue: TenantQueue, order: tuple[str, str]
) -> None:
    await set_limit(queue, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": 10.0})
    await set_limit(queue, "customer", concurrency=1, keyed=True)
    hold = queue.store.limits.hold
    await hold(queue.tenant, "customer", key="acme", until=queue.after(3600), actor=OPERATOR, reason=None)
    assert len(await add(queue, 1, limits=uses(("llm", None, {"tokens": 5.0})))) == len(await claim(queue))
    named = {"llm": ("llm", None, {"tokens": 10.0}), "customer": ("customer", "acme", {})}
    await add(queue, 1, limits=uses(*(named[name] for name in order)))
    assert await claim(queue) == []
    (small,) = await add(queue, 1, limits=uses(("llm", None, {"tokens": 1.0})))
    assert await ids(queue) == [small]


async def test_a_job_with_two_limits_is_not_starved(queue: TenantQueue) -> None:
    """Whenever one of its limits has room, the other one is full."""
    for name in ("a", "b"):
        await set_limit(queue, name, concurrency=1)
        await add(queue, 3, limits=uses((name, None, {})), type=name)
    running = await claim(queue)
    assert len(running) == 2
    (both,) = await add(queue, 1, limits=uses(("a", None, {}), ("b", None, {})), priority=1)
    turns = 0
    while both not in {job.id for job in running}:
        turns += 1
        assert turns < 100
        done = running.pop(0)
        await queue.do(complete(done))
        await add(queue, 1, limits=uses((done.type, None, {})), type=done.type)
        queue.clock.now = queue.after(0.03)
        running += await claim(queue)
    assert turns > 20  # most of the time it holds nothing


async def test_room_that_a_rate_has_left_is_not_lost_behind_a_ticket(queue: TenantQueue) -> None:
    await a_large_job_waits(queue)
    assert await available(queue, "tokens") == 2.0
    queue.clock.now = queue.after(8)
    assert len(await claim(queue)) == 1
    assert await available(queue, "tokens") == 0.0


async def test_why_does_not_name_a_ticket_that_has_ended(queue: TenantQueue, sql: SqlConnection) -> None:
    large = await a_large_job_waits(queue)
    (small,) = await small_jobs(queue)
    assert (await why(queue, small))["needed"] == 10.0
    await queue.do(cancel(large))
    ((ticket,),) = await sql.run("SELECT ticket FROM flow_bucket WHERE tenant = $1", queue.tenant)
    assert ticket is not None
    with pytest.raises(AssertionError):
        await why(queue, small)
