"""History in bounded pieces, and the epoch, on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import groupby
from typing import Final, TypeVar

from interlock.domain.audit import Chronicle, VerifiedPart
from interlock.storage import chains
from interlock.storage.sqlite import history
from interlock.storage.sqlite.connection import Connection
from interlock.storage.statements import load

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "audit.sql")
_BEYOND_ALL: Final = 1 << 62


class AuditVerbs(ABC):
    """The part of a SQLite store for auditors, and for whoever has restored a file."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[Chronicle]:
        def read(c: Connection) -> list[Chronicle]:
            rows = c.rows(_SQL["histories"], {"tenant": tenant, "after": after, "jobs": jobs})
            by_job = groupby(rows, key=lambda row: int(row[0]))
            return [Chronicle(seq, tuple(history.to_row(row[1:]) for row in group)) for seq, group in by_job]

        return await self._read(read)

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        start = 0 if after is None else _place(after)

        def read(c: Connection) -> VerifiedPart:
            rows = c.rows(_SQL["chains_part"], {"tenant": tenant, "after": start, "jobs": jobs})
            verdict = chains.verify(row[:15] for row in rows)
            last = rows[-1][15] if verdict.jobs == jobs else None
            between = {"tenant": tenant, "after": start, "upto": _BEYOND_ALL if last is None else last}
            bare = c.rows(_SQL["bare_job"], between)
            return chains.part(tenant, verdict, [id for (id,) in bare], None if last is None else str(last))

        return await self._read(read)

    async def raise_epoch(self, above: int) -> int:
        def write(c: Connection) -> int:
            ((value,),) = c.rows(_SQL["raise_epoch"], {"above": above})
            return int(value)

        return await self._write(write)


def _place(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20 and int(cursor) <= _BEYOND_ALL):
        raise chains.no_such_place(cursor)
    return int(cursor)
