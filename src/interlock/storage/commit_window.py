"""Timing of merged calls to a store with one writer: all operations together, in as few commits as possible."""

from __future__ import annotations

import asyncio
from typing import Final

QUIET_PASSES: Final = 2  # a request read in one pass of the loop arrives here in the next
MAX_PASSES: Final = 12
MAX_SECONDS: Final = 0.02  # if passes are slow


class CommitWindow:
    """Sends calls in batches: the next starts when the last has returned and no new call has arrived for a moment.

    Callers of the last batch usually call again within that moment, which is counted in passes of the event loop, not
    in time, and bounded in both. If nothing is in flight and no other call arrives, a call is sent immediately.
    """

    def __init__(self) -> None:
        self.came = 0
        self._out = 0
        self._until = 0.0
        self._next: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        if self._loop is not (loop := asyncio.get_running_loop()):  # the calls of a closed loop never return
            self._loop, self._out, self._next = loop, 0, None
        if self._next is None:
            self._next = asyncio.Event()
            if not self._out:
                self._look_around()
        await self._next.wait()
        self._out += 1

    async def __aexit__(self, *_: object) -> None:
        self._out -= 1
        if not self._out and self._next is not None:
            self._look_around()

    def _look_around(self) -> None:
        loop = asyncio.get_running_loop()
        self._until = loop.time() + MAX_SECONDS
        loop.call_soon(self._look, loop, self.came, 1, 1)

    def _look(self, loop: asyncio.AbstractEventLoop, came: int, quiet: int, passes: int) -> None:
        """Start the batch, or check again in the next pass."""
        if came != self.came:
            quiet = 0
        if quiet < QUIET_PASSES and passes < MAX_PASSES and loop.time() < self._until:
            loop.call_soon(self._look, loop, self.came, quiet + 1, passes + 1)
        elif self._next is not None:
            self._next.set()
            self._next = None
