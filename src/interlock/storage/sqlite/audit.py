"""History export and verification in bounded parts, and the epoch, on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import groupby
from typing import Final, TypeVar

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.operator_log import LogRow
from interlock.storage import history_chain
from interlock.storage.sql_files import load
from interlock.storage.sqlite import digests, history, log
from interlock.storage.sqlite.connection import Connection

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "audit.sql")
_BEYOND_ALL: Final = 1 << 62


class SQLiteAudit(ABC):
    """Audit and restore methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        def read(c: Connection) -> list[HistoryExport]:
            rows = c.rows(_SQL["histories"], {"tenant": tenant, "after": after, "jobs": jobs})
            by_job = groupby(rows, key=lambda row: int(row[0]))
            return [HistoryExport(seq, tuple(history.to_row(row[1:]) for row in group)) for seq, group in by_job]

        return await self._read(read)

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        start = 0 if after is None else _cursor_position(after)

        def read(c: Connection) -> VerifiedPart:
            with c.db:  # one snapshot of chains and contents
                rows = c.rows(_SQL["chains_part"], {"tenant": tenant, "after": start, "jobs": jobs})
                kept = digests.kept(c, tenant, sorted({row[1] for row in rows}))
                last = rows[-1][16] if len({row[16] for row in rows}) == jobs else None
                between = {"tenant": tenant, "after": start, "upto": _BEYOND_ALL if last is None else last}
                bare = c.rows(_SQL["bare_job"], between)
            verdict = history_chain.verify((row[:16] for row in rows), kept)
            return history_chain.part(tenant, verdict, [id for (id,) in bare], None if last is None else str(last))

        return await history_chain.with_log(tenant, await self._read(read), self.log)

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        return await self._read(lambda c: log.rows(c, tenant, after, limit))

    async def raise_epoch(self, above: int) -> int:
        def write(c: Connection) -> int:
            ((value,),) = c.rows(_SQL["raise_epoch"], {"above": above})
            return int(value)

        return await self._write(write)


def _cursor_position(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20 and int(cursor) <= _BEYOND_ALL):
        raise history_chain.invalid_cursor(cursor)
    return int(cursor)
