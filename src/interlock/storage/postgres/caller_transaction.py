"""Enqueue inside the caller's transaction: the jobs commit or roll back with it.

The connection may belong to asyncpg, psycopg (2 or 3, sync or async), or SQLAlchemy over one of them.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from inspect import isawaitable
from typing import Any, Final, cast
from uuid import UUID

import asyncpg

from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.errors import Forbidden, Invalid, TenantMoved
from interlock.storage.contract import RegistryChanged, Terms
from interlock.storage.postgres.connection import TENANT_MOVED, Conn
from interlock.storage.postgres.enqueue import REGISTRY_CHANGED, EnqueueCache, StaleCache, enqueue

IDLE: Final = 0
FOREIGN_KEY: Final = "23503"
NOT_PERMITTED: Final = "42501"
NO_SCHEMA: Final = "3F000"
NOT_HERE: Final = (
    "the database of this connection has no schema interlock: connect to the database of the app, "
    "or run interlock migrate there"
)
SAVEPOINT: Final = "interlock_enqueue"
_PLACEHOLDER: Final = re.compile(r"\$\d+")


async def enqueue_within(
    connection: object, tenant: str, jobs: Sequence[NewJob], terms: Terms
) -> list[Enqueued | Rejected]:
    """Add all jobs or none. A rejection or a changed registry leaves the caller's transaction as it was."""
    caller = await _caller(connection)
    if not caller.is_in_transaction():
        raise Invalid("this connection is in no transaction; begin one, the job is to be a part of it")
    # Use a fresh cache: rows created here disappear if the caller rolls back.
    try:
        async with caller.transaction():
            return await enqueue(cast(Conn, caller), EnqueueCache(), tenant, jobs, True, terms)
    except StaleCache as error:
        raise RegistryChanged(tenant) from error
    except Exception as error:
        code = _code(error)
        if code == NOT_PERMITTED and (denied := await _missing_privilege(caller)) is not None:
            raise denied from error
        if code == NO_SCHEMA:
            raise Invalid(NOT_HERE, pointer="/within") from error
        raise


async def _missing_privilege(caller: _Caller) -> Forbidden | None:
    """Return which privilege the role lacks, or None if the error has another cause."""
    row = await caller.fetchrow("select quote_ident(current_user), pg_has_role(current_user, 'interlock_app', 'usage')")
    if row is None or row[1]:
        return None
    return Forbidden(
        f"database role {row[0]} lacks the role interlock_app, which it needs to enqueue jobs: "
        f"as the owner of the schema, run GRANT interlock_app TO {row[0]}"
    )


async def _caller(connection: Any) -> _Caller:
    for _ in range(3):
        match type(connection).__module__.partition(".")[0]:
            case "asyncpg" if hasattr(connection, "is_in_transaction"):
                return _Asyncpg(connection)
            case "psycopg" | "psycopg2" if hasattr(connection, "autocommit"):
                return _Psycopg(connection)
            case "sqlalchemy":
                connection = await _inside_sqlalchemy(connection)
            case _:
                break
    raise _no_connection(connection)


def _no_connection(thing: object) -> Invalid:
    return Invalid(f"{type(thing).__name__} is not a PostgreSQL connection of asyncpg, psycopg or SQLAlchemy")


async def _inside_sqlalchemy(connection: Any) -> Any:
    """Return the driver's connection below a connection or session, sync or async, with its transaction started."""
    if callable(getattr(type(connection), "connection", None)):  # a session
        found = connection.connection()
        connection = await found if isawaitable(found) else found
    if not hasattr(connection, "exec_driver_sql"):
        raise _no_connection(connection)
    # On some drivers SQLAlchemy starts a transaction only with the first statement.
    if hasattr(connection, "get_raw_connection"):
        await connection.exec_driver_sql("select 1")
        return (await connection.get_raw_connection()).driver_connection
    await asyncio.to_thread(connection.exec_driver_sql, "select 1")
    return connection.connection.driver_connection


class _Caller(ABC):
    """The connection interface that enqueue needs, over a connection that the caller has configured."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            rows = await self._rows(statement, values)
        except Exception as error:
            raise _meaning(error) from error
        return [tuple(str(value) if isinstance(value, UUID) else value for value in row) for row in rows]

    async def fetchrow(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        return next(iter(await self.fetch(statement, *values)), None)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        row = await self.fetchrow(statement, *values)
        return None if row is None else row[0]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        await self.fetch(f"savepoint {SAVEPOINT}")
        try:
            yield
        except BaseException:
            await self.fetch(f"rollback to savepoint {SAVEPOINT}")
            await self.fetch(f"release savepoint {SAVEPOINT}")  # the name refers to the outer savepoint again
            raise
        await self.fetch(f"release savepoint {SAVEPOINT}")

    @abstractmethod
    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open or the next statement opens one, as some drivers do."""

    @abstractmethod
    async def _rows(self, statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]: ...


class _Asyncpg(_Caller):
    def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def _rows(self, statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return cast("Sequence[Sequence[Any]]", await self._connection.fetch(statement, *values))


class _Psycopg(_Caller):
    def is_in_transaction(self) -> bool:
        return not self._connection.autocommit or self._connection.info.transaction_status != IDLE

    async def _rows(self, statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Send lists as text, which PostgreSQL casts to the parameter type of the function."""
        statement = _PLACEHOLDER.sub("%s", statement)
        given = [_literal(value) if isinstance(value, (list, tuple)) else value for value in values]
        cursor = _plain_cursor(self._connection)
        if asyncio.iscoroutinefunction(cursor.execute):
            try:
                await cursor.execute(statement, given or None)
                return await cursor.fetchall() if cursor.description else ()
            finally:
                await cursor.close()

        def block() -> Sequence[Sequence[Any]]:
            with cursor:
                cursor.execute(statement, given or None)
                return [tuple(map(_plain, row)) for row in cursor.fetchall()] if cursor.description else ()

        return await asyncio.to_thread(block)


def _plain_cursor(connection: Any) -> Any:
    """Return a cursor with tuple rows, regardless of the connection's row factory."""
    driver: Any = import_module(type(connection).__module__.partition(".")[0])
    if driver.__name__ == "psycopg2":
        return connection.cursor(cursor_factory=driver.extensions.cursor)
    made_by = driver.AsyncCursor if isinstance(connection, driver.AsyncConnection) else driver.Cursor
    return made_by(connection, row_factory=driver.rows.tuple_row)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def _literal(values: Sequence[Any]) -> str:
    """Return the text form of a PostgreSQL array."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "null"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _code(error: Exception) -> str | None:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _meaning(error: Exception) -> Exception:
    """Translate a driver's error to the one that enqueue expects; return any other unchanged."""
    code = _code(error)
    if code == REGISTRY_CHANGED:
        return RegistryChanged(str(error))
    if code == TENANT_MOVED:
        return TenantMoved("this tenant does not live in the database of this connection; look where it does")
    if code == FOREIGN_KEY and not isinstance(error, asyncpg.PostgresError):
        return asyncpg.ForeignKeyViolationError(str(error))
    return error
