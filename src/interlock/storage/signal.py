"""A hint that something may have become claimable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """Wakes everybody who took an event before it was fired; nobody can miss it by waiting a moment too late."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self._hearers: list[Callable[[], None]] = []

    def event(self) -> asyncio.Event:
        """Set when the signal is fired the next time."""
        return self._next

    def hear(self, hearer: Callable[[], None]) -> None:
        """Call somebody whenever the signal is fired."""
        self._hearers.append(hearer)

    def fire(self) -> None:
        self._next.set()
        self._next = asyncio.Event()
        for hearer in self._hearers:
            hearer()
