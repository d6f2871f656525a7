"""Making the one table of history into one that is partitioned by the time in the ids of jobs, while work goes on."""

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
# What an earlier attempt has left would be of another time. While it is not proven, it holds for what is written.
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
    """Keep history in partitions of so many days from now on; False if it was already, and only the width is new.

    Rows stay where they are: the table as it is becomes the first partition. That nothing in it is of a later time is
    proven while work goes on. Twice everybody has to wait for a moment; each time this gives way soon and tries again.
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
            raise Conflict("somebody else is partitioning this history")
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
                f"there is history of jobs whose ids are of a time after {before:%Y-%m-%d %H:%M} UTC, made by somebody "
                "whose clock is wrong; nothing was changed, try again when they are gone"
            ) from error
        raise


def _next_start(now: datetime, every: timedelta) -> datetime:
    """A round time at least a day ahead: until then all must be done, and no clock is that wrong."""
    first = datetime(1970, 1, 1, tzinfo=UTC)
    return first + -((first - now - timedelta(days=1)) // every) * every


async def _attach(connection: Owner, before: datetime, every: timedelta) -> None:
    await connection.execute(
        "select pg_advisory_xact_lock($1)", migrate.LOCK
    )  # nobody migrates meanwhile, or has just now
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
    """One transaction, tried again while others hold what it needs: whoever waits for a lock makes all others wait."""

    async def attempt() -> None:
        async with connection.transaction():
            await connection.execute(f"set local lock_timeout = '{GIVE_WAY_SECONDS}s'")
            await step()

    await migrate.until_free(attempt, "others have held history for too long; try again when it is quieter")
