"""Holds of limits: for how long, and by whom; and what is remembered of their use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from interlock.domain.limits import MAX_HOLD_SECONDS
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.timestamps import micros
from interlock.engine.engine import Engine
from interlock.errors import Forbidden, Invalid
from interlock.wire import JobRequest, LimitUse
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest
from tests.support.eventually import eventually
from tests.support.stores import ManualClock


async def test_a_hold_ends_within_30_days(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    flow, now = interlock_engine.flow, datetime.fromtimestamp(clock.now / 1e6, UTC)
    await flow.set(who, "llm", LimitRequest(concurrency=1))
    last = now + timedelta(seconds=MAX_HOLD_SECONDS)
    for until in (now, last + timedelta(seconds=1)):
        with pytest.raises(Invalid, match="30 days") as caught:
            await flow.hold(who, "llm", until)
        assert caught.value.pointer == "/until"
    assert (await flow.hold(who, "llm", last)).state.held_until == micros(last)


async def test_without_the_role_operate_a_worker_holds_only_limits_of_jobs_it_runs(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    engine, until = interlock_engine, datetime.fromtimestamp(clock.now / 1e6, UTC) + timedelta(minutes=1)
    await engine.flow.set(who, "llm", LimitRequest(concurrency=1))
    await engine.jobs.enqueue(who, JobRequest(type="t", limits=[LimitUse(name="llm")]))
    worker = Principal(who.tenant, "token:w", frozenset({"work"}), worker="w1")
    with pytest.raises(Forbidden):
        await engine.flow.hold(worker, "llm", until)
    assert await engine.leases.claim(who.tenant, ClaimFilter("w1"))
    with pytest.raises(Forbidden):
        await engine.flow.hold(worker._replace(worker="w2"), "llm", until)
    assert (await engine.flow.hold(worker, "llm", until)).state.held_until == micros(until)


async def test_the_use_of_limits_and_budgets_is_read_without_a_page_or_a_scrape(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    engine = interlock_engine
    await engine.flow.set(who, "llm", LimitRequest(concurrency=4))
    await engine.budgets.set(who, "team", BudgetRequest(amount={"usd": 4}))
    await engine.jobs.enqueue(who, JobRequest(type="t", limits=[LimitUse(name="llm")], budgets=["team"]))
    assert await engine.leases.claim(who.tenant, ClaimFilter("w"))
    assert set(engine.utilization.of(who.tenant, "llm", clock.now)) == {None}
    engine.maintenance.start()

    async def is_read() -> bool:
        of = engine.utilization.of
        return (of(who.tenant, "llm", clock.now)[-1], of(who.tenant, "budget:team", clock.now)[-1]) == (25.0, 0.0)

    await eventually(is_read)
