"""A hint that a job may have become claimable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

ALL_TENANTS: Final = None
# A waiting claim looks again by itself before that, so a later time needs no timer.
LATEST_SECONDS: Final = 1.0
SOONEST_SECONDS: Final = 0.001


@dataclass
class NextLook:
    """In how many seconds limits may admit a job, if a claim got none because of them."""

    seconds: float | None = None


class Wakeup:
    """Wakes all waiters that got an event before it fired, so that a late wait misses nothing.

    Waiters register per tenant or other key and are not woken for others; events without a waiter are dropped.
    """

    def __init__(self) -> None:
        self._next: WeakValueDictionary[str | None, asyncio.Event] = WeakValueDictionary()
        self._hearers: list[Callable[[str | None], None]] = []
        self._due: dict[str, float] = {}

    def event(self, whose: str | None = ALL_TENANTS) -> asyncio.Event:
        """Return the event that the next `fire` sets, for this key or for all."""
        return self._next.setdefault(whose, asyncio.Event())

    def hear(self, hearer: Callable[[str | None], None]) -> None:
        """Call `hearer` with the key whenever `fire` is called."""
        self._hearers.append(hearer)

    def fire_in(self, whose: str, next_look: NextLook) -> None:
        """Fire at the next look, unless a call before has set an earlier time."""
        if next_look.seconds is None or next_look.seconds > LATEST_SECONDS:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = now + max(next_look.seconds, SOONEST_SECONDS)
        if not now < self._due.get(whose, 0.0) <= at:
            self._due[whose] = at
            loop.call_at(at, self.fire, whose)

    def fire(self, whose: str | None = ALL_TENANTS) -> None:
        for one in list(self._next) if whose is ALL_TENANTS else [whose]:
            if (event := self._next.pop(one, None)) is not None:
                event.set()
        for hearer in self._hearers:
            hearer(whose)
