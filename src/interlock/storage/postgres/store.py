"""The store contract on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from interlock.domain.artifact import REPLACED_KEPT_SECONDS
from interlock.domain.decide import STOPS, Command
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    Job,
    NewJob,
    Receipt,
    Rejected,
)  # fmt: skip
from interlock.domain.operations import PruneCommand, PrunedStep
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Report, Step, StepRow
from interlock.domain.retry import SECOND
from interlock.errors import Forbidden, SchemaMismatch
from interlock.storage.contract import NO_TERMS, Due, Fitness, Terms, cancels_of
from interlock.storage.expired import ExpiredCounts
from interlock.storage.job_columns import JOB, job_of
from interlock.storage.parts.audit import by_id
from interlock.storage.parts.store import StoreParts
from interlock.storage.postgres import (
    caller_transaction,
    claim,
    diagnostics,
    enqueue,
    progress,
    transition,
)
from interlock.storage.postgres import (
    migrate as migrations,
)
from interlock.storage.postgres.connection import OLDEST_SERVER, Conn, Link, call
from interlock.storage.postgres.doctor import DoctorVerbs
from interlock.storage.postgres.driver import PostgresDatabase
from interlock.storage.postgres.heartbeats import checkpoint, heartbeat
from interlock.storage.postgres.history_partitions import PostgresPartitions
from interlock.storage.postgres.job_blocks import PostgresJobBlocks
from interlock.storage.postgres.notify import Notifier
from interlock.storage.postgres.shard_directory import PostgresShards
from interlock.storage.wakeup import NextLook, Wakeup

T = TypeVar("T")
# Claims read the epoch under a lock that they hold until they end. This lock conflicts, so it comes after all of them.
_ALONE: Final = """
set local role none;
set local lock_timeout = '10s';
lock table interlock.epoch in access exclusive mode;
"""


class PostgresStore(StoreParts, DoctorVerbs, PostgresPartitions, PostgresShards, PostgresJobBlocks):
    """Jobs in the schema `interlock` of one database. Any number of processes may use it."""

    def __init__(self, dsn: str, link: Link, clock: Callable[[], int] | None) -> None:
        self._link = link
        self._clock = clock
        self._known = enqueue.EnqueueCache()
        self._bell = Notifier(dsn)
        self._events_added = Wakeup()
        self.expired = ExpiredCounts()
        super().__init__(PostgresDatabase(self._run, transition, self._bell.ring), by_id)

    @classmethod
    async def open(
        cls, dsn: str, *, size: int = 8, clock: Callable[[], int] | None = None, promoting: bool = False
    ) -> PostgresStore:
        """Connect, and reject a server or schema of an unsupported version. `clock` is for tests.

        With `promoting`, accept a database that is still being filled.
        """
        link = await Link.open(dsn, size=size)
        store = cls(dsn, link, clock)
        try:
            await link.run(migrations.check_schema if promoting else migrations.check)
            number = int(await link.run(lambda connection: connection.fetchval("show server_version_num")))
            if number < OLDEST_SERVER:
                raise SchemaMismatch(f"PostgreSQL 15 or newer is needed, this one is {number // 10_000}")
        except BaseException:
            await link.close()
            raise
        return store

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        results = await self._run(lambda c: enqueue.enqueue(c, self._known, tenant, jobs, whole, terms))
        self._bell.ring(tenant)
        return results

    async def enqueue_within(
        self, connection: object, tenant: str, jobs: Sequence[NewJob], *, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        return await caller_transaction.enqueue_within(connection, tenant, jobs, terms)

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        next_look = NextLook()
        leased = await self._run(
            lambda c: claim.claim(c, tenant, ask, claimants, self.expired, next_look),
            repeatable=ask.claim_id is not None,
        )
        self._bell.ring_in(tenant, next_look)
        return leased

    async def heartbeat(self, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        answers = await self._run(lambda c: heartbeat(c, tenant, heartbeats))
        if any(heartbeat.events for heartbeat in heartbeats):
            self._events_added.fire()
        return answers

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
        return await self._run(lambda c: checkpoint(c, tenant, checkpoints))

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        # A command with expected_version fails when repeated, so it is not retried after a lost connection.
        repeatable = all(getattr(order, "expected_version", None) is None for order in orders)
        results = await self._run(lambda c: transition.carry_out(c, tenant, orders), repeatable=repeatable)
        self._bell.ring(tenant)
        if any(isinstance(order, STOPS) for order in orders):
            self._bell.ring(cancels_of(tenant))
        return results

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        return await self._run(lambda c: progress.save_steps(c, tenant, steps))

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        answers = await self._run(lambda c: progress.add_events(c, tenant, reports))
        self._events_added.fire()
        return answers

    def watch_events(self) -> asyncio.Event:
        return self._events_added.event()

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        o, most = order, order.step if order.most is None else order.most
        facts = (o.id, o.actor, o.cutoff, o.after_seq, o.step, o.dry_run, most, REPLACED_KEPT_SECONDS)
        (row,) = await self._fetch(call("prune", 9), tenant, *facts, repeatable=False)
        return PrunedStep(*row)

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]:
        rows = await self._fetch(call("jobs", 2, columns=JOB), tenant, list(job_ids))
        jobs = {job.id: job for job in map(job_of, rows)}
        return [jobs.get(id) for id in job_ids]

    async def find(self, tenant: str, filter: Filter) -> list[Job]:
        f = filter
        statuses = [str(status) for status in f.statuses] or None
        rows = await self._fetch(
            call("find_jobs", 13, columns=JOB), tenant, statuses, f.type, *(f.agent or (None, None)), f.worker,
            f.stale_seconds, f.parent_id, list(f.tags), f.created_after, f.created_before, f.before_seq, f.limit,
        )  # fmt: skip
        found = {job.seq: job for job in map(job_of, rows)}
        return [found[seq] for seq in sorted(found, reverse=True)[: f.limit]]

    async def due_leases(self, limit: int) -> list[Due]:
        rows = await self._fetch("select tenant, job_id from interlock.due_leases(interlock.clock(), $1)", limit)
        return [Due(*row) for row in rows]

    async def due_deadlines(self, limit: int) -> list[Due]:
        rows = await self._fetch(
            "select tenant, job_id from interlock.due_deadlines(interlock.clock(), $1) union "
            "select tenant, job_id from interlock.due_waits(interlock.clock(), $1) limit $1",
            limit,
        )
        return [Due(*row) for row in rows]

    async def forget_claims(self, older_than_seconds: float, limit: int) -> int:
        before = await self.now() - round(older_than_seconds * SECOND)
        gone = 0
        for tenant, worker, claim_id in await self._fetch(call("old_claims", 2), before, limit):
            ((dropped,),) = await self._fetch("select interlock.forget_claim($1, $2, $3)", tenant, worker, claim_id)
            gone += dropped
        return gone

    async def now(self) -> int:
        ((now,),) = await self._fetch("select interlock.clock()")
        return int(now)

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

    def watch(self, tenant: str) -> asyncio.Event:
        return self._bell.event(tenant)

    def hear(self, *, ready: Callable[[str | None], None], events: Callable[[str | None], None]) -> None:
        """Call these with the tenant whenever jobs may have become claimable, or events were appended."""
        self._bell.hear(ready)
        self._events_added.hear(events)

    async def new_job_shard(self, tenant: str, type: str | None = None) -> int:
        return 0

    async def unreachable(self) -> dict[str, str]:
        await self.now()
        return {}

    async def facts(self) -> dict[str, str]:
        return await self._run(diagnostics.read)

    async def fitness(self) -> Fitness:
        self._link.check_disk()
        return await self._run(diagnostics.fitness)

    async def close(self) -> None:
        await self._bell.close()
        await self._link.close()

    async def _fetch(self, statement: str, *values: Any, repeatable: bool = True) -> list[asyncpg.Record]:
        return await self._run(lambda c: c.fetch(statement, *values), repeatable=repeatable)

    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T:
        if self._clock is None:
            return await self._link.run(verb, repeatable=repeatable)

        async def at_set_time(connection: Conn) -> T:
            await connection.execute(
                "select set_config('interlock.clock', to_timestamp($1 / 1e6)::text, false)", float(clock())
            )
            return await verb(connection)

        clock = self._clock
        return await self._link.run(at_set_time, repeatable=repeatable)


async def migrate(dsn: str) -> list[str]:
    """Apply missing migrations as the owner of the schema, and return their names."""
    return await migrations.migrate(dsn)
