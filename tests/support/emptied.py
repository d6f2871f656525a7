"""PostgreSQL databases that are emptied and used again: making one and dropping it costs more than most tests."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import asyncpg

from tests.support.eventually import eventually
from tests.support.postgres import OWNER, Postgres

LARGEST: Final = 64 * 1024 * 1024  # what has grown beyond this is cheaper to make anew than to empty

_TABLES: Final = """
select format('interlock.%I', relname) from pg_class
where relnamespace = 'interlock'::regnamespace and relkind in ('r', 'p') and not relispartition
order by relname
"""
_SHAPE: Final = """
select md5(string_agg(part, ' ' order by part)) from (
  select concat_ws(' ', 'class', oid, relname, relkind, relowner, relacl, reloptions, relrowsecurity, relforcerowsecurity)
  from pg_class where relnamespace in (select oid from pg_namespace where nspname in ('interlock', 'public'))
  union all select concat_ws(' ', 'column', attrelid, attnum, attname, atttypid, attnotnull, attacl)
  from pg_attribute where attrelid in (select oid from pg_class where relnamespace = 'interlock'::regnamespace)
  union all select concat_ws(' ', 'function', oid, proname, md5(prosrc), proowner, proacl, proconfig)
  from pg_proc where pronamespace in (select oid from pg_namespace where nspname in ('interlock', 'public'))
  union all select concat_ws(' ', 'trigger', oid, tgenabled) from pg_trigger
  union all select concat_ws(' ', 'constraint', oid, convalidated) from pg_constraint
  union all select concat_ws(' ', 'policy', oid, polname, polcmd, polroles) from pg_policy
  union all select concat_ws(' ', 'schema', oid, nspname, nspacl) from pg_namespace where nspname not like 'pg\\_%'
  union all select concat_ws(' ', 'setting', setrole, setconfig) from pg_db_role_setting
  where setdatabase = (select oid from pg_database where datname = current_database())
) as parts (part)
"""
_LEFT_BEHIND: Final = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""
_NUMBERS: Final = """
select format('interlock.%I', sequencename), coalesce(last_value, start_value), last_value is not null from pg_sequences
where schemaname = 'interlock'
"""

_numbers = itertools.count(1)
_idle: WeakKeyDictionary[Postgres, dict[str, list[Emptied]]] = WeakKeyDictionary()


class Emptied(NamedTuple):
    """A copy of a template: its schema, the tables that start without a row, the rows of the others, its sequences."""

    name: str
    template: str
    shape: str
    empty_tables: tuple[str, ...]
    first_rows: dict[str, list[str]]
    first_numbers: list[tuple[str, int, bool]]  # a shard's begin where its number puts them


@asynccontextmanager
async def emptied_database(postgres: Postgres, template: str) -> AsyncIterator[str]:
    """The name of a copy of the template, for as long as the block lasts."""
    database = await _take(postgres, template)
    try:
        yield database.name
    finally:
        await _give_back(postgres, database)


@contextmanager
def lent_database(postgres: Postgres, template: str) -> Iterator[str]:
    """The same where no loop runs."""
    database = asyncio.run(_take(postgres, template))
    try:
        yield database.name
    finally:
        asyncio.run(_give_back(postgres, database))


async def _take(postgres: Postgres, template: str) -> Emptied:
    """A copy of the template without other users."""
    idle = _idle.get(postgres, {}).get(template)
    return idle.pop() if idle else await _make(postgres, template)


async def _give_back(postgres: Postgres, database: Emptied) -> None:
    """Keep a copy for the next test; one that cannot be reset to the template's state is dropped."""
    if await _empty(postgres, database):
        _idle.setdefault(postgres, {}).setdefault(database.template, []).append(database)
    else:
        await drop_database(postgres, database.name)


async def copy_database(postgres: Postgres, name: str, template: str) -> None:
    """Create a database from another one without connections, for the same owner."""
    await _administer(postgres, f"create database {name} template {template} owner {OWNER}")


async def drop_database(postgres: Postgres, name: str) -> None:
    """Close all connections to it."""
    await _administer(postgres, f"drop database if exists {name} with (force)")


async def _make(postgres: Postgres, template: str) -> Emptied:
    name = f"interlock_emptied_{os.getpid()}_{next(_numbers)}"
    await copy_database(postgres, name, template)
    connection = await asyncpg.connect(postgres.dsn(name))
    try:
        tables = [row[0] for row in await connection.fetch(_TABLES)]
        rows = await _rows(connection, tables)
        shape = await connection.fetchval(_SHAPE)
        numbers = [(row[0], row[1], row[2]) for row in await connection.fetch(_NUMBERS)]
    finally:
        await connection.close()
    empty = tuple(table for table in tables if not rows[table])
    return Emptied(name, template, shape, empty, {table: rows[table] for table in tables if rows[table]}, numbers)


async def _empty(postgres: Postgres, database: Emptied) -> bool:
    """Whether the database is again as it was made."""
    connection = await asyncpg.connect(postgres.dsn(database.name))
    try:
        await connection.execute(_LEFT_BEHIND)
        if await connection.fetchval("select pg_database_size(current_database())") > LARGEST:
            return False
        if await connection.fetchval(_SHAPE) != database.shape:
            return False
        if await _rows(connection, database.first_rows) != database.first_rows:
            return False
        deletions = "; ".join(f"delete from {table}" for table in database.empty_tables)
        await connection.execute(f"begin; set local session_replication_role = replica; {deletions}; commit")
        await connection.executemany("select setval($1::text::regclass, $2, $3)", database.first_numbers)
        return True
    finally:
        await connection.close()


async def _rows(connection: asyncpg.Connection[asyncpg.Record], tables: Iterable[str]) -> dict[str, list[str]]:
    return {t: sorted(row[0] for row in await connection.fetch(f"select t::text from {t} t")) for t in tables}


async def _administer(postgres: Postgres, statement: str) -> None:
    """Retry if a connection to the database is still closing: PostgreSQL waits for it only a few seconds."""
    connection = await asyncpg.connect(postgres.dsn())

    async def done() -> bool:
        try:
            await connection.execute(statement)
        except asyncpg.ObjectInUseError:
            return False
        return True

    try:
        await eventually(done)
    finally:
        await connection.close()
