"""Connection pool in which acquire and release are one dictionary operation each.

asyncpg's own pool creates a task, a timer and a proxy per call, which costs as much as the call itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, TypeAlias

import asyncpg

Conn: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

IDLE_SECONDS: Final = 300.0
LIFETIME_SECONDS: Final = 1800.0  # the memory of a server session grows
CLOSE_SECONDS: Final = 5.0

# After these errors the state of the connection on the server is unknown.
LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class Pool:
    """At most `size` connections, opened on demand. Callers that find none free wait in FIFO order."""

    def __init__(self, connect: Callable[[], Awaitable[Conn]], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._vacancies = size  # capacity for connections that are neither open nor opening
        self._good_until: dict[Conn, float] = {}  # for every open connection
        self._idle: dict[Conn, float] = {}  # idle since, most recent last
        self._waiting: deque[asyncio.Future[Conn | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._expiries = 0
        self._all_gone = asyncio.Event()

    def lend(self, seconds: float | None = None) -> Loan:
        """Return a context manager for a connection; it raises TimeoutError if none is free in time."""
        return Loan(self, seconds)

    async def acquire(self, seconds: float | None) -> Conn:
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        if self._is_closed:
            raise asyncpg.InterfaceError("the pool is closed")
        async with asyncio.timeout(seconds):
            if self._vacancies:
                self._vacancies -= 1
                return await self._make()
            return await self._wait() or await self._make()

    def release(self, connection: Conn) -> None:
        """Return a connection without a running operation to the pool."""
        now = self._loop.time()
        if connection.is_closed() or self._good_until[connection] < now:
            self._drop(connection)
        elif self._is_closed or connection.is_in_transaction():
            self.retire(connection)
        elif not self._hand_on(connection):
            self._idle[connection] = now
            if self._look is None:
                self._look = self._loop.call_later(IDLE_SECONDS, self._drop_idle)

    def retire(self, connection: Conn) -> asyncio.Task[None]:
        """Close a connection that may not be reused, once the server has ended its operation."""
        closing = self._loop.create_task(self._close(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    def expire(self) -> None:
        """Replace all connections: idle ones now, those in use when they are released."""
        self._expiries += 1
        self._good_until = dict.fromkeys(self._good_until, 0.0)
        while self._idle:
            self._drop(self._idle.popitem()[0])

    async def close(self) -> None:
        """Close every connection, after waiting for those in use."""
        self._shut()
        while self._idle:
            self.retire(self._idle.popitem()[0])
        if self._vacancies < self._size:
            await self._all_gone.wait()

    def terminate(self) -> None:
        """Terminate every connection, in use or not."""
        self._shut()
        for connection in self._good_until:
            connection.terminate()
        while self._idle:
            self._drop(self._idle.popitem()[0])

    def _shut(self) -> None:
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(asyncpg.InterfaceError("the pool was closed"))

    async def _make(self) -> Conn:
        """Open a connection; the caller has already reserved its capacity."""
        expiries = self._expiries
        try:
            connection = await self._connect()
            if self._is_closed:
                connection.terminate()
                raise asyncpg.InterfaceError("the pool was closed")
        except BaseException:
            self._vacate()
            raise
        # A connection started before expire() may lead to the old node.
        self._good_until[connection] = self._loop.time() + LIFETIME_SECONDS if expiries == self._expiries else 0.0
        return connection

    async def _wait(self) -> Conn | None:
        """Wait for a released connection; return None for the capacity to open one."""
        waiter: asyncio.Future[Conn | None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            connection = await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
            elif waiter.exception() is None:  # it was served at the same moment
                self._give_back(waiter.result())
            raise
        if connection is not None and connection.is_closed():
            self._end(connection)
            return None
        return connection

    def _give_back(self, connection: Conn | None) -> None:
        if connection is None:
            self._vacate()
        else:
            self.release(connection)

    def _hand_on(self, connection: Conn | None) -> bool:
        """Pass a connection or free capacity to the next waiter; return whether there was one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _vacate(self) -> None:
        if not self._hand_on(None):
            self._vacancies += 1
            if self._is_closed and self._vacancies == self._size:
                self._all_gone.set()

    def _drop(self, connection: Conn) -> None:
        """Terminate a connection without a running operation, and free its capacity."""
        self._end(connection)
        self._vacate()

    def _end(self, connection: Conn) -> None:
        connection.terminate()
        del self._good_until[connection]

    async def _close(self, connection: Conn) -> None:
        try:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await connection.close()
        finally:
            self._drop(connection)

    def _drop_idle(self) -> None:
        now = self._loop.time()
        for connection, since in list(self._idle.items()):
            if now < since + IDLE_SECONDS:
                self._look = self._loop.call_at(since + IDLE_SECONDS, self._drop_idle)
                return
            del self._idle[connection]
            self._drop(connection)
        self._look = None


class Loan:
    """A connection in use. It returns to the pool unless the server may still be busy with its operation."""

    def __init__(self, pool: Pool, seconds: float | None) -> None:
        self._pool = pool
        self._seconds = seconds

    async def __aenter__(self) -> Conn:
        self._connection = await self._pool.acquire(self._seconds)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, Exception) and not isinstance(error, LOST)):
            self._pool.release(self._connection)
            return
        closing = self._pool.retire(self._connection)
        if isinstance(error, asyncio.CancelledError):
            # The cancelled caller continues with other work and relies on this operation having ended.
            await asyncio.shield(closing)
