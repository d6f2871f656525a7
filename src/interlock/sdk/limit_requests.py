"""Requests for limits and budgets, from the arguments that `app.limits`, `app.limit` and their likes accept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from interlock.client.port import BudgetRequest, LimitRequest, Rate
from interlock.domain import limits
from interlock.domain.budget import MAX_NAME_LENGTH, PREFIX, OnExceed, Per, Period
from interlock.domain.json_text import NAME_RULE, is_visible_name
from interlock.domain.limits import Limit
from interlock.errors import Invalid
from interlock.sdk.exceptions import in_seconds

V = TypeVar("V", LimitRequest, BudgetRequest)


def limit_request(
    *,
    concurrency: int | None,
    rate: Mapping[str, float] | None,
    per: float | timedelta,
    burst: Mapping[str, float] | None,
    keyed: bool,
    fair: bool,
    weights: Mapping[str, float] | None,
) -> LimitRequest:
    """Return the request for a limit; `burst` without a rate is rejected, as it would have no effect."""
    if rate is None and burst is not None:
        raise Invalid("burst needs rate: it is the largest amount of a rate at one time", pointer="/rate")
    rates = None
    if rate is not None:
        rates = Rate(units={**rate}, per_seconds=in_seconds(per) or 0.0, burst=None if burst is None else {**burst})
    given = None if weights is None else {**weights}
    return LimitRequest(concurrency=concurrency, rate=rates, keyed=keyed, fair=fair, weights=given)


def budget_request(amount: Mapping[str, float], *, per: str | None, timezone: str, on_exceed: str) -> BudgetRequest:
    """Return the request for a budget."""
    return BudgetRequest(
        amount={**amount}, per=None if per is None else Per(per), timezone=timezone, on_exceed=OnExceed(on_exceed)
    )


def checked_limit(name: str, request: LimitRequest) -> Limit:
    """Return the limit that a request describes; reject what a server would reject."""
    request = _typed(f"limit {name!r}", request)
    rate = Rate(units={}) if request.rate is None else request.rate
    return limits.check(
        Limit(
            _name(name), request.concurrency, rate.units, rate.per_seconds, rate.burst or {},
            request.keyed, request.fair, request.weights or {},
        )
    )  # fmt: skip


def checked_budget(name: str, request: BudgetRequest) -> Limit:
    """Return the budget that a request describes, as a limit; reject what a server would reject."""
    request = _typed(f"budget {name!r}", request)
    if len(name) > MAX_NAME_LENGTH:
        raise Invalid(f"name is too long: expected at most {MAX_NAME_LENGTH} characters", pointer="/name")
    period = Period(request.per, request.timezone, request.on_exceed).check()
    return limits.check(Limit(PREFIX + _name(name), units=request.amount, budget=period))


def _typed(what: str, request: V) -> V:
    """Reject values of a wrong type, which a constructor accepts."""
    given: Any = msgspec.to_builtins(request)
    try:
        return msgspec.convert(given, type(request))
    except msgspec.ValidationError as error:
        raise TypeError(f"{what}: {error}") from None


def _name(name: str) -> str:
    if not is_visible_name(name):
        raise Invalid(f"name must be {NAME_RULE}", pointer="/name")
    return name
