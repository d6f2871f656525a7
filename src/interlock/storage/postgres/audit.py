"""History in bounded chunks, and the epoch, on PostgreSQL."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import asyncpg

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.digests import Kept
from interlock.domain.operator_log import LogRow
from interlock.errors import Forbidden
from interlock.storage import history_chain
from interlock.storage.postgres import history
from interlock.storage.postgres.connection import call

if TYPE_CHECKING:
    from interlock.storage.postgres.connection import Conn

T = TypeVar("T")
_SMALLEST_ID: Final = "00000000-0000-0000-0000-000000000000"

# Claims read the epoch under a lock that they hold until they end. This lock conflicts, so it comes after all of them.
_ALONE: Final = """
set local role none;
set local lock_timeout = '10s';
lock table interlock.epoch in access exclusive mode;
"""


class PostgresAudit(ABC):
    """The store methods for auditing, and for the operator who restored a database."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        rows = await self._fetch(call("histories", 3), tenant, after, jobs)
        by_job = groupby(rows, key=lambda row: int(row[0]))
        return [HistoryExport(seq, tuple(history.to_row(row) for row in group)) for seq, group in by_job]

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        start = _SMALLEST_ID if after is None else _cursor_position(after)

        async def read(connection: Conn) -> tuple[list[asyncpg.Record], list[asyncpg.Record], list[asyncpg.Record]]:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                rows = await connection.fetch(call("chains", 3), tenant, start, jobs)
                ids = sorted({row["job_id"] for row in rows})
                kept = await connection.fetch(call("kept", 2), tenant, ids)
                last = ids[-1] if len(ids) == jobs else None
                return rows, kept, await connection.fetch(call("bare_job", 3), tenant, start, last)

        rows, kept, bare = await self._run(read)
        verdict = history_chain.verify(map(tuple, rows), {row["id"]: _kept(row) for row in kept})
        last = rows[-1]["job_id"] if verdict.jobs == jobs else None
        part = history_chain.part(tenant, verdict, [row[0] for row in bare], last)
        return await history_chain.with_log(tenant, part, self.log)

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        return [LogRow._make(row) for row in await self._fetch(call("logged", 3), tenant, after, limit)]

    async def log_end(self, tenant: str) -> bytes | None:
        """Return the last hash of the audit log."""
        rows = await self._fetch(call("log_end", 1), tenant)
        return bytes(rows[0]["hash"]) if rows else None

    async def chain_ends(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return the chain heads of jobs by ID, starting after one."""
        return [(row[0], row[1]) for row in await self._fetch(call("heads", 3), tenant, after, limit)]

    async def raise_epoch(self, above: int) -> int:
        async def lift(connection: Conn) -> int:
            async with connection.transaction():
                await connection.execute(_ALONE)
                value = await connection.fetchval(
                    "update interlock.epoch set value = greatest(value, $1) + 1 returning value", above
                )
            return int(value)

        try:
            return await self._run(lift)
        except asyncpg.InsufficientPrivilegeError as error:
            raise Forbidden(
                "only the owner of the schema may do this; connect with the owner's database URL"
            ) from error


def _kept(row: asyncpg.Record) -> Kept:
    names = ("payload", "options", "result", "summary", "usage", "error", "checkpoint")
    by_fence = (dict(json.loads(row[name] or "[]")) for name in ("steps", "requests", "decisions"))
    return Kept({name: row[name] for name in names}, row["checkpoint_at"], *by_fence)


def _cursor_position(cursor: str) -> str:
    try:
        return str(UUID(cursor))
    except ValueError:
        raise history_chain.invalid_cursor(cursor) from None
