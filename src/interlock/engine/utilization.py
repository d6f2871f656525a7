"""How much of their limits and budgets the tenants of this server used in the last hour, by minute."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from interlock.domain.budget import BudgetState
from interlock.domain.limits import BucketState, Limit, LimitState
from interlock.engine.budgets import Budgets
from interlock.engine.limits import FlowLimits
from interlock.errors import Error
from interlock.storage.contract import Store

log = logging.getLogger(__name__)

MINUTE: Final = 60_000_000
MINUTES: Final = 60
MAX_SERIES: Final = 20_000
SAMPLE_SECONDS: Final = 5.0
MAX_TENANTS: Final = 100  # of one pass; the next one continues after them
MAX_SAMPLED: Final = 100  # limits of a tenant, and as many budgets

Series = tuple[str, str, str]  # tenant, limit or budget, key


class Utilization:
    """The highest share of each minute, as it was read by maintenance, by a page, or by a scrape of the metrics."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Series, dict[int, float]] = OrderedDict()

    def record_limits(self, tenant: str, states: Iterable[LimitState], now: int) -> None:
        """Remember the shares of limits without keys."""
        for limit, state, _ in states:
            if not limit.keyed:
                self.record_bucket(tenant, limit, state, now)

    def record_bucket(self, tenant: str, limit: Limit, state: BucketState, now: int) -> None:
        if (share := share_of(limit, state)) is not None:
            self._add((tenant, limit.name, state.key), now, share)

    def record_budgets(self, tenant: str, budgets: Iterable[BudgetState], now: int) -> None:
        for one in budgets:
            self._add((tenant, f"budget:{one.name}", ""), now, budget_share(one))

    def of(self, tenant: str, name: str, now: int, key: str = "") -> list[float | None]:
        """Return the share of each minute of the last hour in percent, oldest first; None where none was read."""
        seen: Mapping[int, float] = self._kept.get((tenant, name, key), {})
        return [
            None if (share := seen.get(now // MINUTE - ago)) is None else 100 * share
            for ago in range(MINUTES - 1, -1, -1)
        ]

    def _add(self, series: Series, now: int, share: float) -> None:
        seen = self._kept.setdefault(series, {})
        self._kept.move_to_end(series)
        minute = now // MINUTE
        seen[minute] = max(seen.get(minute, 0.0), share)
        for old in [one for one in seen if one <= minute - MINUTES]:
            del seen[old]
        if len(self._kept) > MAX_SERIES:
            self._kept.popitem(last=False)


class UtilizationSampler:
    """Reads the limits and budgets of all tenants from time to time, so that there is an hour to show."""

    def __init__(self, store: Store, flow: FlowLimits, budgets: Budgets, utilization: Utilization) -> None:
        self._store, self._flow, self._budgets, self._utilization = store, flow, budgets, utilization
        self._after = ""

    async def sample(self) -> None:
        """Read those of the next tenants; one that cannot be read does not stop the others."""
        tenants = await self._store.limits.tenants()
        following = [one for one in tenants if one > self._after][:MAX_TENANTS]
        self._after = following[-1] if len(following) == MAX_TENANTS else ""
        for tenant in following:
            try:
                now = await self._store.now()
                self._utilization.record_limits(tenant, await self._flow.page(tenant, limit=MAX_SAMPLED), now)
                self._utilization.record_budgets(tenant, await self._budgets.page(tenant, limit=MAX_SAMPLED), now)
            except Error as error:
                log.warning("cannot read the limits of tenant %s, retrying: %s", tenant, error)


def share_of(limit: Limit, state: BucketState) -> float | None:
    """Return how much of a bucket is in use: its fullest unit, from 0 to 1 and above while in debt."""
    shares = [1 - state.available.get(unit, most) / most for unit, most in capacity(limit).items() if most > 0]
    return max(0.0, *shares) if shares else None


def capacity(limit: Limit) -> dict[str, float]:
    """Return what a bucket holds at most, by unit."""
    places = {} if limit.concurrency is None else {"concurrency": float(limit.concurrency)}
    return places | {unit: limit.burst.get(unit, amount) for unit, amount in limit.units.items()}


def budget_share(budget: BudgetState) -> float:
    """Return how much of a budget is spent or reserved: its fullest unit."""
    shares = [1 - budget.available[unit] / amount for unit, amount in budget.amount.items() if amount > 0]
    return max(0.0, *shares)
