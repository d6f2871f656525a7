"""Copy of one tenant's rows between databases, with verification of history chains on the target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from interlock.errors import Conflict, SchemaMismatch
from interlock.storage import history_chain
from interlock.storage.shards.admin_connection import Owner

# Tables owned by a job, which do not change once it is terminal, with an indexed condition for the rows of some jobs.
# Tables whose condition reads `job` come before it: on the target, they use the job as an earlier pass copied it.
_JOBS: Final = "id = any($2::uuid[])"
_BY_JOB: Final = f"job_{_JOBS}"
# offset 0 fixes the join order: from the few jobs to their rows among many waiting ones.
_READY: Final = f"""ctid = any(array(
    select q.at from (select eligibility_key, agent_no, run_at, seq from interlock.job
      where tenant = $1 and {_JOBS} offset 0) j
    cross join lateral (
      (select ctid as at from interlock.ready
       where tenant = $1 and eligibility_key = j.eligibility_key
       and run_at = j.run_at and seq = j.seq and not blocked offset 0)
      union all
      (select ctid from interlock.ready where tenant = $1 and agent_no is not null
       and agent_no = j.agent_no and run_at = j.run_at and seq = j.seq and blocked offset 0)
      union all
      (select r.ctid from interlock.eligibility_key e join interlock.ready r on r.tenant = $1
       and r.eligibility_key = e.no and r.run_at = j.run_at and r.seq = j.seq and not r.blocked
       where e.tenant = $1 and e.parks = j.eligibility_key offset 0)
    ) q))"""
_UNSUCCESSFUL: Final = f"""ctid = any(array(
    select s.at from (select status::text as status, seq from interlock.job where tenant = $1 and {_JOBS} offset 0) j
    cross join lateral (
      select ctid as at from interlock.unsuccessful_job
      where tenant = $1 and status = j.status and seq = j.seq offset 0) s))"""
OWNED: Final = {
    "ready": _READY,
    "unsuccessful_job": _UNSUCCESSFUL,
    "job": _JOBS,
    "job_history": _BY_JOB,
    "job_checkpoint": _BY_JOB,
    "job_step": _BY_JOB,
    "job_event": _BY_JOB,
    "job_message": _BY_JOB,
    "message_wait": _BY_JOB,
    "job_stream": _BY_JOB,
    "stream_chunk": _BY_JOB,
    "job_effect": _BY_JOB,
    "approval": _BY_JOB,
    "approval_vote": _BY_JOB,
    "artifact": _BY_JOB,
}
# Indexes of job blocks are rebuilt on the target. Move deltas belong to the move itself.
NOT_COPIED: Final = frozenset({"job_block", "job_block_term", "move_delta"})
# Append-only, so that most of it is copied ahead.
ROUTES: Final = "eligibility_key"
# Sweeps find these rows across tenants, so those of active jobs are copied last, when the target may act on them.
APPROVAL_TABLES: Final = ("approval", "approval_vote")
# For the same reason, these are deleted first on the source.
EMPTIED_FIRST: Final = frozenset(
    {"claim_result", "lease", "ready", "job_await", "outbox", "artifact_orphan", *APPROVAL_TABLES}
)
_WITHOUT_APPROVALS: Final = {table: which for table, which in OWNED.items() if table not in APPROVAL_TABLES}
# Written by the move itself, or not part of a tenant's data on a shard.
APART: Final = frozenset({"tenant", "placement"})
# Sequences that must stay above the numbers that a tenant brings along.
NUMBERS: Final = {
    "job_seq_seq": ("job", "seq"),
    "eligibility_key_no": ("eligibility_key", "no"),
    "agent_no": ("agent", "no"),
}

DELETE_BATCH_SIZE: Final = 2_000
# Disable triggers, and force index scans: statistics of tables that were just empty are wrong.
_AS_THEY_ARE: Final = """
set session_replication_role = replica; set enable_seqscan = off; set jit = off
"""

_TABLES: Final = """
select c.relname, array_agg(a.attname::text order by a.attnum)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where not a.attisdropped and a.attgenerated = ''
  and c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
  and c.relname not in (select name from interlock.history_partition where detached)
