"""Budgets in JSON: the request, and the response body."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from interlock.domain.budget import PREFIX, TREE, BudgetState, OnExceed, Per, Period
from interlock.domain.limits import Limit
from interlock.wire import responses
from interlock.wire.encode import serializer


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A budget: an amount of units in total, or per calendar period in a time zone."""

    amount: dict[str, float]
    per: Per | None = None
    timezone: str = "UTC"
    on_exceed: OnExceed = OnExceed.PAUSE


class BudgetShape(responses.Shape, frozen=True, kw_only=True):
    """A budget and what its jobs have spent and reserved in the current period."""

    name: str
    amount: dict[str, float]
    per: Per | None
    timezone: str
    on_exceed: OnExceed
    spent: dict[str, float]
    reserved: dict[str, float]
    available: dict[str, float]
    running: int
    waiting: int
    resets_at: datetime | None
    created_at: datetime
    updated_at: datetime


class JobBudgetShape(responses.Shape, frozen=True, kw_only=True):
    """The budget of a job and its descendants, and what they have spent and reserved."""

    root_id: str
    amount: dict[str, float]
    spent: dict[str, float]
    reserved: dict[str, float]
    available: dict[str, float]
    running: int
    waiting: int
    created_at: datetime
    updated_at: datetime


budget_to_dict: Final = serializer(BudgetState)
job_budget_to_dict: Final = serializer(
    BudgetState,
    without=["name", "per", "timezone", "on_exceed", "resets_at"],
    root_id=lambda found: found.name.removeprefix(TREE),
)


def budget_from(name: str, request: BudgetRequest) -> Limit:
    """Return the budget that a request describes, as a limit."""
    period = Period(request.per, request.timezone, request.on_exceed).check()
    return Limit(PREFIX + name, units=request.amount, budget=period)
