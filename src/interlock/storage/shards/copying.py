"""Rows of one tenant go from one database to another as they are, and chains are checked where they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from interlock.errors import Conflict, SchemaMismatch
from interlock.storage import chains
from interlock.storage.shards.owner import Owner

# What belongs to a job and never changes once it has ended, and how the rows of some jobs are found by an index.
_BY_JOB: Final = "job_id = any($2::uuid[])"
OWNED: Final = {
    "job": "id = any($2::uuid[])",
    "job_history": _BY_JOB,
    "job_checkpoint": _BY_JOB,
    "job_step": _BY_JOB,
    "job_event": _BY_JOB,
    "approval": _BY_JOB,
    "approval_vote": _BY_JOB,
    "setback": """(status, seq) in
        (select j.status, j.seq from interlock.job j where j.tenant = $1 and j.id = any($2::uuid[]))""",
    "artifact": _BY_JOB,
}
# Written by the move itself, or not about a tenant's life on a shard.
APART: Final = frozenset({"tenant", "placement"})
# Numbers that a database gives out must stay above those that come with a tenant.
NUMBERS: Final = {"job_seq_seq": ("job", "seq"), "route_no": ("route", "no"), "agent_no": ("agent", "no")}

DELETED_AT_ONCE: Final = 2_000
_AS_THEY_ARE: Final = "set session_replication_role = replica"

_TABLES: Final = """
select c.relname, array_agg(a.attname::text order by a.attnum)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where not a.attisdropped and a.attgenerated = ''
  and c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
group by c.relname having bool_or(a.attname = 'tenant') order by c.relname
"""
_CHAINS: Final = """
select h.tenant, h.job_id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason,
  h.metadata, h.at, h.hash, j.version, j.status
from interlock.job_history h left join interlock.job j on j.tenant = h.tenant and j.id = h.job_id
where h.tenant = $1 and h.job_id = any($2::uuid[]) order by h.job_id, h.version
"""


class CopyDiffers(Conflict):
    """What has arrived is not what was sent; the old copy stays, and the tenant where it is."""


class Copier:
    """One tenant's rows on their way from a source to a target."""

    def __init__(
        self, source: Owner, target: Owner, tenant: str, tables: dict[str, list[str]], at: Callable[[str], None]
    ) -> None:
        self._source = source
        self._target = target
        self._tenant = tenant
        self._tables = tables
        self._at = at

    @classmethod
    async def between(cls, source: Owner, target: Owner, tenant: str, at: Callable[[str], None]) -> Copier:
        """Only between databases of the same schema; neither counts, links or announces what is copied."""
        tables = {row[0]: list(row[1]) for row in await source.fetch(_TABLES)}
        if tables != {row[0]: list(row[1]) for row in await target.fetch(_TABLES)}:
            raise SchemaMismatch("the two databases have different tables; run interlock migrate on both")
        await source.execute(_AS_THEY_ARE)
        await target.execute(_AS_THEY_ARE)
        return cls(source, target, tenant, {name: tables[name] for name in tables if name not in APART}, at)

    async def copy_jobs(self, ids: Sequence[str]) -> None:
        """Jobs with all they own; what has arrived is verified."""
        if not ids:
            return
        for table, which in OWNED.items():
            # What a move that was called off has not quite cleared would be in the way.
            await self._target.execute(
                f"delete from interlock.{table} where tenant = $1 and {which}", self._tenant, list(ids)
            )
            await self._copy(table, which, list(ids))
            self._at(f"copied {table}")
        rows = await self._target.fetch(_CHAINS, self._tenant, list(ids))
        verdict = chains.verify(tuple(row) for row in rows)
        if verdict.first_bad is not None or verdict.jobs != len(set(ids)):
            raise CopyDiffers(f"histories do not verify: {verdict.first_bad or 'a job has none'}; nothing was moved")
        self._at("verified")

    async def copy_rest(self) -> None:
        """Whatever is about the tenant as a whole, or changes with its living jobs."""
        for table in self._tables:
            if table not in OWNED:
                await self._copy(table)
                self._at(f"copied {table}")

    async def check_counts(self) -> dict[str, int]:
        """How many rows of each table there are on both sides; they must be the same."""
        counts = {table: await self._counts(table) for table in self._tables}
        for table, (sent, arrived) in counts.items():
            if sent != arrived:
                raise CopyDiffers(
                    f"{sent} rows of {table} were sent and {arrived} arrived; nothing was moved, try again"
                )
        return {table: sent for table, (sent, _) in counts.items()}

    async def lift_numbers(self, number: Callable[[str, int], int]) -> None:
        """Let the target give out only numbers above those that come along."""
        for sequence, (table, column) in NUMBERS.items():
            highest = await self._source.fetchval(
                f"select max({column}) from interlock.{table} where tenant = $1", self._tenant
            )
            given = int(await self._target.fetchval(f"select last_value from interlock.{sequence}"))
            if highest is not None and given <= highest:
                await self._target.execute(f"select setval('interlock.{sequence}', $1)", number(sequence, highest))
            self._at(f"lifted {sequence}")

    async def clear(self, side: Owner) -> None:
        """Delete everything but the row that says the tenant is gone, in bounded steps."""
        for table in self._tables:
            deleted = DELETED_AT_ONCE
            while deleted == DELETED_AT_ONCE:
                status = await side.execute(
                    f"delete from interlock.{table} where (tableoid, ctid) in "
                    f"(select tableoid, ctid from interlock.{table} where tenant = $1 limit {DELETED_AT_ONCE})",
                    self._tenant,
                )
                deleted = int(status.split()[-1])
                self._at(f"cleared {table}")

    async def _counts(self, table: str) -> tuple[int, int]:
        count = f"select count(*) from interlock.{table} where tenant = $1"
        return int(await self._source.fetchval(count, self._tenant)), int(
            await self._target.fetchval(count, self._tenant)
        )

    async def _copy(self, table: str, which: str = "true", *values: object) -> None:
        columns = self._tables[table]
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)

        async def send() -> None:
            try:
                await self._source.copy_from_query(
                    f"select {', '.join(map(_quoted, columns))} from interlock.{table} where tenant = $1 and {which}",
                    self._tenant, *values, output=pieces.put, format="binary",
                )  # fmt: skip
            finally:
                await pieces.put(None)

        async def received() -> AsyncIterator[bytes]:
            while (piece := await pieces.get()) is not None:
                yield piece

        sending = asyncio.create_task(send())
        try:
            await self._target.copy_to_table(
                table, schema_name="interlock", columns=columns, source=received(), format="binary"
            )
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def _quoted(name: str) -> str:
    return f'"{name}"'