group by c.relname having bool_or(a.attname = 'tenant') order by c.relname
"""
# Partitioned history may still contain rows of deleted jobs; those are not copied.
_SOME_LEFT: Final = "select exists (select from interlock.history_partition where left_below is not null)"
_OF_JOBS: Final = "exists (select from interlock.job j where j.tenant = $1 and j.id = job_history.job_id)"
_CHAINS: Final = """
select h.tenant, h.job_id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason,
  h.metadata, h.at, h.hash, j.version, j.status, j.head
from interlock.job_history h left join lateral (
  select version, status, head from interlock.job where tenant = $1 and id = h.job_id offset 0) j on true
where h.tenant = $1 and h.job_id = any($2::uuid[]) order by h.job_id, h.version
"""
# Parents of terminal jobs are recorded as well, whether they exist or not.
_MOVE_DELTAS: Final = """
with gone as (delete from interlock.move_delta where tenant = $1 returning job_id)
select j.id from (select distinct job_id from gone) g
cross join lateral (select id from interlock.job where tenant = $1 and id = g.job_id offset 0) j
"""
_LIMITED: Final = """
select coalesce(array_agg(no) filter (where max_concurrency is not null), '{}'),
  coalesce(array_agg(no) filter (where max_concurrency is null), '{}') from interlock.agent where tenant = $1
"""
# Few jobs of a limited agent hold a slot, and few jobs of an unlimited agent are blocked: compare only these.
_FEW: Final = """
select job_id from interlock.ready where tenant = $1 and agent_no = any($2::bigint[])
  and agent_no is not null and not blocked
union all
select job_id from interlock.ready where tenant = $1 and agent_no = any($3::bigint[])
  and agent_no is not null and blocked
"""
_SIZE: Final = f"""
select (select count(*) from interlock.job where tenant = $1 and {_JOBS}),
  (select count(*) from interlock.job_history where tenant = $1 and {_BY_JOB})
