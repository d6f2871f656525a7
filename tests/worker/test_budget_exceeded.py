"""BudgetExceeded: a run stops at a step once a budget is spent, and continues when it was raised."""

from __future__ import annotations

import json

import pytest

import interlock
from interlock.domain.approval import ApprovalFilter, Decision
from interlock.domain.budget import OnExceed
from interlock.domain.lifecycle import Status
from interlock.wire.budgets import BudgetRequest
from tests.support.apps import StoreApp
from tests.support.stores import ManualClock


async def test_a_run_stops_at_the_next_step_and_continues_after_a_raise(app: StoreApp, clock: ManualClock) -> None:
    client, done, seen = await app._client(), list[int](), list[str]()
    await client.budgets.set("team", BudgetRequest(amount={"usd": 10.0}))

    @app.task(budgets=["team"], max_attempts=1)
    async def work(ctx: interlock.Context) -> float:
        def call(n: int) -> int:
            done.append(n)
            ctx.usage(usd=6.0)
            return n

        try:
            for n in range(4):
                await ctx.step(f"call {n}", call, n)
        except interlock.BudgetExceeded as error:
            seen.append(error.job_id)
            raise
        return float(len(done))

    handle = await work.enqueue()
    await app.drain()
    assert (done, seen) == ([0, 1], [handle.id])
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 0)
    assert (await client.budgets.get("team")).spent == {"usd": 12.0}
    clock.advance(2)
    await app.drain()
    assert done == [0, 1]
    await client.budgets.raise_by("team", {"usd": 10.0})
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.usage) == (Status.SUCCEEDED, '{"usd":24.0}')
    assert (await client.budgets.get("team")).spent == {"usd": 24.0}


@pytest.mark.parametrize("on_exceed", [OnExceed.FAIL, OnExceed.ASK, OnExceed.WARN])
async def test_what_a_spent_budget_does_to_a_run_at_its_next_step(
    app: StoreApp, clock: ManualClock, on_exceed: OnExceed
) -> None:
    client, done = await app._client(), list[int]()
    await client.budgets.set("team", BudgetRequest(amount={"usd": 10.0}, on_exceed=on_exceed))

    @app.task(budgets=["team"], max_attempts=1)
    async def work(ctx: interlock.Context) -> int:
        def call(n: int) -> int:
            done.append(n)
            ctx.usage(usd=6.0)
            return n

        for n in range(3):
            await ctx.step(f"call {n}", call, n)
        return len(done)

    handle = await work.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    if on_exceed is OnExceed.WARN:
        assert (done, job.status) == ([0, 1, 2], Status.SUCCEEDED)
        return
    assert (done, job.status, job.attempt, job.releases) == ([0, 1], Status.QUEUED, 1, 0)
    clock.advance(2)
    for _ in range(2):
        await app.engine.spent_budgets.act()
    await app.drain()
    job = await app.job(handle.id)
    if on_exceed is OnExceed.FAIL:
        assert (done, job.status, json.loads(job.error or "{}")["kind"]) == ([0, 1], Status.FAILED, "budget_exceeded")
        return
    (asked,) = await client.approvals.list(ApprovalFilter())
    await client.approvals.decide(asked.id, Decision.APPROVE)
    await app.engine.spent_budgets.act()
    await app.drain()
    assert (done, (await app.job(handle.id)).status) == ([0, 1, 2], Status.SUCCEEDED)
    assert (await client.budgets.get("team")).available == {"usd": 2.0}
