"""Rate limits: one bucket for each principal, refilled by the clock of the process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from interlock.api.problems import Refusal

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
