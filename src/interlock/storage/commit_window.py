"""When merged calls go out to a store with one writer: all verbs together, in as few commits as there can be."""

from __future__ import annotations

import asyncio
from typing import Final

QUIET_PASSES: Final = 2  # what one turn of the loop reads gets here in the next
MAX_PASSES: Final = 12
MAX_SECONDS: Final = 0.02  # where turns are long


class CommitWindow:
    """Lets calls out in rounds: the next begins when the last is back and nobody new has come for a moment.

    Whoever the last round has answered mostly comes again within that moment, which is counted in turns of the loop,
    not in time, and bounded in both. Where nothing is under way and nobody else comes, a call goes out at once.
    """

    def __init__(self) -> None:
        self.came = 0
        self._out = 0
        self._until = 0.0
        self._next: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        if self._loop is not (loop := asyncio.get_running_loop()):  # what another one left behind never comes back
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
        """Begin the round, or look again in the next turn."""
        if came != self.came:
            quiet = 0
        if quiet < QUIET_PASSES and passes < MAX_PASSES and loop.time() < self._until:
            loop.call_soon(self._look, loop, self.came, quiet + 1, passes + 1)
        elif self._next is not None:
            self._next.set()
            self._next = None
