"""A hint that something may have become claimable."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes everybody who took an event before it was fired; nobody can miss it by waiting a moment too late."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def event(self) -> asyncio.Event:
        """Set when the signal is fired the next time."""
        return self._next

    def fire(self) -> None:
        self._next.set()
        self._next = asyncio.Event()
