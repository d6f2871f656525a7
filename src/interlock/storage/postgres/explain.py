"""Worker presence, and why a job does not run, on PostgreSQL."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

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
from interlock.storage.postgres.connection import call
from interlock.storage.postgres.transition import search

if TYPE_CHECKING:
    import asyncpg

MAX_NAMED: Final = 10
_STATUS: Final = JobSnapshot._fields.index("status")
_ELIGIBLE_WORKERS: Final = JobSnapshot._fields.index("eligible_workers")
_LISTS: Final = tuple(map(JobSnapshot._fields.index, ("requires", "awaiting", "busy_with")))


class PostgresExplain(ABC):
    """The store methods for worker presence and for explaining a job."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    @abstractmethod
    async def now(self) -> int: ...

    async def note_workers(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        asks = {s.worker: filters_to_text(s.asks) for s in seen_workers if s.asks}
        await self._fetch("select interlock.note_workers($1, $2, $3)", tenant, list(asks), list(asks.values()))
        if stopped := [s.worker for s in seen_workers if not s.asks]:
            await self._fetch("select interlock.stop_workers($1, $2)", tenant, stopped)

    async def workers(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        rows = await self._fetch(call("workers", 5), tenant, after, limit, MAX_NAMED, within_seconds)
        return [_presence(*row) for row in rows]

    async def forget_workers(self, older_than_seconds: float, limit: int) -> int:
        before = await self.now() - round(older_than_seconds * SECOND)
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for tenant, name in await self._fetch(call("old_workers", 2), before, limit):
            by_tenant[tenant].append(name)
        gone = 0
        for tenant, names in by_tenant.items():
            ((some,),) = await self._fetch("select interlock.forget_workers($1, $2, $3)", tenant, names, before)
            gone += some
        return gone

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        rows = await self._fetch(call("job_snapshot", 4), tenant, job_id, LATELY_SECONDS, MAX_NAMED)
        if not rows:
            return None
        found = _job_snapshot(rows[0])
        if found.awaiting or found.blocked:
            found = found._replace(cycle=await search(self._fetch, tenant, cycle(found.id)))
        return found


def _presence(
    name: str, asks: str, first: int | None, last: int | None, running: int, job_ids: Sequence[str]
) -> Presence:
    return Presence(name, filters_from_text(asks), first, last, running, tuple(job_ids))


def _job_snapshot(row: asyncpg.Record) -> JobSnapshot:
    values = list(row)
    values[_STATUS] = Status(values[_STATUS])
    for i in _LISTS:
        values[i] = tuple(values[i])
    values[_ELIGIBLE_WORKERS] = tuple(_eligible_workers(*workers) for workers in json.loads(values[_ELIGIBLE_WORKERS]))
    return JobSnapshot(*values)


def _eligible_workers(asks: str, names: Sequence[str], count: int, seen: int) -> EligibleWorkers:
    return EligibleWorkers(filters_from_text(asks), tuple(names), count, seen)
