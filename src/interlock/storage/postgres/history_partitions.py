"""History partitions, if an operator has enabled them: created ahead of time and dropped whole."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from interlock.domain.retry import SECOND
from interlock.storage.parts.audit import Audit
from interlock.storage.postgres.connection import call

if TYPE_CHECKING:
    import asyncpg

TRIES: Final = 5
TRY_AGAIN_SECONDS: Final = 1.0
SWEEP_BATCH_SIZE: Final = 1_000
# How long to wait for the last jobs of a partition before deleting its history row by row.
SWEEP_AFTER: Final = 86_400 * SECOND
_NO_ID: Final = "00000000-0000-0000-0000-000000000000"
_PASSED: Final = """
select name, kept, detached, left_below is not null as left, before_id <= interlock.id_at($2) as late
from interlock.history_partition where detached or before_id <= interlock.id_at($1) order by before_id
"""
_LISTED: Final = """
select c.relname, interlock.id_time(p.first_id), interlock.id_time(p.before_id), pg_total_relation_size(c.oid),
  case when p.detached then 'to be dropped' when p.kept then 'kept' when p.left_below is not null then 'leaving'
       when p.name is null and c.relispartition then 'all other ids' else 'in use' end
from pg_class c left join interlock.history_partition p on p.name = c.relname
where c.relnamespace = 'interlock'::regnamespace and c.relkind = 'r'
  and (p.name is not null or c.relname = 'job_history'
    or exists (select from pg_inherits i where i.inhrelid = c.oid and i.inhparent = 'interlock.job_history'::regclass))
order by p.before_id nulls last
"""


class HistoryPart(NamedTuple):
    """A table of history: the creation times of its jobs, its size in bytes, and its state."""

    name: str
    first: int | None
    before: int | None
    bytes: int
    state: str


class PostgresPartitions(ABC):
    """The store methods that maintain history partitions; without partitions they do nothing."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    audit: Audit

    async def extend_history(self) -> int:
        ((made,),) = await self._fetch("select interlock.extend_history()")
        return int(made)

    async def leave_history(self, cutoff: int) -> int:
        ((marked,),) = await self._fetch("select interlock.leave_history($1)", cutoff)
        return int(marked)

    async def drop_history(self, cutoff: int) -> int:
        dropped = 0
        for part in await self._fetch(_PASSED, cutoff, cutoff - SWEEP_AFTER):
            is_free = part["detached"] or await self._persist(call("detach_history", 2), part["name"], cutoff)
            if is_free:
                dropped += bool(await self._persist(call("drop_history", 1), part["name"]))
            elif is_free is False and part["late"] and (part["left"] or not part["kept"]):
                await self._keep(part["name"])
        return dropped

    async def history_parts(self) -> list[HistoryPart]:
        """List the tables of history, oldest first."""
        return [HistoryPart(*row) for row in await self._fetch(_LISTED)]

    async def _persist(self, statement: str, *values: Any) -> bool | None:
        """Retry while other transactions hold history. Return the result, or None if every attempt found it locked."""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            ((done,),) = await self._fetch(statement, *values)
            if done is not None:
                return bool(done)
        return None

    async def _keep(self, name: str) -> None:
        """Keep a partition that cannot be dropped whole, and delete the history of its pruned jobs row by row."""
        await self._fetch(call("keep_history", 1), name)
        for tenant in await self.audit.tenants():
            after: str | None = _NO_ID
            while after is not None:
                ((after,),) = await self._fetch(call("sweep_history", 4), tenant, name, after, SWEEP_BATCH_SIZE)
        await self._fetch(call("history_is_emptied", 1), name)
