"""The PostgreSQL side of a promotion.

The owner of the schema is enough: row triggers and row-level security are turned off for the transaction that writes,
and nobody sees them off. While a promotion is unfinished, no store opens the database.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg

from interlock.errors import Conflict, Forbidden, Invalid, Unavailable
from interlock.storage.postgres import migrate
from interlock.storage.postgres.column_arrays import EPOCH_2000
from interlock.storage.postgres.hosts import Nodes
from interlock.storage.promotion.tables import JOBS, Group, Plan, Table
from interlock.storage.shards.tenant_copy import OWNED

Owner: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

COPYING: Final = "copying"
SWITCHING: Final = "switching"
DONE: Final = "done"
_TABLES: Final = """
select c.relname, a.attname, format_type(a.atttypid, null)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where not a.attisdropped and a.attgenerated = '' and c.relnamespace = 'interlock'::regnamespace
  and c.relkind in ('r', 'p') and not c.relispartition
order by c.relname, a.attnum
"""
_ONE_PROMOTER: Final = "select pg_try_advisory_lock(hashtextextended('interlock promote', 0))"
_SEQUENCES: Final = {
    "job_seq_seq": ("job", "seq"),
    "eligibility_key_no": ("eligibility_key", "no"),
    "agent_no": ("agent", "no"),
}
_NEW_KEY: Final = (
    "update interlock.signing_key set key = sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))"
)

_CHAINS: Final = """
select h.tenant, h.job_id::text, h.version, h.from_status::text, h.to_status::text, h.verb, h.actor, h.attempt, h.fence,
  h.reason, h.metadata, h.at, h.hash, j.version, j.status::text, j.head
