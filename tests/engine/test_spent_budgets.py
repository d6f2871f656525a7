"""Budgets that fail their jobs, or ask approvers, when they are spent."""

from __future__ import annotations

import asyncio
import json

import pytest

from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus, Decision
from interlock.domain.budget import OnExceed, Per
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.engine.spent_budgets import CAPABILITY, TYPE, SpentBudgets
from interlock.errors import Invalid
from interlock.wire import JobRequest, LimitUse
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest, Rate
from tests.support.stores import ManualClock

USD = {"usd": 10.0}
T = "acme"


async def spend(engine: Engine, who: Principal, on_exceed: OnExceed, per: Per | None = None) -> str:
    """Set a budget, spend it with one job, and return the ID of another that waits for it."""
    await engine.budgets.set(who, "team", BudgetRequest(amount=USD, on_exceed=on_exceed, per=per))
    await engine.jobs.enqueue(who, JobRequest(type="work", budgets=["team"]))
    waiting = await engine.jobs.enqueue(who, JobRequest(type="work", budgets=["team"]))
    (job,) = await claim(engine)
    await engine.leases.complete(T, CompleteJob(job.id, job.fence, "w1", usage='{"usd": 12}'))
    return waiting.id


async def claim(engine: Engine) -> list[Job]:
    return await engine.leases.claim(T, ClaimFilter("w1", types=frozenset({"work"})))


async def approvals(engine: Engine) -> list[Approval]:
    return await engine.approvals.list(T, ApprovalFilter())


async def test_waiting_jobs_of_a_spent_budget_fail(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    waiting = await spend(engine, who, OnExceed.FAIL)
    child = await engine.jobs.enqueue(who, JobRequest(type="work"))
    later = await engine.jobs.enqueue(who, JobRequest(type="work", budgets=["team"], delay_seconds=60))
    assert await engine.spent_budgets.act() == 1
    assert await engine.spent_budgets.act() == 0
    job = await engine.queries.job(T, waiting)
    assert (job.status, json.loads(job.error or "")["kind"]) == (Status.FAILED, "budget_exceeded")
    history = await engine.queries.history(T, waiting)
    assert [(row.from_status, row.verb, row.actor) for row in history[1:]] == [
        ("queued", "exceed_budget", "system:budgets")
    ]
    for id in (child.id, later.id):
        assert (await engine.queries.job(T, id)).status is Status.QUEUED


async def test_a_job_that_never_fits_fails_once_nothing_runs(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    waiting = await spend(engine, who, OnExceed.FAIL)
    await engine.budgets.raise_by(who, "team", {"usd": 5.0})
    assert await engine.spent_budgets.act() == 0
    (job,) = await claim(engine)
    assert job.id == waiting


async def test_approvers_are_asked_once_and_an_approval_raises_the_budget(
    interlock_engine: Engine, who: Principal
) -> None:
    engine = interlock_engine
    waiting = await spend(engine, who, OnExceed.ASK)
    other = SpentBudgets(engine.store)
    await asyncio.gather(engine.spent_budgets.act(), other.act())
    await asyncio.gather(engine.spent_budgets.act(), other.act())
    (asked,) = await approvals(engine)
    assert (asked.prompt, asked.kind, asked.opened_by) == (
        "Budget team is spent. Raise it by 10 usd?", "approval", "system:budgets",
    )  # fmt: skip
    assert await claim(engine) == []
    await engine.approvals.decide(who, asked.id, Decision.APPROVE)
    await asyncio.gather(engine.spent_budgets.act(), other.act())
    await engine.spent_budgets.act()
    found = await engine.budgets.get(T, "team")
    assert (found.amount, found.available) == ({"usd": 20.0}, {"usd": 8.0})
    (job,) = await claim(engine)
    assert job.id == waiting
    assert (await engine.queries.job(T, asked.job_id)).status is Status.SUCCEEDED
    assert len(await approvals(engine)) == 1


async def test_an_approver_may_choose_the_amount(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK)
    await engine.spent_budgets.act()
    (asked,) = await approvals(engine)
    await engine.approvals.decide(who, asked.id, Decision.APPROVE, data='{"usd": 50}')
    await engine.spent_budgets.act()
    assert (await engine.budgets.get(T, "team")).amount == {"usd": 60.0}


@pytest.mark.parametrize("data", ["7", '{"usd": "all"}', '{"tokens": 5}', '{"usd": -5}', '{"usd": 0}'])
async def test_data_that_is_no_amount_is_rejected(interlock_engine: Engine, who: Principal, data: str) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK)
    await engine.spent_budgets.act()
    (asked,) = await approvals(engine)
    with pytest.raises(Invalid) as rejected:
        await engine.approvals.decide(who, asked.id, Decision.APPROVE, data=data)
    assert rejected.value.faults[0].pointer.startswith("/data")
    assert (await approvals(engine))[0].status is ApprovalStatus.OPEN
    await engine.approvals.decide(who, asked.id, Decision.APPROVE, data="{}")
    await engine.spent_budgets.act()
    assert (await engine.budgets.get(T, "team")).amount == {"usd": 20.0}


async def test_an_approval_of_a_unit_that_the_budget_no_longer_has_raises_nothing(
    interlock_engine: Engine, who: Principal
) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK)
    await engine.spent_budgets.act()
    (asked,) = await approvals(engine)
    await engine.budgets.set(who, "team", BudgetRequest(amount={"tokens": 5.0}, on_exceed=OnExceed.ASK))
    await engine.approvals.decide(who, asked.id, Decision.APPROVE)
    await engine.spent_budgets.act()
    assert (await engine.budgets.get(T, "team")).amount == {"tokens": 5.0}
    assert (await engine.queries.job(T, asked.job_id)).status is Status.FAILED


