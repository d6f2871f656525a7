"""A hint that something may have become claimable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

ALL_TENANTS: Final = None


class Wakeup:
    """Wakes everybody who took an event before it was fired; nobody can miss it by waiting a moment too late.

    Who waits says for whom, a tenant mostly, and is not woken for others; an event that nobody holds is forgotten.
    """

    def __init__(self) -> None:
        self._next: WeakValueDictionary[str | None, asyncio.Event] = WeakValueDictionary()
        self._hearers: list[Callable[[str | None], None]] = []

    def event(self, whose: str | None = ALL_TENANTS) -> asyncio.Event:
        """Set when the signal is fired the next time, for them or for everybody."""
        return self._next.setdefault(whose, asyncio.Event())

    def hear(self, hearer: Callable[[str | None], None]) -> None:
        """Call somebody with whom it is for, whenever the signal is fired."""
        self._hearers.append(hearer)

    def fire(self, whose: str | None = ALL_TENANTS) -> None:
        for one in list(self._next) if whose is ALL_TENANTS else [whose]:
            if (event := self._next.pop(one, None)) is not None:
                event.set()
        for hearer in self._hearers:
            hearer(whose)