from unnest($1::text[], $2::bigint[]) k(tenant, seq) join interlock.job j on j.tenant = k.tenant and j.seq = k.seq
join interlock.job_history h on h.tenant = j.tenant and h.job_id = j.id order by h.tenant, h.job_id, h.version
"""


class Promotion(NamedTuple):
    """The promotion that fills, or has filled, a database."""

    id: str
    source: str
    phase: str


class TargetDatabase:
    """A PostgreSQL database that is being filled."""

    def __init__(self, connection: Owner) -> None:
        self.connection = connection

    async def be_the_only_promoter(self) -> None:
        if not await self.connection.fetchval(_ONE_PROMOTER):
            raise Conflict("another process is promoting to this database; wait until it ends")

    async def has_schema(self) -> bool:
        return bool(await self.connection.fetchval("select to_regclass('interlock.promotion') is not null"))

    async def promotion(self) -> Promotion | None:
        row = await self.connection.fetchrow("select id, source, phase from interlock.promotion")
        return None if row is None else Promotion(*row)

    async def tables(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for table, column, type in await self.connection.fetch(_TABLES):
            found.setdefault(table, {})[column] = type
        return found

    async def refuse_unless_fit(self, plan: Plan) -> None:
        """Raise if the database has rows already, or cannot be filled by its owner."""
        if await self.connection.fetchval("select exists (select from interlock.shard)"):
            raise Conflict("the target is a shard: promote to a separate database, and add it as a shard afterwards")
        if await self.connection.fetchval("select exists (select from interlock.history_partition)"):
            raise Conflict("the history of the target is partitioned: promote first, and partition it afterwards")
        counts = {name: count for name, count in (await self.counts(plan)).items() if count}
        if counts:
            found = ", ".join(f"{count} in {name}" for name, count in sorted(counts.items()))
            raise Conflict(
                f"the target is not empty: it has rows already ({found}); name an empty database. "
                "Rows of a promotion that was begun are removed with --back-out"
            )

    async def begin(self, id: str, source: str) -> None:
        await self.connection.execute(
            "insert into interlock.promotion (id, source, phase, begun_at) values ($1, $2, $3, now())",
            id,
            source,
            COPYING,
        )

    async def set_phase(self, phase: str) -> None:
        await self.connection.execute("update interlock.promotion set phase = $1", phase)

    async def progress(self) -> dict[str, Any]:
        """Return the last key of each table that was copied."""
        rows = await self.connection.fetch("select name, last_key from interlock.promotion_progress")
        return {name: json.loads(key) for name, key in rows}

    async def note_progress(self, name: str, key: Sequence[Any]) -> None:
        await self.connection.execute(
            "insert into interlock.promotion_progress (name, last_key) values ($1, $2) "
            "on conflict (name) do update set last_key = excluded.last_key",
            name, json.dumps(key),
        )  # fmt: skip

    @asynccontextmanager
    async def unguarded(self, tables: Iterable[Table]) -> AsyncIterator[None]:
        """Open a transaction in which the triggers and row-level security of these tables are off."""
        names = sorted({table.name for table in tables})
        async with self.connection.transaction():
            await self._guard(names, on=False)
            yield
            await self._guard(names, on=True)

    async def _guard(self, names: Sequence[str], *, on: bool) -> None:
        security, triggers = ("force", "enable") if on else ("no force", "disable")
        await self.connection.execute(
            "".join(
                f"alter table interlock.{name} {security} row level security, {triggers} trigger user;"
                for name in names
            )
        )

    async def replace(
        self, group: Group, keys: Sequence[Sequence[Any]], rows: Mapping[str, list[tuple[Any, ...]]]
    ) -> None:
        """Replace the rows with these keys, in an unguarded transaction."""
        if group.name == JOBS:
            await self._delete_jobs(keys)
        else:
            (table,) = group.tables
            arrays = [table.convert_key(column, [key[i] for key in keys]) for i, column in enumerate(group.key)]
            given = ", ".join(f"${i + 1}::{table.columns[c]}[]" for i, c in enumerate(group.key))
            same = " and ".join(f"t.{column} = k.{column}" for column in group.key)
            await self.connection.execute(
                f"delete from interlock.{table.name} t using unnest({given}) as k({', '.join(group.key)}) where {same}",
                *arrays,
            )
        for table in group.tables:
            await self.insert(table, rows[table.name])

    async def _delete_jobs(self, keys: Sequence[Sequence[Any]]) -> None:
        """Delete jobs with their rows in other tables, which are found by the job as it was copied before."""
        by_tenant: dict[str, list[int]] = {}
        for tenant, seq in keys:
            by_tenant.setdefault(tenant, []).append(seq)
        for tenant, seqs in by_tenant.items():
            ids = await self.connection.fetchval(
                "select array_agg(id) from interlock.job where tenant = $1 and seq = any($2::bigint[])", tenant, seqs
            )
            if ids:
                for table, which in {**OWNED, "lease": "job_id = any($2::uuid[])"}.items():
                    if table in ("lease", "ready", "unsuccessful_job", "job_history"):
                        await self.connection.execute(
                            f"delete from interlock.{table} where tenant = $1 and {which}", tenant, ids
                        )
                await self.connection.execute(
                    f"delete from interlock.job where tenant = $1 and {OWNED['job']}", tenant, ids
                )

    async def clear_table(self, table: Table) -> None:
        await self.connection.execute(f"delete from interlock.{table.name}")

    async def insert(self, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            await self.connection.copy_records_to_table(
                table.name, schema_name="interlock", columns=list(table.columns), records=rows
            )

    async def counts(self, plan: Plan) -> dict[str, int]:
        """Count all rows; in a transaction that is rolled back, because row-level security hides them."""
        count = " union all ".join(f"select '{t.name}', count(*) from interlock.{t.name}" for t in plan.tables)
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self._guard([table.name for table in plan.tables], on=False)
            return {str(name): int(number) for name, number in await self.connection.fetch(count)}
        finally:
            await transaction.rollback()

    async def chains(self, keys: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Return the histories of these jobs, as their verification takes them, in an unguarded transaction."""
        rows = await self.connection.fetch(_CHAINS, [tenant for tenant, _ in keys], [seq for _, seq in keys])
        return [tuple(row) for row in rows]

    async def finish(self, epoch: int, signing_key: bytes) -> None:
        """Continue the numbers, the epoch and the signing key of the file, in an unguarded transaction."""
        for sequence, (table, column) in _SEQUENCES.items():
            highest = await self.connection.fetchval(f"select max({column}) from interlock.{table}")
            if highest is not None:
                await self.connection.execute(f"select setval('interlock.{sequence}', $1)", highest)
        # Events sort by epoch, so that those of this database follow those of the file.
        await self.connection.execute("update interlock.epoch set value = $1", epoch + 1)
        await self.connection.execute("update interlock.signing_key set key = $1", signing_key)

    async def clear(self, plan: Plan) -> None:
        """Delete everything that a promotion has brought."""
        names = ", ".join(f"interlock.{table.name}" for table in plan.tables)
        async with self.unguarded(plan.tables):
            await self.connection.execute(f"truncate {names}, interlock.promotion, interlock.promotion_progress")
            for sequence in _SEQUENCES:
                await self.connection.execute(f"alter sequence interlock.{sequence} restart")
            await self.connection.execute("update interlock.epoch set value = 0")
            await self.connection.execute(_NEW_KEY)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[TargetDatabase]:
    """Connect as the owner of the schema, without the time limits of the server."""
    try:
        connection: Owner = await Nodes(dsn).connect()
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
    try:
        await connection.set_type_codec(
            "timestamptz",
            schema="pg_catalog",
            encoder=lambda micros: (micros - EPOCH_2000,),
            decoder=lambda parts: parts[0] + EPOCH_2000,
            format="tuple",
        )
        await migrate.take_all_time(connection)
        await connection.execute("set enable_seqscan = off; set jit = off")
        yield TargetDatabase(connection)
    except asyncpg.InsufficientPrivilegeError as error:
        raise Forbidden(f"{error}: connect to the target as the owner of its schema") from error
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise Invalid(f"PostgreSQL does not accept a row of the file: {error}; nothing was switched") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable(f"PostgreSQL failed: {error}; run the command again, it continues") from error
    finally:
        connection.terminate()
