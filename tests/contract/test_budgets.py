"""Budgets: amounts that jobs may use in total or per period."""

from __future__ import annotations

import json

import pytest

from interlock.domain import limits
from interlock.domain.budget import PREFIX, OnExceed, Per, Period
from interlock.domain.explain import ReasonCode, explain
from interlock.domain.job import HeartbeatReply
from interlock.domain.limits import Limit
from interlock.domain.timestamps import when
from interlock.errors import Invalid, LimitInUse
from interlock.storage.contract import Terms
from tests.contract.builders import OPERATOR, TenantQueue, complete, fail, heartbeat, new_job

NAME = f"{PREFIX}team"
DAY = 86_400
HOURLY = Period(Per.HOUR)


async def set_budget(queue: TenantQueue, usd: float = 10.0, period: Period | None = None) -> None:
    budget = Limit(NAME, units={"usd": usd}, budget=period or Period())
    await queue.store.limits.set(queue.tenant, limits.check(budget), actor=OPERATOR)


async def add(queue: TenantQueue, n: int, usd: float = 0.0) -> list[str]:
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    named = json.dumps([{"name": NAME, "key": None, "cost": {"usd": usd}}])
    jobs = [new_job(limits=named) for _ in range(n)]
    await queue.store.enqueue(queue.tenant, jobs, terms=terms)
    return [job.id for job in jobs]


async def left(queue: TenantQueue) -> float:
    found = await queue.store.limits.get(queue.tenant, NAME)
    assert found is not None
    return found.state.available["usd"]


def cost(usd: float) -> str:
    return json.dumps({"usd": usd})


async def test_jobs_run_while_something_is_left_and_the_last_report_may_exceed_the_amount(queue: TenantQueue) -> None:
    await set_budget(queue)
    made = await add(queue, 3)
    for usage, remains in ((6.0, 4.0), (7.0, -3.0)):
        (job,) = await queue.claim()
        await queue.do(complete(job, usage=cost(usage)))
        assert await left(queue) == remains
    assert await queue.claim() == []
    queue.clock.now = queue.after(365 * DAY)
    assert await queue.claim() == []
    raised = await queue.store.limits.raise_budget(queue.tenant, NAME, {"usd": 3.5}, actor=OPERATOR)
    assert raised is not None
    assert (raised.limit.units, raised.state.available) == ({"usd": 13.5}, {"usd": 0.5})
    assert [job.id for job in await queue.claim()] == made[2:]


async def test_a_budget_is_spent_exactly_although_its_parts_are_no_binary_fractions(queue: TenantQueue) -> None:
    await set_budget(queue, 1.0)
    await add(queue, 12)
    for n in range(1, 11):
        (job,) = await queue.claim()
        if n % 2:
            await queue.heartbeat(heartbeat(job, usage=cost(0.1)))
        await queue.do(complete(job, usage=cost(0.1)))
        assert await left(queue) == (10 - n) / 10
    assert await queue.claim() == []
    raised = await queue.store.limits.raise_budget(queue.tenant, NAME, {"usd": 0.1}, actor=OPERATOR)
    assert raised is not None
    assert (raised.limit.units, raised.state.available) == ({"usd": 1.1}, {"usd": 0.1})
    (job,) = await queue.claim()
    (reply,) = await queue.heartbeat(heartbeat(job, usage=cost(0.1)))
    assert isinstance(reply, HeartbeatReply)
    assert reply.budget_exceeded


async def test_estimates_are_reserved_while_jobs_run(queue: TenantQueue) -> None:
    await set_budget(queue)
    made = await add(queue, 4, usd=4.0)
    first, second = await queue.claim(limit=10)
    found = await queue.store.limits.get(queue.tenant, NAME)
    assert found is not None
    assert (found.state.available, found.reserved) == ({"usd": 2.0}, {"usd": 8.0})
    await queue.do(complete(first, usage=cost(1.0)))
    assert [job.id for job in await queue.claim(limit=10)] == made[2:3]
    await queue.do(fail(second))  # keeps its estimate
    assert (await left(queue), await queue.claim(limit=10)) == (1.0, [])


async def test_a_budget_starts_anew_with_each_period(queue: TenantQueue) -> None:
    period = Period(Per.DAY)
    await set_budget(queue, period=period)
    made = await add(queue, 4, usd=10.0)
    (job,) = await queue.claim(limit=10)
    await queue.do(complete(job, usage=cost(12.0)))
    assert await queue.claim(limit=10) == []
    resets_at = period.resets_at(queue.clock.now)
    assert resets_at is not None
    queue.clock.now = resets_at - 1
    assert await queue.claim(limit=10) == []
    queue.clock.now = resets_at
    assert [job.id for job in await queue.claim(limit=10)] == made[1:2]
    queue.clock.now = resets_at - 1  # a clock that goes back adds nothing
    assert await queue.claim(limit=10) == []


async def next_period(queue: TenantQueue) -> None:
    resets_at = HOURLY.resets_at(queue.clock.now)
    assert resets_at is not None
    queue.clock.now = resets_at


