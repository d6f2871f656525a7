"""Worker presence, and the snapshot that explains why a job does not run, on SQLite."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from interlock.domain.deadlock import cycle
from interlock.domain.explain import JobSnapshot
from interlock.domain.lifecycle import Status
from interlock.domain.retry import SECOND
from interlock.domain.worker_presence import (
    LATELY_SECONDS,
    EligibleWorkers,
    Presence,
    WorkerSeen,
    filters_from_text,
    filters_to_text,
)
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.transition import search

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "explain.sql")
MAX_NAMED: Final = 10
_STATUS: Final = JobSnapshot._fields.index("status")
_BLOCKED: Final = JobSnapshot._fields.index("blocked")
_ELIGIBLE_WORKERS: Final = JobSnapshot._fields.index("eligible_workers")
_LISTS: Final = tuple(map(JobSnapshot._fields.index, ("requires", "awaiting", "busy_with")))


class SQLiteExplain(ABC):
    """Worker presence and job snapshot methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def read_settled(self, tenant: str, query: Callable[[Connection], T]) -> T: ...

    async def note_workers(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        def write(c: Connection) -> None:
            c.db.executemany(
                _SQL["note"], [(tenant, s.worker, filters_to_text(s.asks), c.now) for s in seen_workers if s.asks]
            )
            c.db.executemany(_SQL["stopped"], [(tenant, s.worker) for s in seen_workers if not s.asks])

        await self._write(write)

    async def workers(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        def read(c: Connection) -> list[Presence]:
            since = None if within_seconds is None else c.read_clock() - round(within_seconds * SECOND)
            facts = {"tenant": tenant, "after": after, "limit": limit, "since": since}
            return [_presence(row) for row in c.rows(_SQL["workers"], facts)]

        return await self._read(read)

    async def forget_workers(self, older_than_seconds: float, limit: int) -> int:
        def write(c: Connection) -> int:
            c.db.execute(_SQL["forget"], {"before": c.now - round(older_than_seconds * SECOND), "limit": limit})
            return c.db.changes()

        return await self._write(write)

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        def read(c: Connection) -> JobSnapshot | None:
            now = c.read_clock()
            lately = now - round(LATELY_SECONDS * SECOND)
            facts = {"tenant": tenant, "id": job_id, "now": now, "lately": lately, "most": MAX_NAMED}
            found = next((_job_snapshot(row) for row in c.rows(_SQL["job_snapshot"], facts)), None)
            if found is not None and (found.awaiting or found.blocked):
                found = found._replace(cycle=search(c, tenant, cycle(found.id)))
            return found

        return await self.read_settled(tenant, read)


def _presence(row: Sequence[Any]) -> Presence:
    name, asks, first, last, running, ids = row
    return Presence(name, filters_from_text(asks), first, last, running, tuple(json.loads(ids)[:MAX_NAMED]))


def _job_snapshot(row: Sequence[Any]) -> JobSnapshot:
    values = list(row)
    values[_STATUS] = Status(values[_STATUS])
    values[_BLOCKED] = bool(values[_BLOCKED])
    for i in _LISTS:
        values[i] = tuple(json.loads(values[i]))
    values[_ELIGIBLE_WORKERS] = tuple(_eligible_workers(*workers) for workers in json.loads(values[_ELIGIBLE_WORKERS]))
    return JobSnapshot(*values)


def _eligible_workers(asks: str, names: Sequence[str], count: int, seen: int) -> EligibleWorkers:
    return EligibleWorkers(filters_from_text(asks), tuple(names[:MAX_NAMED]), count, seen)
