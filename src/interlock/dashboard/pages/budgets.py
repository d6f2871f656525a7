"""Budgets: what is spent, reserved and left, the jobs that wait, and raising the amount."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from interlock.dashboard import plots
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, one_of, redirect, show
from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.queue_metrics import MAX_MINUTES
from interlock.domain.budget import PREFIX, BudgetState, OnExceed, Per
from interlock.errors import Invalid, NotFound
from interlock.wire.budgets import BudgetRequest

pages = Pages()

PAGE_SIZE: Final = 25
MAX_WAITING: Final = 20
CHOICES: Final[Mapping[str, Any]] = {"periods": list(Per), "reactions": list(OnExceed)}
FIELD: Final = "add."  # and the unit: a field of the form that raises a budget


class Unit(NamedTuple):
    """One unit of a budget, with the widths of a bar of 100."""

    name: str
    amount: float
    spent: float
    reserved: float
    available: float
    spent_width: float
    reserved_width: float


@pages.get("/budgets")
async def budgets(request: PageRequest) -> View | PageResponse:
    """List budgets by name."""
    found = await request.client.budgets.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.name)
    request.client.overview.utilization.record_budgets(request.tenant, listed, request.now)
    return show(
        "budgets.html",
        budgets=[(one, units(one), _used(request, one.name)) for one in listed],
        **CHOICES,
        minutes=MAX_MINUTES,
        paging=paging,
    )


@pages.get("/budgets/{name}")
async def budget(request: PageRequest) -> View | PageResponse:
    """Show one budget."""
    found = await request.client.budgets.get(request.path["name"])
    request.client.overview.utilization.record_budgets(request.tenant, [found], request.now)
    due = await request.client.overview.due_under(PREFIX + found.name, limit=MAX_WAITING)
    return show(
        "budget.html",
        budget=found,
        units=units(found),
        used=_used(request, found.name),
        minutes=MAX_MINUTES,
        waiting=list((await known_jobs(request, due)).values()),
        max_waiting=MAX_WAITING,
        **CHOICES,
    )


@pages.post("/budgets", roles=["admin"], form_page=budgets)
async def create(request: PageRequest) -> View | PageResponse:
    """Create a budget; one with this name is not replaced."""
    name = request.form.one("name")
    if name is None:
        raise Invalid("required: enter a name", pointer="/name")
    with suppress(NotFound):
        await request.client.budgets.get(name)
        raise Invalid("a budget with this name exists: edit it on its page", pointer="/name")
    await request.client.budgets.set(name, _rules(request))
    return redirect(f"/budgets/{quote(name, safe='')}", notice="budget_set")


@pages.post("/budgets/{name}", roles=["admin"], form_page=budget)
async def change(request: PageRequest) -> View | PageResponse:
    """Change the rules of a budget; what was spent stays."""
    found = await request.client.budgets.get(request.path["name"])
    await request.client.budgets.set(found.name, _rules(request))
    return redirect(f"/budgets/{quote(found.name, safe='')}", notice="budget_set")


@pages.post("/budgets/{name}/delete", roles=["admin"])
async def delete(request: PageRequest) -> View | PageResponse:
    """Delete a budget that no unfinished job names."""
    await request.client.budgets.delete(request.path["name"])
    return redirect("/budgets", notice="budget_deleted")


def _rules(request: PageRequest) -> BudgetRequest:
    """Return the rules in a form."""
    form, per = request.form, request.form.one("per")
    return BudgetRequest(
        amount=form.amounts("amount"),
        per=None if per is None else one_of(Per, per, "per"),
        timezone=form.one("timezone") or "UTC",
        on_exceed=one_of(OnExceed, form.one("on_exceed") or OnExceed.PAUSE, "on_exceed"),
    )


@pages.post("/budgets/{name}/raise", roles=["operate"], form_page=budget)
async def raise_by(request: PageRequest) -> View | PageResponse:
    """Add to the amount of a budget."""
    name = request.path["name"]
    await request.client.budgets.raise_by(name, added(request, await request.client.budgets.get(name)))
    return redirect(f"/budgets/{quote(name, safe='')}", notice="budget_raised")


def added(request: PageRequest, budget: BudgetState) -> Mapping[str, float]:
    """Return what the form adds to each unit."""
    found: dict[str, float] = {}
    for unit in budget.amount:
        if (more := request.form.number(f"{FIELD}{unit}")) is not None:
            if more <= 0:
                raise Invalid("expected more than 0", pointer=f"/{FIELD}{unit}")
            found[unit] = more
    if not found:
        raise Invalid("enter what to add to at least one unit", pointer=f"/{FIELD}{next(iter(budget.amount))}")
    return found


def units(budget: BudgetState) -> list[Unit]:
    """Return the units of a budget; a bar that is overspent is full."""
    found = []
    for name, amount in budget.amount.items():
        spent, reserved = budget.spent.get(name, 0.0), budget.reserved.get(name, 0.0)
        width = min(100 * spent / amount, 100.0) if amount else 100.0
        more = min(100 * reserved / amount, 100.0 - width) if amount else 0.0
        left = budget.available.get(name, amount)
        found.append(Unit(name, amount, spent, reserved, left, round(width, 2), round(more, 2)))
    return found


def _used(request: PageRequest, name: str) -> plots.PlotLine | None:
    return plots.shares(request.client.overview.utilization.of(request.tenant, PREFIX + name, request.now))
