"""`interlock budgets`: list, show, set, raise, delete."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock.cli import output
from interlock.cli.limits import amounts_of, units
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.client.port import Client
from interlock.domain.budget import BudgetState, OnExceed, Per
from interlock.wire.budgets import BudgetRequest, budget_to_dict

app = App(name="budgets", help="Bound how much jobs use in total, or in each hour, day or month.")

Amounts = Annotated[list[str], Parameter(negative=(), help="amount of a unit, such as usd=100; repeatable")]


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="list only budgets after this name, to continue a list")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List budgets by name."""
    found = run(common, lambda client: client.budgets.list(after=after, limit=limit))
    common.show_list(
        "budgets",
        found,
        budget_to_dict,
        ("name", "amount", "per", "spent", "reserved", "waiting", "resets at"),
        lambda one: (
            one.name, units(one.amount), one.per or "", units(one.spent), units(one.reserved), one.waiting,
            output.time(one.resets_at),
        ),
    )  # fmt: skip


@app.command
def show(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Print one budget and what was spent of it."""
    common.show_facts(budget_to_dict(run(common, lambda client: client.budgets.get(name))))


@app.command(name="set")
def set_(
    name: str,
    *,
    amount: Amounts,
    per: Annotated[Per | None, Parameter(help="start anew each hour, day or month; default: never")] = None,
    timezone: Annotated[str, Parameter(help="IANA time zone of --per, such as Europe/Berlin")] = "UTC",
    on_exceed: Annotated[
        OnExceed, Parameter(help="when spent: pause its jobs, ask approvers to raise it, fail them, or only warn")
    ] = OnExceed.PAUSE,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create or update a budget. What was spent stays."""

    async def put(client: Client) -> BudgetState:
        wanted = BudgetRequest(amount=amounts_of(amount, "amount"), per=per, timezone=timezone, on_exceed=on_exceed)
        return await client.budgets.set(name, wanted)

    common.show(budget_to_dict(run(common, put)), f"{name}: set")


@app.command(name="raise")
def raise_(name: str, *, amount: Amounts, common: Anywhere = ANYWHERE) -> None:
    """Add to the amount of a budget. Its waiting jobs continue as far as that goes."""

    async def add(client: Client) -> BudgetState:
        return await client.budgets.raise_by(name, amounts_of(amount, "amount"))

    common.show(budget_to_dict(run(common, add)), f"{name}: raised")


@app.command
def delete(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete a budget that no unfinished job names."""
    run(common, lambda client: client.budgets.delete(name))
    common.show({"deleted": name}, f"{name}: deleted")