async def test_one_question_is_open_at_a_time(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK, Per.HOUR)
    await engine.spent_budgets.act()
    (asked,) = await approvals(engine)
    for _ in range(2):
        clock.advance(1)
        await engine.budgets.raise_by(who, "team", {"usd": 0.5})
        await engine.spent_budgets.act()
        assert [one.id for one in await approvals(engine)] == [asked.id]
    clock.advance(1)
    await engine.approvals.decide(who, asked.id, Decision.APPROVE)
    await engine.spent_budgets.act()
    assert (await engine.budgets.get(T, "team")).amount == {"usd": 21.0}
    (job,) = await claim(engine)
    await engine.jobs.enqueue(who, JobRequest(type="work", budgets=["team"]))
    await engine.leases.complete(T, CompleteJob(job.id, job.fence, "w1", usage='{"usd": 12}'))
    await engine.spent_budgets.act()
    assert [one.status for one in await approvals(engine)] == [ApprovalStatus.OPEN, ApprovalStatus.APPROVED]


@pytest.mark.parametrize("change", ["delete", "pause"])
async def test_the_question_ends_with_the_budget_that_asks(
    interlock_engine: Engine, who: Principal, change: str
) -> None:
    engine = interlock_engine
    waiting = await spend(engine, who, OnExceed.ASK)
    await engine.spent_budgets.act()
    (asked,) = await approvals(engine)
    if change == "delete":
        await engine.jobs.cancel(who, waiting)
        await engine.budgets.delete(who, "team")
    else:
        await engine.budgets.set(who, "team", BudgetRequest(amount=USD))
    assert [one.status for one in await approvals(engine)] == [ApprovalStatus.VOID]
    assert (await engine.queries.job(T, asked.job_id)).status is Status.CANCELLED


async def test_after_a_denial_the_budget_stays_spent_until_it_changes(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK)
    await engine.spent_budgets.act()
    (asked,) = await approvals(engine)
    await engine.approvals.decide(who, asked.id, Decision.DENY)
    for _ in range(3):
        await engine.spent_budgets.act()
    assert len(await approvals(engine)) == 1
    assert await claim(engine) == []
    clock.advance(1)
    await engine.budgets.raise_by(who, "team", {"usd": 1.0})
    await engine.spent_budgets.act()
    assert len(await approvals(engine)) == 2


async def test_a_raise_is_applied_once_if_the_server_stops_after_it(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK)
    for _ in range(2):
        await engine.store.limits.raise_budget(T, "budget:team", {"usd": 5.0}, actor="user:ada", job_id="j1")
    assert (await engine.budgets.get(T, "team")).amount == {"usd": 15.0}


async def test_a_job_of_a_producer_cannot_raise_a_budget(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    await spend(engine, who, OnExceed.ASK)
    request = JobRequest(type=TYPE, requires=[CAPABILITY])
    forged = await engine.jobs.enqueue(who, request)
    await engine.spent_budgets.act()
    assert (await engine.queries.job(T, forged.id)).status is Status.FAILED
    assert (await approvals(engine))[0].job_id != forged.id


async def test_a_budget_is_read_as_of_one_moment(interlock_engine: Engine, who: Principal) -> None:
    """A job that is leased or ends meanwhile is not counted twice, nor not at all."""
    engine = interlock_engine
    await spend(engine, who, OnExceed.WARN)
    await engine.flow.set(who, "provider", LimitRequest(rate=Rate(units={"usd": 1e6})))
    job = JobRequest(type="work", budgets=["team"], limits=[LimitUse(name="provider", cost={"usd": 5})])
    before = (await engine.budgets.get(T, "team")).spent["usd"]
    finished = False

    async def work() -> None:
        nonlocal finished
        for _ in range(20):
            await engine.jobs.enqueue(who, job)
            for held in await claim(engine):
                await engine.leases.complete(T, CompleteJob(held.id, held.fence, "w1", usage='{"usd": 0}'))
        finished = True

    async def read() -> None:
        while not finished:
            assert (await engine.budgets.get(T, "team")).spent["usd"] == before

    await asyncio.gather(work(), read(), read())
