"""Connecting to PostgreSQL as the app role, and what its errors mean to a caller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from interlock.errors import Error, Indeterminate, Unavailable

T = TypeVar("T")
if TYPE_CHECKING:
    Conn = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Conn = Any

OLDEST_SERVER: Final = 150_000
EPOCH_2000: Final = 946_684_800_000_000
COMMAND_SECONDS: Final = 30.0
KEEP_TRYING_SECONDS: Final = 10.0

_RETRY: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_NOT_NOW: Final = (
    asyncpg.TooManyConnectionsError,
    asyncpg.CannotConnectNowError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
    asyncpg.ReadOnlySQLTransactionError,
)
_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


async def prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Set up one connection: times as whole microseconds, ids as text, and never more rights than the app role has."""
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


async def reset(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Nothing to reset: verbs leave no session state behind, so a round trip is saved."""


class Link:
    """A pool that survives the loss of its connections."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.pool = pool

    @classmethod
    async def open(cls, dsn: str, *, size: int) -> Link:
        try:
            pool = await asyncpg.create_pool(
                dsn, min_size=1, max_size=size, init=prepare, reset=reset, command_timeout=COMMAND_SECONDS, timeout=10
            )
        except (*_NOT_NOW, *_LOST) as error:
            raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
        except asyncpg.PostgresError as error:
            raise Unavailable(f"PostgreSQL refused the connection: {error}") from error
        return cls(pool)

    async def run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T:
        """The answer of the verb.

        Deadlocks and serialization failures are run again. A lost connection too if the verb may be repeated; else, as
        the commit may have happened, the answer is Indeterminate.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KEEP_TRYING_SECONDS
        pause = 0.02
        while True:
            started = False
            try:
                async with self.pool.acquire(timeout=KEEP_TRYING_SECONDS) as connection:
                    started = True
                    return await verb(connection)
            except Error:
                raise
            except _RETRY as error:
                meaning: Error = Unavailable(f"PostgreSQL could not serialise this change: {error}")
            except _NOT_NOW as error:
                meaning = Unavailable(f"PostgreSQL cannot do this now: {error}")
            except _LOST as error:
                if started and not repeatable:
                    raise Indeterminate("the connection broke; the change may or may not have happened") from error
                lost = Indeterminate if started else Unavailable
                meaning = lost(f"PostgreSQL cannot be reached: {str(error) or type(error).__name__}")
            if loop.time() + pause > deadline:
                raise meaning
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.pool.close(), 5)
        except TimeoutError:
            self.pool.terminate()


def array_literal(values: tuple[str, ...]) -> str:
    """Names as the text of a PostgreSQL array."""
    if not values:
        return "{}"
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


@lru_cache
def call(function: str, arguments: int) -> str:
    """The statement that calls one of our functions."""
    return f"select * from interlock.{function}({', '.join(f'${i}' for i in range(1, arguments + 1))})"
