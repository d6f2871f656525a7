"""Budgets through every client: in process and over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from interlock import wire
from interlock.domain.budget import OnExceed, Per
from interlock.domain.decide import CompleteJob
from interlock.errors import Invalid, LimitInUse, NotFound
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest, Rate
from tests.contract_clients.remote_cli import ClientUnderTest

TEAM = BudgetRequest(amount={"usd": 10.0}, per=Per.DAY, timezone="Europe/Berlin")


def request(**fields: object) -> wire.JobRequest:
    return wire.job_request({"type": "work", **fields})


async def test_a_budget_is_created_spent_raised_and_deleted(remote: ClientUnderTest) -> None:
    client = remote.client
    made = await client.budgets.set("team", TEAM)
    assert made == await client.budgets.get("team")
    assert (made.amount, made.per, made.on_exceed, made.spent) == ({"usd": 10.0}, "day", OnExceed.PAUSE, {"usd": 0.0})
    await client.limits.set("provider", LimitRequest(rate=Rate(units={"usd": 100.0})))
    uses = [{"name": "provider", "cost": {"usd": 8}}]
    first, second = await client.jobs.enqueue([request(limits=uses, budgets=["team"]) for _ in range(2)])
    assert len(await remote.claim()) == 1
    found = await client.budgets.get("team")
    assert (found.reserved, found.available, found.running, found.waiting) == ({"usd": 8.0}, {"usd": 2.0}, 1, 1)
    assert (await client.jobs.why(second.id)).clause == "budget_spent"
    raised = await client.budgets.raise_by("team", {"usd": 6.0})
    assert (raised.amount, raised.available) == ({"usd": 16.0}, {"usd": 8.0})
    assert len(await remote.claim()) == 1
    with pytest.raises(LimitInUse):
        await client.budgets.delete("team")
    for job in (first, second):
        await client.jobs.cancel(job.id, force=True)
    assert [one.name for one in await client.budgets.list()] == ["team"]
    assert [one.limit.name for one in await client.limits.list()] == ["provider"]
    await client.budgets.delete("team")
    with pytest.raises(NotFound, match="budget"):
        await client.budgets.get("team")
    with pytest.raises(NotFound, match="budget"):
        await client.budgets.raise_by("team", {"usd": 1.0})


async def test_the_budget_of_a_tree_is_set_spent_and_raised(remote: ClientUnderTest) -> None:
    client = remote.client
    (top,) = await client.jobs.enqueue([request(budget={"usd": 5})])
    ((held, _, _),) = await remote.claim()
    assert held.budget == '{"usd":5.0}'
    (child,) = await client.jobs.enqueue([request(parent_id=top.id)])
    found = await client.jobs.budget(child.id)
    assert (found.name, found.amount, found.spent, found.running) == (f"tree:{top.id}", {"usd": 5.0}, {"usd": 0.0}, 1)
    await client.work.finishes([CompleteJob(held.id, held.fence, str(held.worker), usage='{"usd": 7}')])
    found = await client.jobs.budget(child.id)
    assert (found.spent, found.available, found.waiting) == ({"usd": 7.0}, {"usd": -2.0}, 1)
    assert await remote.claim() == []
    why = await client.jobs.why(child.id)
    assert (why.clause, why.reason.details["root_id"]) == ("budget_spent", top.id)
    assert (await client.jobs.raise_budget(child.id, {"usd": 4})).available == {"usd": 2.0}
    assert len(await remote.claim()) == 1
    assert (await client.budgets.list(), await client.limits.list()) == ([], [])
    (free,) = await client.jobs.enqueue([request()])
    with pytest.raises(NotFound, match="budget"):
        await client.jobs.budget(free.id)
    with pytest.raises(NotFound, match="budget"):
        await client.jobs.raise_budget(free.id, {"usd": 4})


async def test_operations_of_limits_find_no_budgets(remote: ClientUnderTest) -> None:
    """A budget is stored as a limit, but only operations of budgets change it."""
    client = remote.client
    await client.budgets.set("team", TEAM)
    (top,) = await client.jobs.enqueue([request(budget={"usd": 5}, budgets=["team"])])
    until = datetime.fromtimestamp(remote.clock.now / 1e6, UTC) + timedelta(minutes=5)
    for name in ("budget:team", f"tree:{top.id}"):
        for call in (
            lambda name=name: client.limits.get(name),
            lambda name=name: client.limits.keys(name),
            lambda name=name: client.limits.hold(name, until),
            lambda name=name: client.limits.release(name),
            lambda name=name: client.limits.delete(name),
        ):
            with pytest.raises(NotFound, match="limit"):
                await call()
    assert (await client.jobs.budget(top.id)).amount == {"usd": 5.0}
    assert (await client.budgets.get("team")).amount == {"usd": 10.0}


@pytest.mark.parametrize(
    ("budget", "pointer"),
    [({}, "/budget"), ({"usd": 0}, "/budget/usd"), ({"": 1}, "/budget"), ({"usd": "x"}, "/budget")],
)
async def test_an_invalid_budget_of_a_tree_is_rejected(
    remote: ClientUnderTest, budget: dict[str, object], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await remote.client.jobs.enqueue([request(budget=budget)])
    assert caught.value.pointer.startswith(pointer)


async def test_types_name_limits_and_budgets_in_their_defaults(remote: ClientUnderTest) -> None:
    client = remote.client
    await client.budgets.set("team", TEAM)
    await client.limits.set("provider", LimitRequest(rate=Rate(units={"usd": 100.0})))
    uses = [{"name": "provider", "cost": {"usd": 2.5}}]
    await client.types.set("work", defaults={"limits": uses, "budgets": ["team"]})
    await client.jobs.enqueue([request()])
    await remote.claim()
    assert (await client.budgets.get("team")).reserved == {"usd": 2.5}


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"budgets": ["nothing"]}, "/budgets/0"),
        ({"budgets": ["team", "team"]}, "/budgets/1"),
        ({"budgets": ["a", "b", "c", "d", "e"]}, "/budgets"),
        ({"limits": [{"name": "budget:team"}]}, "/limits/0/name"),
    ],
)
async def test_a_job_with_invalid_budgets_is_rejected(
    remote: ClientUnderTest, fields: dict[str, object], pointer: str
) -> None:
    await remote.client.budgets.set("team", TEAM)
    with pytest.raises(Invalid) as rejected:
        await remote.client.jobs.enqueue([request(**fields)])
    assert rejected.value.faults[0].pointer.endswith(pointer)


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        (BudgetRequest(amount={}), "/amount"),
        (BudgetRequest(amount={"usd": -1.0}), "/amount/usd"),
        (BudgetRequest(amount={f"unit {n}": 1.0 for n in range(9)}), "/amount"),
        (BudgetRequest(amount={"usd": 1.0}, per=Per.DAY, timezone="Nowhere"), "/timezone"),
    ],
)
async def test_an_invalid_budget_names_the_member(remote: ClientUnderTest, wanted: BudgetRequest, pointer: str) -> None:
    with pytest.raises(Invalid) as rejected:
        await remote.client.budgets.set("team", wanted)
    assert rejected.value.faults[0].pointer == pointer
