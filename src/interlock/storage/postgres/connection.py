"""Connections to PostgreSQL as the app role, and the translation of its errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Final, TypeVar

import asyncpg

from interlock.errors import Error, Indeterminate, TenantMoved, Unavailable
from interlock.pauses import Pauses
from interlock.storage import broken
from interlock.storage.postgres.column_arrays import EPOCH_2000
from interlock.storage.postgres.hosts import Nodes
from interlock.storage.postgres.pool import LOST, Pool
from interlock.storage.postgres.pool import Conn as Conn

T = TypeVar("T")

OLDEST_SERVER: Final = 150_000
COMMAND_SECONDS: Final = 30.0
TENANT_MOVED: Final = "IL002"
KEEP_TRYING_SECONDS: Final = 10.0
FULL_SECONDS: Final = 30.0

_ADD_TO_LOG: Final = "select pg_logical_emit_message(true, 'interlock', '')"
_RETRY: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_NOT_NOW: Final = (
    asyncpg.TooManyConnectionsError,
    asyncpg.CannotConnectNowError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
)
_POOLED: Final = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)


async def prepare(connection: Conn) -> None:
    """Set up a connection: times as integer microseconds, IDs as text, and only the rights of the app role."""
    await connection.set_type_codec(
        "timestamptz",
        schema="pg_catalog",
        encoder=lambda micros: (micros - EPOCH_2000,),
        decoder=lambda parts: parts[0] + EPOCH_2000,
        format="tuple",
    )
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str, format="text")
    await connection.execute(
        """do $$ begin
          if exists (select from pg_roles where rolname = 'interlock_app') and current_user <> 'interlock_app'
              and (select rolsuper or oid = (select nspowner from pg_namespace where nspname = 'interlock')
                   from pg_roles where rolname = current_user) then
            set role interlock_app;
          end if;
        end $$"""
    )


class Link:
    """A pool that survives the loss of its connections and of the node they lead to."""

    def __init__(self, dsn: str, *, size: int) -> None:
        self._nodes = Nodes(dsn)
        self._doubts = 0
        self._full_at: float | None = None
        self._settled = 0
        self.pool = Pool(self._connect, size=size)

    @classmethod
    async def open(cls, dsn: str, *, size: int) -> Link:
        link = cls(dsn, size=size)
        try:
            await link._try_out()
        except (*_NOT_NOW, *LOST) as error:
            raise Unavailable(f"PostgreSQL cannot be reached: {str(error) or 'no answer in time'}") from error
        except asyncpg.PostgresError as error:
            raise Unavailable(f"PostgreSQL refused the connection: {error}") from error
        return link

    def check_disk(self) -> None:
        """Raise Unavailable if a write recently found the disk full; reads still work then and do not show it."""
        if self._full_at is not None and asyncio.get_running_loop().time() - self._full_at < FULL_SECONDS:
            full = "the disk of the database is full; nothing was written, free some space"
            raise Unavailable(full, public=full)

    async def run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Run an operation and return its result.

        Retries deadlocks and serialization failures, and lost connections if the operation is repeatable. Otherwise a
        lost connection raises Indeterminate, because the commit may have happened.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KEEP_TRYING_SECONDS
        pauses = Pauses(0.02, 1.0)
        while True:
            acquired = started = answered = False
            generation = self._nodes.generation
            try:
                async with self.pool.lend(KEEP_TRYING_SECONDS) as connection:
                    acquired = True
                    await self._settle(connection)
                    started = True
                    answer = await self._try(verb, connection)
                    answered = True
                    await self._settle(connection)
                    return answer
            except Error:
                raise
            except asyncpg.ReadOnlySQLTransactionError as error:
                meaning: Error = Unavailable(f"PostgreSQL takes no writes here any more: {error}")
                self.pool.expire()  # the primary was demoted; find the new one
            except _RETRY as error:
                meaning = Unavailable(f"PostgreSQL could not serialise this change: {error}")
            except _NOT_NOW as error:
                meaning = Unavailable(f"PostgreSQL cannot do this now: {error}")
                if isinstance(error, asyncpg.DiskFullError):
                    self._full_at = loop.time()
                    full = "the disk of the database is full; nothing was written, free some space"
                    meaning = Unavailable(f"PostgreSQL cannot do this now: {error}", public=full)
            except _POOLED as error:
                raise Unavailable(
                    "a pooler mixes up prepared statements; PgBouncer keeps them apart from 1.21 on, with "
                    "max_prepared_statements above 0"
                ) from error
            except LOST as error:
                if acquired and isinstance(error, TimeoutError) and self._nodes.pass_over(generation):
                    self.pool.expire()
                if started and not repeatable:
                    raise Indeterminate("the connection broke; the change may or may not have happened") from error
                lost = Indeterminate if started else Unavailable
                meaning = lost(f"PostgreSQL cannot be reached: {str(error) or type(error).__name__}")
            except asyncpg.PostgresError as error:
                if error.sqlstate == TENANT_MOVED:
                    raise TenantMoved from error
                raise
            if answered and not repeatable:
                raise Indeterminate("the change was made, but the standbys may not have it")
            pause = pauses.next()
            if loop.time() + pause > deadline:
                raise meaning
            await asyncio.sleep(pause)

    async def _try(self, verb: Callable[[Conn], Awaitable[T]], connection: Conn) -> T:
        try:
            return await verb(connection)
        except (asyncio.CancelledError, *LOST):
            self._doubts += 1
            raise

    async def _try_out(self) -> None:
        try:
            async with self.pool.lend():
                pass
        except BaseException:
            self.pool.terminate()
            raise

    async def _connect(self) -> Conn:
        connection = await self._nodes.connect(command_timeout=COMMAND_SECONDS)
        self._doubts += 1
        try:
            await prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _settle(self, connection: Conn) -> None:
        """After a crash or a lost connection, wait until everything readable here has reached the standbys.

        A commit that was interrupted while it waited for the standbys is readable before they have it. No caller may
        build on it until then: a repeated call would find its work done. This commit returns after they have it. It
        runs before a call, and again after it if a connection was lost meanwhile.
        """
        doubts = self._doubts
        if doubts != self._settled:
            with contextlib.suppress(asyncpg.DiskFullError):  # writes fail on their own, reads need not
                await connection.execute(_ADD_TO_LOG, timeout=self._nodes.retry_seconds)
            self._settled = doubts

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.pool.close(), 5)
        except TimeoutError:
            self.pool.terminate()


def of_a_row(error: Exception) -> bool:
    """Return whether an invalid row may have caused the error: integrity, data, or raised by our functions."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in ("22", "23", "P0")
    return not isinstance(error, asyncpg.InterfaceError) and broken.unreadable(error)


@lru_cache
def call(function: str, arguments: int, *, columns: str = "*") -> str:
    """Return the statement that calls one of our functions."""
    return f"select {columns} from interlock.{function}({', '.join(f'${i}' for i in range(1, arguments + 1))})"
