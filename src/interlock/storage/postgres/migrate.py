"""Migration of a PostgreSQL schema, one process at a time, and the check that it is current."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final, TypeVar

import asyncpg

from interlock.errors import SchemaMismatch, Unavailable
from interlock.storage.job_columns import expand
from interlock.storage.migrate import Migration, migrations, pending
from interlock.storage.postgres.connection import Conn
from interlock.storage.postgres.hosts import Nodes

T = TypeVar("T")

PACKAGE: Final = "interlock.storage.postgres"
LOCK: Final = 7_166_011_201  # any number, the same in every version
GIVE_WAY_SECONDS: Final = 2
KEEP_TRYING_SECONDS: Final = 120.0
FUNCTIONS: Final = (
    "job_view",
    "digests",
    "job_blocks",
    "concurrency",
    "transition_effects",
    "registry",
    "enqueue",
    "claim",
    "flow",
    "transition",
    "edit",
    "heartbeats",
    "read",
    "tokens",
    "progress",
    "artifacts",
    "prune",
    "shards",
    "partitions",
    "statistics",
    "doctor",
    "log",
)

_LADDER: Final = """
create schema if not exists interlock;
create table if not exists interlock.schema_migration (
  number integer primary key, name text collate "C" not null, checksum text collate "C" not null,
  applied_at timestamptz not null default now());
comment on table interlock.schema_migration is 'Applied schema migrations; number 0 is the set of functions.';
comment on column interlock.schema_migration.number is 'Number of the migration.';
comment on column interlock.schema_migration.name is 'File name.';
comment on column interlock.schema_migration.checksum is 'SHA-256 of its text; a changed file is rejected.';
comment on column interlock.schema_migration.applied_at is 'Time at which it was applied.';
"""

# Timeouts set on the server would abort a migration that reads a whole table.
_NO_HURRY: Final = """
select set_config(name, '0', false) from pg_settings where name in
  ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')
"""

# Functions that run as interlock_verbs; to own a function, a role needs the right to create one. Replacing a function
# keeps its owner.
_RIGHTS: Final = """
do $$
declare
  verb regprocedure;
begin
  grant create on schema interlock to interlock_verbs;
  for verb in select p.oid from pg_proc p where p.pronamespace = 'interlock'::regnamespace
      and p.proname in ('enqueue', 'enqueue_one', 'claim', 'complete', 'change', 'edit', 'acknowledge', 'hold',
        'fill_slots', 'flow_due', 'flow_show', 'flow_wakes', 'flow_terms', 'flow_candidates', 'flow_peek', 'flow_lock',
        'flow_park', 'flow_turns', 'flow_show_jobs', 'flow_slots', 'flow_pass_slots', 'flow_start') loop
    execute format('alter function %s owner to interlock_verbs', verb);
  end loop;
  revoke create on schema interlock from interlock_verbs;
end $$;
grant select on interlock.schema_migration to interlock_app;
revoke execute on all functions in schema interlock from public;
grant execute on all functions in schema interlock to interlock_app, interlock_sweep, interlock_verbs;
"""


def functions() -> Migration:
    """Return all functions as one migration, applied whenever its checksum differs."""
    text = "".join((files(PACKAGE) / "functions" / f"{name}.sql").read_text() for name in FUNCTIONS)
    return Migration(0, "functions", expand(text))


async def migrate(dsn: str) -> list[str]:
    """Apply missing migrations in one transaction; a concurrent migrator waits and finds nothing to do.

    While it waits for a table lock, all other transactions queue behind it. So it gives up soon and retries.
    """
    try:
        connection = await Nodes(dsn).connect()
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
    try:
        return await until_free(
            lambda: _migrate(connection),
            "others have held the tables for too long; nothing was changed, migrate when it is quieter",
        )
    except asyncpg.InsufficientPrivilegeError as error:
        if (text := str(error)).startswith("interlock: "):  # the message contains the next step
            raise SchemaMismatch(text.removeprefix("interlock: ")) from error
        raise SchemaMismatch(
            f"this role may not migrate the database ({error}); connect as the owner of the schema"
        ) from error
    finally:
        await connection.close()


async def take_all_time(connection: Conn) -> None:
    """Disable all timeouts of the server for a connection."""
    await connection.execute(_NO_HURRY)


async def until_free(step: Callable[[], Awaitable[T]], trouble: str) -> T:
    """Run a step and retry it for a while if it cannot get its locks.

    A step that locks several tables may also be the victim of a deadlock.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + KEEP_TRYING_SECONDS
    while True:
        try:
            return await step()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if clock() > deadline:
                raise Unavailable(trouble) from error
            await asyncio.sleep(GIVE_WAY_SECONDS)


async def _migrate(connection: asyncpg.Connection[asyncpg.Record]) -> list[str]:
    if (encoding := await connection.fetchval("show server_encoding")) != "UTF8":
        raise SchemaMismatch(f"this database keeps texts as {encoding}; create one with encoding 'UTF8'")
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(f"set local lock_timeout = '{GIVE_WAY_SECONDS}s'")
        await connection.execute(_LADDER)
        rows = await connection.fetch("select number, checksum from interlock.schema_migration")
        applied: dict[int, str] = {row[0]: row[1] for row in rows}
        have = applied.pop(0, None)
        todo = pending(migrations(PACKAGE), applied)
        if have != functions().checksum:
            todo.append(functions())
        for m in todo:
            await connection.execute(expand(m.text))
            await connection.execute(
                "insert into interlock.schema_migration (number, name, checksum) values ($1, $2, $3) "
                "on conflict (number) do update set checksum = excluded.checksum, applied_at = now()",
                m.number, m.name, m.checksum,
            )  # fmt: skip
        await connection.execute(_RIGHTS)
    return [m.name for m in todo]


async def renew_functions(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Recreate all functions in the caller's transaction, after a table they use was replaced."""
    await connection.execute(functions().text)
    await connection.execute(_RIGHTS)


async def check(connection: Conn) -> None:
    """Raise SchemaMismatch if the schema does not match this version, or is still being filled."""
    await check_schema(connection)
    filling = await connection.fetchrow("select source from interlock.promotion where phase <> 'done'")
    if filling is not None:
        raise SchemaMismatch(
            f"this database is being filled by the promotion of {filling[0]}, which is not finished: "
            "wait for interlock promote, or run it again"
        )


async def check_schema(connection: Conn) -> None:
    """Raise SchemaMismatch if the schema does not match this version."""
    advice = "run interlock migrate with the owner's database URL"
    try:
        rows = await connection.fetch("select number, checksum from interlock.schema_migration")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        raise SchemaMismatch(f"the database has no schema for Interlock yet; {advice}") from None
    except asyncpg.InsufficientPrivilegeError:
        role = await connection.fetchval("select quote_ident(current_user)")
        raise SchemaMismatch(
            f"database role {role} may not use the schema interlock: as its owner, run GRANT interlock_app TO {role}"
        ) from None
    applied: dict[int, str] = {row[0]: row[1] for row in rows}
    have = applied.pop(0, None)
    if missing := pending(migrations(PACKAGE), applied):
        raise SchemaMismatch(f"the database lacks migration {missing[0].name}; {advice}")
    if have != functions().checksum:
        raise SchemaMismatch(f"the functions in the database are of another version; {advice}")
