"""Rows of one tenant go from one database to another as they are, and chains are checked where they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from interlock.errors import Conflict, SchemaMismatch
from interlock.storage import chains
from interlock.storage.shards.owner import Owner

# What belongs to a job and never changes once it has ended, and how the rows of some jobs are found by an index.
_BY_JOB: Final = "job_id in (select unnest($2::uuid[]))"
OWNED: Final = {
    "job": "id in (select unnest($2::uuid[]))",
    "job_history": _BY_JOB,
    "job_checkpoint": _BY_JOB,
    "job_step": _BY_JOB,
    "job_event": _BY_JOB,
    "approval": _BY_JOB,
    "approval_vote": _BY_JOB,
    "setback": """(status, seq) in (select j.status::text, j.seq from interlock.job j
        where j.tenant = $1 and j.id in (select unnest($2::uuid[])))""",
    "artifact": _BY_JOB,
}
# Noted anew where a tenant arrives: they only tell where to look.
NOT_COPIED: Final = frozenset({"stretch", "stretch_word"})
# What sweeps look for across tenants: of living jobs it goes over at the very last, when it is theirs to find.
GATES: Final = ("approval", "approval_vote")
# What whoever holds a job may write without changing the row of the job.
LIVELY: Final = ("job_checkpoint", "job_step", "job_event", "artifact")
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
_OLDEST: Final = "select xid(pg_snapshot_xmin(pg_current_snapshot()))::text"
# A number of a transaction says nothing by itself, since they start again; its age does.
_SINCE: Final = "age(xmin) <= age($3::text::xid)"
_HELD: Final = "job_id in (select l.job_id from interlock.lease l where l.tenant = $1)"
_WRITTEN: Final = " union ".join(
    (
        f"select id from interlock.job where tenant = $1 and {OWNED['job']} and {_SINCE}",
        *(f"select job_id from interlock.{table} where tenant = $1 and {_HELD} and {_SINCE}" for table in LIVELY),
    )
)


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
        self._rest = [table for table in tables if table not in OWNED and table not in NOT_COPIED]
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

    async def copy_jobs(self, ended: Sequence[str], living: Sequence[str]) -> None:
        """Jobs with all they own, save the gates of those that live; what has arrived is verified."""
        both = [*ended, *living]
        if not both:
            return
        there = await self._with_rows(self._source, OWNED, both) | await self._with_rows(self._target, OWNED, both)
        for table in OWNED:
            if table in there:
                await self._copy_owned(table, ended if table in GATES else both)
            self._at(f"copied {table}")
        rows = await self._target.fetch(_CHAINS, self._tenant, both)
        verdict = chains.verify(tuple(row) for row in rows)
        if verdict.first_bad is not None or verdict.jobs != len(set(both)):
            raise CopyDiffers(f"histories do not verify: {verdict.first_bad or 'a job has none'}; nothing was moved")
        self._at("verified")

    async def copy_gates(self, living: Sequence[str]) -> None:
        """What was left out of jobs that live."""
        for table in GATES:
            await self._copy_owned(table, living)
            self._at(f"copied {table}")
        await self._same_counts(dict.fromkeys(GATES, _BY_JOB), living)

    async def gated(self, ids: Sequence[str]) -> set[str]:
        """Those of some jobs that have a gate, or had one."""
        rows = await self._source.fetch(
            f"select distinct job_id from interlock.approval where tenant = $1 and {_BY_JOB}", self._tenant, list(ids)
        )
        return {row[0] for row in rows}

    async def copy_rest(self) -> None:
        """Whatever is about the tenant as a whole, or changes with its living jobs."""
        there = await self._with_rows(self._source, dict.fromkeys(self._rest, "true"))
        for table in self._rest:
            if table in there:
                await self._copy(table)
            self._at(f"copied {table}")

    async def oldest_transaction(self) -> str:
        """Whatever is written from now on at the source is written by this transaction or a later one."""
        return str(await self._source.fetchval(_OLDEST))

    async def changed(self, ids: Sequence[str], since: str) -> list[str]:
        """Those of some jobs of which something was written by that transaction or a later one."""
        return [row[0] for row in await self._source.fetch(_WRITTEN, self._tenant, list(ids), since)]

    async def check_jobs(self, ended: Sequence[str], living: Sequence[str]) -> int:
        """Both sides have as many rows of some jobs; how many of them are the history of those that have ended."""
        ungated = {table: which for table, which in OWNED.items() if table not in GATES}
        await self._same_counts(ungated, living)
        return (await self._same_counts(OWNED, ended)).get("job_history", 0)

    async def check_whole(self) -> int:
        """Both sides have as many jobs, and as many rows of everything that is no job's; how many jobs."""
        return (await self._same_counts(dict.fromkeys(("job", *self._rest), "true")))["job"]

    async def _same_counts(self, tables: Mapping[str, str], *ids: Sequence[str]) -> dict[str, int]:
        if ids and not ids[0]:
            return {}
        count = " union all ".join(
            f"select '{table}', count(*) from interlock.{table} where tenant = $1 and {which}"
            for table, which in tables.items()
        )
        sides = (self._source, self._target)
        told = await asyncio.gather(*(side.fetch(count, self._tenant, *ids) for side in sides))
        sent, arrived = ({str(row[0]): int(row[1]) for row in rows} for rows in told)
        for table in tables:
            if sent[table] != arrived[table]:
                went = f"{sent[table]} rows of {table} were sent and {arrived[table]} arrived"
                raise CopyDiffers(f"{went}; nothing was moved, try again")
        return sent

    async def _with_rows(self, side: Owner, tables: Mapping[str, str], *ids: Sequence[str]) -> set[str]:
        """Those tables that have any such rows; most tenants have none in most tables."""
        looks = " union all ".join(
            f"select '{table}' where exists (select from interlock.{table} where tenant = $1 and {which})"
            for table, which in tables.items()
        )
        return {str(row[0]) for row in await side.fetch(looks, self._tenant, *ids)}

    async def _copy_owned(self, table: str, ids: Sequence[str]) -> None:
        if ids:
            # What an earlier pass or attempt has brought would be in the way.
            await self._target.execute(
                f"delete from interlock.{table} where tenant = $1 and {OWNED[table]}", self._tenant, list(ids)
            )
            await self._copy(table, OWNED[table], list(ids))

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
