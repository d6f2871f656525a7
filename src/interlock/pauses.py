"""Growing pauses between the attempts of a loop that retries."""

from __future__ import annotations

import asyncio
import random


class Pauses:
    """Pauses that double up to a limit, and vary, so that callers that failed together do not retry together."""

    def __init__(self, first: float = 0.05, most: float = 2.0) -> None:
        self._first, self._most = first, most
        self._next = first

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause * random.uniform(0.5, 1.0)

    async def wait(self, at_least: float = 0.0) -> None:
        await asyncio.sleep(max(self.next(), at_least))

    def reset(self) -> None:
        """Start again with the shortest pause, after an attempt that succeeded."""
        self._next = self._first
