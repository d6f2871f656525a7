"""A privileged connection for adding shards and moving tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import asyncpg

from interlock.errors import Forbidden, SchemaMismatch, Unavailable
from interlock.storage.postgres import migrate
from interlock.storage.postgres.connection import prepare
from interlock.storage.postgres.hosts import Nodes

Owner: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_MAY_COPY: Final = "select rolsuper from pg_roles where rolname = session_user"


@asynccontextmanager
async def admin_connection(name: str, address: str, *, copies: bool = False) -> AsyncIterator[Owner]:
    """Connect with all rights of the login; copying rows without triggers requires a superuser."""
    try:
        connection = await Nodes(address).connect()
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise Unavailable(f"shard {name} cannot be reached: {error}") from error
    try:
        await prepare(connection)
        await connection.execute("reset role")
        await migrate.take_all_time(connection)
        await _check(name, connection)
        if copies and not await connection.fetchval(_MAY_COPY):
            raise Forbidden(f"a move requires a superuser of both databases: connect to shard {name} as one")
        yield connection
    except asyncpg.InsufficientPrivilegeError as error:
        raise Forbidden(f"shard {name}: {error}; connect with the owner's database URL") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        where = f"shard {name}: the connection broke" if connection.is_closed() else "PostgreSQL cannot do this now"
        raise Unavailable(f"{where}; run the command again: {error}") from error
    finally:
        connection.terminate()


async def _check(name: str, connection: Owner) -> None:
    try:
        await migrate.check(connection)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"shard {name}: {error}") from error
