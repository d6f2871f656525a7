"""Ways into a database beside Interlock's verbs, and how a job is moved by hand through them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import apsw
import asyncpg
import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import EDGES, TERMINAL, Status
from interlock.storage.postgres.connection import prepare
from interlock.storage.sqlite.connection import Connection
from tests.contract.approvals import request_approval
from tests.contract.builders import ERROR, TenantQueue, cancel, complete, fail, new_id
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, ManualClock

# The engine of each connection; where history is partitioned, the owner's.
CONNECTIONS: Final = {
    "functions": "sqlite",
    "plain": "sqlite",
    "owner": "postgres",
    "superuser": "postgres",
    "app": "postgres",
    "partitions": "partitioned",
}
# The connection of a user with all rights, on each engine.
MASTER: Final = {"sqlite": "functions", "postgres": "superuser", "shards": "superuser", "partitioned": "superuser"}
_LOGINS: Final = {"app": APP_LOGIN, "owner": OWNER, "partitions": OWNER, "superuser": None}

DatabaseError: Final = (apsw.Error, asyncpg.PostgresError)


class SqlConnection(Protocol):
    """Direct SQL with $1, $2, … for values; times are microseconds and ids text on both engines."""

    name: str
    engine: str

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...

    async def without_rules(self) -> None:
        """Take the triggers away, as only the owner of a database can; CHECK constraints stay."""
        ...


class SQLiteConnection:
    engine = "sqlite"

    def __init__(self, name: str, db: apsw.Connection) -> None:
        self.name = name
        self.db = db

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        named = {str(i): value for i, value in enumerate(values, 1)}
        return [tuple(row) for row in self.db.execute(statement, named or None)]

    async def without_rules(self) -> None:
        for (trigger,) in await self.run("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
            await self.run(f"DROP TRIGGER {trigger}")


class PostgresConnection:
    engine = "postgres"

    def __init__(self, name: str, connection: asyncpg.Connection[asyncpg.Record], clock: ManualClock) -> None:
        self.name = name
        self.connection = connection
        self._clock = clock

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        await self.connection.execute(
            "select set_config('interlock.clock', to_timestamp($1 / 1e6)::text, false)", float(self._clock.now)
        )
        return [tuple(row) for row in await self.connection.fetch(statement, *values)]

    async def without_rules(self) -> None:
        await self.connection.execute("set session_replication_role = replica")


@asynccontextmanager
async def open_connection(
    name: str, *, place: str, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[SqlConnection]:
    """A connection to a file or database; place is its path or name."""
    if name == "functions":
        ours = Connection(place, clock=clock)
        try:
            yield SQLiteConnection(name, ours.db)
        finally:
            ours.close()
    elif name == "plain":
        plain = apsw.Connection(place)
        try:
            yield SQLiteConnection(name, plain)
        finally:
            plain.close()
    else:
        connection = await asyncpg.connect(postgres.dsn(place, user=_LOGINS[name]))
        try:
            await prepare(connection)
            await connection.execute("reset role; set search_path = interlock")
            await connection.execute("select set_config('interlock.tenant', $1, false)", tenant)
            yield PostgresConnection(name, connection, clock)
        finally:
            await connection.close()


async def rejection(sql: SqlConnection, statement: str, *values: Any) -> str:
    """The error of the database when it rejects a statement."""
    with pytest.raises(DatabaseError) as caught:
        await sql.run(statement, *values)
    return str(caught.value)


def update(job: Job, columns: dict[str, Any]) -> tuple[Any, ...]:
    """A statement that sets these columns of a job by hand, and its values."""
    sets = ", ".join(f"{name} = ${i}" for i, name in enumerate(columns, 3))
    return f"UPDATE job SET {sets} WHERE tenant = $1 AND id = $2", job.tenant, job.id, *columns.values()


def moved(sql: SqlConnection, job: Job, target: Status, now: int) -> dict[str, Any]:
    """All columns of a move that keeps the row consistent, so that only the move itself can be wrong."""
    leased = target is Status.RUNNING and job.status is not Status.RUNNING
    verbs = sorted(EDGES.get((job.status, target), ["edit"]))
    columns: dict[str, Any] = {
        "status": str(target),
        "version": job.version + 1,
        "verb": str(verbs[0]),
        "actor": "user:dba",
        "reason": "by hand",
        "metadata": None,
        "fence": job.fence + leased,
        "attempt": job.attempt + (target is Status.RETRY and job.status is Status.RUNNING),
        "worker": (job.worker or "w9") if target is Status.RUNNING else None,
        "lease_expires_at": (job.lease_expires_at or now + 60_000_000) if target is Status.RUNNING else None,
        "approval_id": new_id() if target is Status.WAITING_FOR_APPROVAL else None,
        "finished_at": now if target in TERMINAL else None,
        "error": ERROR if target in (Status.FAILED, Status.DEAD_LETTER) else None,
    }
    if target is Status.RUNNING:
        columns |= {"started_at": job.started_at or now, "run_started_at": job.run_started_at or now}
    if sql.engine == "postgres":
        columns["previous"] = str(job.status)
    return columns


async def move(sql: SqlConnection, job: Job, target: Status, now: int, **other: Any) -> None:
    """Move a job by hand; other replaces columns of the move."""
    await sql.run(*update(job, moved(sql, job, target, now) | other))


async def job_in(queue: TenantQueue, sql: SqlConnection, status: Status, **fields: Any) -> Job:
    """A new job brought into a status by verbs."""
    if status is Status.DEAD_LETTER:
        fields = {"max_attempts": 1} | fields
    if status in (Status.QUEUED, Status.CANCELLED):
        job = await queue.job(await queue.add(**fields))
    else:
        job = await queue.running(**fields)
    if status is Status.WAITING_FOR_APPROVAL:
        await queue.do(request_approval(job))
    elif status is Status.CANCELLED:
        await queue.do(cancel(job.id))
    elif status is Status.SUCCEEDED:
        await queue.do(complete(job))
    elif status in (Status.RETRY, Status.DEAD_LETTER):
        await queue.do(fail(job, retry_after_seconds=5.0))
    elif status is Status.FAILED:
        await queue.do(fail(job, retryable=False))
    job = await queue.job(job.id)
    assert job.status is status
    return job
