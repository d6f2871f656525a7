"""Admission control: limits on concurrent requests and their rate, a share for each tenant, a budget for bodies."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from interlock.api.options import Options
from interlock.api.problems import Refusal

STRANGERS: Final = ""  # callers of routes that need no credential; not a valid tenant name


class Admission:
    """Counts of requests in progress. Rejects requests over the limit immediately, because a backlog would grow."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.active = 0
        self.waiting = 0
        self.arriving = 0  # counted apart from `waiting`, so that long polls never block the finishes of their jobs
        self.body_bytes = 0
        self.by_tenant: Counter[tuple[str, str]] = Counter()  # also by kind of count

    def enter(self) -> Seat:
        self.active += 1
        return Seat(self)

    def check(self) -> None:
        if self.active > self._options.most_active:
            raise overloaded("too many requests are at work")

    def share(self, whole: int, tenant: str) -> int:
        """Return one tenant's share of a limit; callers without a credential get a smaller one."""
        if not self._options.auth:
            return whole
        part = self._options.strangers_share if tenant == STRANGERS else self._options.tenant_share
        return max(1, round(whole * part))

    @property
    def options(self) -> Options:
        return self._options


class Seat:
    """One request's admission, from its first header to its last byte."""

    def __init__(self, admission: Admission) -> None:
        self._of = admission
        self._tenant: str | None = None
        self._bytes = 0
        self._left = False

    def belongs_to(self, tenant: str) -> None:
        """Count the request for its tenant, so that a flood from one tenant cannot use up all capacity."""
        self._check_share(tenant, 1)
        self._tenant = tenant
        self._of.by_tenant[tenant, "active"] += 1

    def hold(self, size: int) -> None:
        """Reserve bytes of the body budget before the body is read; one tenant can use only its share."""
        budget = self._of.options.body_budget
        if self._of.body_bytes + size > budget:
            raise overloaded("too many bodies are being read")
        if self._of.by_tenant[self._whose, "bytes"] + size > self._of.share(budget, self._whose):
            raise overloaded("too many bodies of this tenant are being read")
        self._of.body_bytes += size
        self._count("bytes", size)
        self._bytes += size

    def check_waiting(self) -> None:
        """Reject a request for which there is no capacity to wait."""
        most, whose = self._of.options.most_waiting, self._whose
        if self._of.waiting >= most or self._of.by_tenant[whose, "waiting"] >= self._of.share(most, whose):
            raise overloaded("too many requests are waiting")

    def check_arriving(self) -> None:
        """Reject a body for which there is no capacity to wait."""
        most, whose = self._of.options.most_arriving, self._whose
        if self._of.arriving >= most or self._of.by_tenant[whose, "arriving"] >= self._of.share(most, whose):
            raise overloaded("too many request bodies are arriving")

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Count the request as waiting instead of active: a long poll costs only memory."""
        self.check_waiting()
        self._of.waiting += 1
        self._move(1, "waiting")
        try:
            yield
        finally:
            self._of.waiting -= 1
            self._move(-1, "waiting")

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Count the request as arriving while its body is read, at any speed; then check the active limits again."""
        self.check_arriving()
        with self.aside():
            yield
        self._of.check()
        if self._tenant is not None:
            self._check_share(self._tenant, 0)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count the request as arriving while a piece of its body is read; never rejects it midway."""
        self._of.arriving += 1
        self._move(1, "arriving")
        try:
            yield
        finally:
            self._of.arriving -= 1
            self._move(-1, "arriving")

    def leave(self) -> None:
        """Release everything this request counts for. Repeated calls do nothing."""
        if self._left:
            return
        self._left = True
        self._of.active -= 1
        if self._bytes:
            self._of.body_bytes -= self._bytes
            self._count("bytes", -self._bytes)
        if self._tenant is not None:
            self._count("active", -1)

    def _check_share(self, tenant: str, more: int) -> None:
        if self._of.by_tenant[tenant, "active"] + more > self._of.share(self._of.options.most_active, tenant):
            raise overloaded("too many requests of this tenant are at work")

    @property
    def _whose(self) -> str:
        return STRANGERS if self._tenant is None else self._tenant

    def _move(self, change: int, where: str) -> None:
        self._of.active -= change
        self._count(where, change)
        if self._tenant is not None:
            self._count("active", -change)

    def _count(self, what: str, change: int) -> None:
        key = (self._whose, what)
        self._of.by_tenant[key] += change
        if not self._of.by_tenant[key]:
            del self._of.by_tenant[key]  # as many keys as tenants with requests, never more


def overloaded(why: str) -> Refusal:
    return Refusal("overloaded", f"{why}; try again in a moment")


MAX_BUCKETS: Final = 100_000


class RateLimiter:
    """A token bucket for each key: `burst` requests immediately, `per_second` on average."""

    def __init__(self, per_second: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the longest unused first

    def take(self, key: str) -> None:
        """Take one token, or raise an error with the time until the next one."""
        left = self._left(key)
        self._buckets.pop(key, None)
        self._buckets[key] = (left - 1 if left >= 1 else left, self._clock())
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        self._refuse_if_empty(left)

    def _left(self, key: str) -> float:
        now = self._clock()
        left, then = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + (now - then) * self._per_second)

    def _refuse_if_empty(self, left: float) -> None:
        if left < 1:
            seconds = max(1, math.ceil((1 - left) / self._per_second))
            raise Refusal(
                "rate_limited", f"too many requests: retry in {seconds} s", headers={"retry-after": str(seconds)}
            )
