"""DNS lookups with the system resolver, which cannot be cancelled: each owner has its own thread limit."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakValueDictionary

RESOLVERS: Final = 64
RESOLVERS_OF_ONE: Final = 4


class Dns:
    """A dedicated thread pool with a few threads per owner.

    A hanging lookup counts against its owner until its thread returns, even after the caller has timed out.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, "interlock-resolver")
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # kept only during lookups

    async def addresses(self, host: str, port: int, *, owner: str) -> Sequence[str]:
        """Resolve a name to addresses once one of the owner's threads is free."""
        room = self._rooms.setdefault(owner, asyncio.Semaphore(RESOLVERS_OF_ONE))
        loop = asyncio.get_running_loop()

        def free(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have closed before a hanging thread returned
                loop.call_soon_threadsafe(room.release)

        await room.acquire()
        looking = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        looking.add_done_callback(free)
        found = await asyncio.wrap_future(looking)
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
