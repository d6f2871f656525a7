"""Online conversion of job_history to a table partitioned by the time in job IDs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import asyncpg

from interlock.errors import Conflict, Forbidden, Invalid, Unavailable
from interlock.storage.postgres import migrate
from interlock.storage.postgres.hosts import Nodes

Owner: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

GIVE_WAY_SECONDS: Final = 1

_ONE_AT_A_TIME: Final = "select pg_try_advisory_lock(hashtextextended('interlock history partition', 0))"
_IS_PARTITIONED: Final = "select relkind = 'p' from pg_class where oid = 'interlock.job_history'::regclass"
_ALONE: Final = "lock table interlock.history_partition in share row exclusive mode"
_NEWEST: Final = """
select interlock.id_time(before_id) as before, interlock.id_time(before_id) - interlock.id_time(first_id) as width
from interlock.history_partition order by before_id desc limit 1
"""
# Replace the constraint of an earlier attempt: its time differs. Until validated, it applies only to new rows.
_PROMISE: Final = """
alter table interlock.job_history drop constraint if exists made_before;
do $$ begin
  execute format('alter table interlock.job_history add constraint made_before check (job_id < %L) not valid',
    interlock.id_at('{before}'));
end $$
"""
_PROVE: Final = "alter table interlock.job_history validate constraint made_before"
_TAKE_BACK: Final = "alter table interlock.job_history drop constraint if exists made_before"


async def partition(dsn: str, days: float) -> bool:
    """Partition history by this many days; return False if it already was, and only the width changes.

    Rows are not moved: the existing table becomes the first partition. A constraint that no row is later is validated
    while jobs run. Two short steps block all other transactions; each gives up its lock soon and retries.
    """
    if not 1 / 24 <= days <= 366:
        raise Invalid("a partition is for an hour to 366 days", pointer="/days")
    every = timedelta(days=days)
    try:
        connection = await Nodes(dsn).connect()
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
    try:
        await migrate.take_all_time(connection)
        await migrate.check(connection)
        if not await connection.fetchval(_ONE_AT_A_TIME):
            raise Conflict("another process is partitioning this history")
        if await connection.fetchval(_IS_PARTITIONED):
            await _giving_way(connection, lambda: _widen(connection, every))
            return False
        await _partition(connection, every)
        return True
    except asyncpg.InsufficientPrivilegeError as error:
        raise Forbidden(f"{error}; connect with the owner's database URL") from error
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError) as error:
        raise Unavailable(f"the connection broke; run the command again: {error}") from error
    finally:
        await connection.close()


async def _partition(connection: Owner, every: timedelta) -> None:
    before = _next_start(await connection.fetchval("select interlock.clock()"), every)
    await _giving_way(connection, lambda: connection.execute(_PROMISE.format(before=before.isoformat())))
    try:
        await connection.execute(_PROVE)
        await _giving_way(connection, lambda: _attach(connection, before, every))
    except BaseException as error:
        await _giving_way(connection, lambda: connection.execute(_TAKE_BACK))
        if isinstance(error, asyncpg.CheckViolationError):
            raise Conflict(
                f"there is history of jobs whose ids are of a time after {before:%Y-%m-%d %H:%M} UTC, from a client "
                "with a wrong clock; nothing was changed, try again when they are gone"
            ) from error
        raise


def _next_start(now: datetime, every: timedelta) -> datetime:
    """Return a multiple of `every` at least a day ahead: time for the conversion, and more than any clock skew."""
    first = datetime(1970, 1, 1, tzinfo=UTC)
    return first + -((first - now - timedelta(days=1)) // every) * every


async def _attach(connection: Owner, before: datetime, every: timedelta) -> None:
    await connection.execute("select pg_advisory_xact_lock($1)", migrate.LOCK)  # no migration runs concurrently
    await migrate.check(connection)
    await connection.execute("select interlock.partition_history($1, $2)", before, every)
    await migrate.renew_functions(connection)
    await connection.execute("select interlock.extend_history()")


async def _widen(connection: Owner, every: timedelta) -> None:
    await connection.execute(_ALONE)
    newest = await connection.fetchrow(_NEWEST)
    if newest is not None and newest["width"] != every:
        await connection.execute(
            "select interlock.add_history_partition($1, $2)", newest["before"], newest["before"] + every
        )


async def _giving_way(connection: Owner, step: Callable[[], Awaitable[object]]) -> None:
    """Run a step in a transaction; retry if a lock is taken, because others queue behind a waiting lock."""

    async def attempt() -> None:
        async with connection.transaction():
            await connection.execute(f"set local lock_timeout = '{GIVE_WAY_SECONDS}s'")
            await step()

    await migrate.until_free(attempt, "others have held history for too long; try again when it is quieter")