async def test_a_run_across_the_end_of_a_period_adds_no_room_to_the_next_one(queue: TenantQueue) -> None:
    await set_budget(queue, period=HOURLY)
    await add(queue, 2, usd=8.0)
    (old,) = await queue.claim(limit=10, lease_seconds=7200.0)
    await next_period(queue)
    found = await queue.store.limits.get(queue.tenant, NAME)
    assert found is not None
    assert found.reserved == {}
    (new,) = await queue.claim(limit=10)
    assert await left(queue) == 2.0
    await queue.do(complete(old, usage=cost(1.0)))
    assert await left(queue) == 2.0
    await queue.do(complete(new, usage=cost(5.0)))
    assert await left(queue) == 5.0


async def test_a_raise_while_the_clock_is_back_adds_only_its_amount(queue: TenantQueue) -> None:
    await set_budget(queue, period=HOURLY)
    await add(queue, 1, usd=3.0)
    await next_period(queue)
    await queue.claim()
    began_at = queue.clock.now
    queue.clock.now = began_at - 300_000_000
    await queue.store.limits.raise_budget(queue.tenant, NAME, {"usd": 1.0}, actor=OPERATOR)
    queue.clock.now = began_at
    assert await left(queue) == 8.0


async def test_usage_above_the_estimate_counts_in_the_period_of_its_report(queue: TenantQueue) -> None:
    await set_budget(queue, period=HOURLY)
    await add(queue, 1, usd=2.0)
    (old,) = await queue.claim(limit=10, lease_seconds=7200.0)
    await next_period(queue)
    await queue.heartbeat(heartbeat(old, usage=cost(5.0)))
    assert await left(queue) == 7.0
    await queue.do(complete(old, usage=cost(6.0)))
    assert await left(queue) == 6.0


async def test_another_period_keeps_what_was_spent(queue: TenantQueue) -> None:
    await set_budget(queue)
    await add(queue, 1)
    (job,) = await queue.claim(limit=10)
    await queue.do(complete(job, usage=cost(4.0)))
    for period in (Period(Per.DAY), HOURLY, Period()):
        await set_budget(queue, period=period)
        assert await left(queue) == 6.0


async def test_reports_of_any_size_can_be_paid_off(queue: TenantQueue) -> None:
    await set_budget(queue)
    await add(queue, 2)
    first, second = await queue.claim(limit=10)
    await queue.heartbeat(heartbeat(first, usage=cost(1.7e308)))
    await queue.do(complete(first, usage=cost(1.7e308)))
    await queue.do(complete(second, usage=cost(1.7e308)))
    assert await left(queue) == -limits.MAX_AMOUNT


async def test_with_warn_a_spent_budget_stops_no_job(queue: TenantQueue) -> None:
    await set_budget(queue, period=Period(on_exceed=OnExceed.WARN))
    await add(queue, 3, usd=8.0)
    assert len(await queue.claim(limit=10)) == 3
    assert await left(queue) == -14.0


async def test_a_new_amount_keeps_what_was_spent(queue: TenantQueue) -> None:
    await set_budget(queue)
    await add(queue, 1)
    (job,) = await queue.claim()
    await queue.do(complete(job, usage=cost(4.0)))
    await set_budget(queue, 5.0)
    assert await left(queue) == 1.0
    await set_budget(queue, 3.0)
    assert await left(queue) == -1.0


async def test_a_raise_of_an_unknown_unit_is_rejected(queue: TenantQueue) -> None:
    await set_budget(queue)
    with pytest.raises(Invalid, match="no unit 'tokens'"):
        await queue.store.limits.raise_budget(queue.tenant, NAME, {"tokens": 1.0}, actor=OPERATOR)
    with pytest.raises(Invalid, match="above 0"):
        await queue.store.limits.raise_budget(queue.tenant, NAME, {"usd": -1.0}, actor=OPERATOR)
    assert await queue.store.limits.raise_budget(queue.tenant, f"{PREFIX}none", {"usd": 1.0}, actor=OPERATOR) is None


async def test_why_names_the_spent_budget(queue: TenantQueue) -> None:
    await set_budget(queue, period=Period(Per.MONTH, "Europe/Berlin"))
    made = await add(queue, 2, usd=6.0)
    (job,) = await queue.claim(limit=10)
    snapshot = await queue.store.workers.job_snapshot(queue.tenant, made[1])
    assert snapshot is not None
    found = explain(snapshot)
    resets_at = Period(Per.MONTH, "Europe/Berlin").resets_at(queue.clock.now)
    assert resets_at is not None
    assert (found.clause, found.reason.details) == (
        ReasonCode.BUDGET_SPENT,
        {"budget": "team", "unit": "usd", "available": 4.0, "needed": 6.0, "resets_at": when(resets_at), "ahead": 0},
    )
    await queue.do(complete(job, usage=cost(0.0)))
    assert len(await queue.claim(limit=10)) == 1


async def test_budgets_and_limits_are_listed_apart_and_a_budget_in_use_stays(queue: TenantQueue) -> None:
    await set_budget(queue)
    await queue.store.limits.set(queue.tenant, limits.check(Limit("zone", 1)), actor=OPERATOR)
    assert [one.limit.name for one in await queue.store.limits.page(queue.tenant)] == ["zone"]
    assert [one.limit.name for one in await queue.store.limits.page(queue.tenant, budgets=True)] == [NAME]
    await add(queue, 1)
    with pytest.raises(LimitInUse):
        await queue.store.limits.delete(queue.tenant, NAME, actor=OPERATOR)
    with pytest.raises(Invalid, match="create a budget"):
        limits.check(Limit(NAME, 1))