"""


class Size(NamedTuple):
    """The number of jobs and of their history rows."""

    jobs: int
    rows: int


class CopyDiffers(Conflict):
    """The copy differs from the source; the tenant stays on the source."""


class Copier:
    """A copy of one tenant's rows from a source to a target."""

    def __init__(
        self, source: Owner, target: Owner, tenant: str, tables: dict[str, list[str]], at: Callable[[str], None]
    ) -> None:
        self._source = source
        self._target = target
        self._tenant = tenant
        self._tables = tables
        self._rest = [table for table in tables if table not in OWNED and table not in NOT_COPIED and table != ROUTES]
        self._at = at
        self._last_route = 0

    @classmethod
    async def between(cls, source: Owner, target: Owner, tenant: str, at: Callable[[str], None]) -> Copier:
        """Create a copier; both schemas must be equal. Triggers are disabled on both sides."""
        tables = {row[0]: list(row[1]) for row in await source.fetch(_TABLES)}
        if tables != {row[0]: list(row[1]) for row in await target.fetch(_TABLES)}:
            raise SchemaMismatch("the two databases have different tables; run interlock migrate on both")
        await source.execute(_AS_THEY_ARE)
        await target.execute(_AS_THEY_ARE)
        return cls(source, target, tenant, {name: tables[name] for name in tables if name not in APART}, at)

    async def begin(self, *, anew: bool) -> None:
        """Start recording changes; requires the move lock. New eligibility keys get numbers above the current one.

        With `anew=False`, keep the changes recorded for an interrupted attempt.
        """
        if anew:
            await self._source.execute("delete from interlock.move_delta where tenant = $1", self._tenant)
        self._last_route = int(await self._source.fetchval("select last_value from interlock.eligibility_key_no"))

    async def copy_eligibility_keys(self) -> None:
        """Copy the eligibility keys that existed at the start."""
        async with self._target.transaction():
            await self._target.execute("delete from interlock.eligibility_key where tenant = $1", self._tenant)
            await self._copy(ROUTES, self._keys("<="))
        self._at("copied routes")

    async def copy_jobs(self, ended: Sequence[str], living: Sequence[str]) -> None:
        """Copy jobs with all their rows, except approvals of active jobs; verify their chains on the target."""
        both = [*ended, *living]
        if not both:
            return
        there = await self._with_rows(self._source, OWNED, both) | await self._with_rows(self._target, OWNED, both)
        for table in OWNED:
            if table in there:
                await self._copy_owned(table, ended if table in APPROVAL_TABLES else both)
            self._at(f"copied {table}")
        rows = await self._target.fetch(_CHAINS, self._tenant, both)
        verdict = history_chain.verify(rows)
        if verdict.first_bad is not None or verdict.jobs != len(set(both)):
            raise CopyDiffers(f"histories do not verify: {verdict.first_bad or 'a job has none'}; nothing was moved")
        self._at("verified")

    async def copy_approvals(self, living: Sequence[str]) -> None:
        """Copy the approvals of active jobs, which `copy_jobs` leaves out."""
        for table in APPROVAL_TABLES:
            await self._copy_owned(table, living)
            self._at(f"copied {table}")
        await self._same_counts(dict.fromkeys(APPROVAL_TABLES, _BY_JOB), living)

    async def ended(self, ids: Sequence[str]) -> list[str]:
        """Return the terminal ones among these jobs."""
        rows = await self._source.fetch(
            f"select id from interlock.job where tenant = $1 and {_JOBS} and status >= 'succeeded'",
            self._tenant, list(ids),
        )  # fmt: skip
        return [row[0] for row in rows]

    async def with_approvals(self, ids: Sequence[str]) -> set[str]:
        """Return those of these jobs that have or had an approval."""
        rows = await self._source.fetch(
            f"select distinct job_id from interlock.approval where tenant = $1 and {_BY_JOB}", self._tenant, list(ids)
        )
        return {row[0] for row in rows}

    async def copy_rest(self) -> None:
        """Copy the tables that belong to the tenant as a whole or change with its active jobs."""
        rest = dict.fromkeys(self._rest, "true")
        sent, left = await self._with_rows(self._source, rest), await self._with_rows(self._target, rest)
        for table in self._rest:
            if table in left:  # written with a stale map, or by a sweep, after the tenant had left
                await self._target.execute(f"delete from interlock.{table} where tenant = $1", self._tenant)
            if table in sent:
                await self._copy(table)
            self._at(f"copied {table}")
        await self._copy(ROUTES, self._keys(">"))
        self._at(f"copied {ROUTES}")

    async def move_deltas(self) -> list[str]:
        """Return the jobs written since the last call, and clear the records."""
        return [row[0] for row in await self._source.fetch(_MOVE_DELTAS, self._tenant)]

    async def displaced(self) -> list[str]:
        """Return waiting jobs that hold a slot on one side only: slots change without a write to the job."""
        limits = tuple(await self._source.fetchrow(_LIMITED, self._tenant) or ())
        sides = (self._source, self._target)
        results = await asyncio.gather(*(side.fetch(_FEW, self._tenant, *limits) for side in sides))
        here, there = ({row[0] for row in rows} for rows in results)
        return sorted(here ^ there)

    async def arrived(self, ids: Sequence[str]) -> Size:
        """Return the size of these jobs on the target."""
        return Size(*await self._target.fetchrow(_SIZE, self._tenant, list(ids)) or (0, 0))

    async def is_whole(self, ended: Sequence[str]) -> bool:
        """Return whether the target has all rows of these terminal jobs."""
        try:
            await self._same_counts(OWNED, ended)
        except CopyDiffers:
            return False
        return True

    async def check_jobs(self, ended: Sequence[str], living: Sequence[str]) -> None:
        """Raise unless both sides have the same number of rows for these jobs."""
        await self._same_counts(_WITHOUT_APPROVALS, living)
        await self._same_counts(OWNED, ended)

    async def check_ahead(self) -> Size:
        """Raise unless both sides have the same number of rows in all tables that are copied ahead."""
        history = _OF_JOBS if await self._source.fetchval(_SOME_LEFT) else "true"
        every = {**dict.fromkeys(_WITHOUT_APPROVALS, "true"), "job_history": history, ROUTES: self._keys("<=")}
        counted = await self._same_counts(every)
        return Size(counted["job"], counted["job_history"])

    async def check_rest(self) -> None:
        """Raise unless both sides have the same number of rows in the tables that do not belong to a job."""
        await self._same_counts({**dict.fromkeys(self._rest, "true"), ROUTES: self._keys(">")})

    def _keys(self, side: str) -> str:
        return f"no {side} {self._last_route}"

    async def _same_counts(self, tables: Mapping[str, str], *ids: Sequence[str]) -> dict[str, int]:
        if ids and not ids[0]:
            return {}
        count = " union all ".join(
            f"select '{table}', count(*) from interlock.{table} where tenant = $1 and {which}"
            for table, which in tables.items()
        )
        sides = (self._source, self._target)
        results = await asyncio.gather(*(side.fetch(count, self._tenant, *ids) for side in sides))
        sent, arrived = ({str(row[0]): int(row[1]) for row in rows} for rows in results)
        for table in tables:
            if sent[table] != arrived[table]:
                went = f"{sent[table]} rows of {table} were sent and {arrived[table]} arrived"
                raise CopyDiffers(f"{went}; nothing was moved, try again")
        return sent

    async def _with_rows(self, side: Owner, tables: Mapping[str, str], *ids: Sequence[str]) -> set[str]:
        """Return the tables with matching rows; most tenants have none in most tables."""
        looks = " union all ".join(
            f"select '{table}' where exists (select from interlock.{table} where tenant = $1 and {which})"
            for table, which in tables.items()
        )
        return {str(row[0]) for row in await side.fetch(looks, self._tenant, *ids)}

    async def _copy_owned(self, table: str, ids: Sequence[str]) -> None:
        if ids:
            # Delete the rows of earlier passes and attempts, which would conflict.
            await self._target.execute(
                f"delete from interlock.{table} where tenant = $1 and {OWNED[table]}", self._tenant, list(ids)
            )
            await self._copy(table, OWNED[table], list(ids))

    async def lift_numbers(self, number: Callable[[str, int], int]) -> None:
        """Raise the target's sequences above the copied numbers; a lock serializes concurrent moves to the target."""
        await self._target.execute("select pg_advisory_xact_lock(hashtextextended('interlock numbers', 0))")
        for sequence, (table, column) in NUMBERS.items():
            highest = await self._source.fetchval(
                f"select max({column}) from interlock.{table} where tenant = $1", self._tenant
            )
            given = int(await self._target.fetchval(f"select last_value from interlock.{sequence}"))
            if highest is not None and given <= highest:
                await self._target.execute(f"select setval('interlock.{sequence}', $1)", number(sequence, highest))
            self._at(f"lifted {sequence}")

    async def is_empty(self, side: Owner) -> bool:
        """Return whether this side has no data of the tenant."""
        return not await self._with_rows(side, dict.fromkeys(self._tables, "true"))

    async def clear(self, side: Owner) -> None:
        """Delete everything but the row that marks the tenant as gone, in bounded steps."""
        for table in sorted(self._tables, key=lambda table: table not in EMPTIED_FIRST):
            deleted = DELETE_BATCH_SIZE
            while deleted == DELETE_BATCH_SIZE:
                status = await side.execute(
                    f"delete from interlock.{table} where (tableoid, ctid) in "
                    f"(select tableoid, ctid from interlock.{table} where tenant = $1 limit {DELETE_BATCH_SIZE})",
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
