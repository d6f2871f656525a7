"""A hint that a job may have become claimable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

ALL_TENANTS: Final = None


class Wakeup:
    """Wakes all waiters that got an event before it fired, so that a late wait misses nothing.

    Waiters register per tenant or other key and are not woken for others; events without a waiter are dropped.
    """

    def __init__(self) -> None:
        self._next: WeakValueDictionary[str | None, asyncio.Event] = WeakValueDictionary()
        self._hearers: list[Callable[[str | None], None]] = []

    def event(self, whose: str | None = ALL_TENANTS) -> asyncio.Event:
        """Return the event that the next `fire` sets, for this key or for all."""
        return self._next.setdefault(whose, asyncio.Event())

    def hear(self, hearer: Callable[[str | None], None]) -> None:
        """Call `hearer` with the key whenever `fire` is called."""
        self._hearers.append(hearer)

    def fire(self, whose: str | None = ALL_TENANTS) -> None:
        for one in list(self._next) if whose is ALL_TENANTS else [whose]:
            if (event := self._next.pop(one, None)) is not None:
                event.set()
        for hearer in self._hearers:
            hearer(whose)
