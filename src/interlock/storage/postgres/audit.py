"""History in bounded pieces, and the epoch, on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import asyncpg

from interlock.domain.audit import Chronicle, VerifiedPart
from interlock.errors import Forbidden
from interlock.storage import chains
from interlock.storage.postgres import history
from interlock.storage.postgres.connection import call

if TYPE_CHECKING:
    from interlock.storage.postgres.connection import Conn

T = TypeVar("T")
_SMALLEST_ID: Final = "00000000-0000-0000-0000-000000000000"

# Every claim has read the epoch under a lock that lasts until it ends: whoever gets this one comes after all of them.
_ALONE: Final = """
set local role none;
set local lock_timeout = '10s';
lock table interlock.epoch in access exclusive mode;
"""


class AuditVerbs(ABC):
    """The part of a PostgreSQL store for auditors, and for whoever has restored a database."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[Chronicle]:
        rows = await self._fetch(call("histories", 3), tenant, after, jobs)
        by_job = groupby(rows, key=lambda row: int(row[0]))
        return [Chronicle(seq, tuple(history.to_row(row) for row in group)) for seq, group in by_job]

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        start = _SMALLEST_ID if after is None else _place(after)
        rows = await self._fetch(call("chains", 3), tenant, start, jobs)
        verdict = chains.verify(tuple(row) for row in rows)
        last = rows[-1]["job_id"] if verdict.jobs == jobs else None
        bare = await self._fetch(call("bare_job", 3), tenant, start, last)
        return chains.part(tenant, verdict, [row[0] for row in bare], last)

    async def chain_ends(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """The last hash of the history of each job, by job, from one on."""
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


def _place(cursor: str) -> str:
    try:
        return str(UUID(cursor))
    except ValueError:
        raise chains.no_such_place(cursor) from None
