"""The store on one SQLite file."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import apsw

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
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.operations import PruneCommand, PrunedStep
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Report, Step, StepRow
from interlock.domain.retry import SECOND
from interlock.errors import Invalid, SchemaMismatch, StorageBroken
from interlock.storage.contract import NO_TERMS, Due, Fitness, Terms, cancels_of
from interlock.storage.expired import ExpiredCounts
from interlock.storage.job_columns import expand
from interlock.storage.migrate import lacking, migrations, pending
from interlock.storage.parts.audit import by_seq
from interlock.storage.parts.store import StoreParts
from interlock.storage.sql_files import load
from interlock.storage.sqlite import claim, enqueue, list_jobs, progress, prune, transition, transition_effects
from interlock.storage.sqlite.connection import (
    MEMORY,
    Connection,
    explain,
    of_a_row,
    permissions,
    prepare_file,
    wall_clock,
)
from interlock.storage.sqlite.doctor import DoctorVerbs
from interlock.storage.sqlite.driver import SQLiteDatabase
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys
from interlock.storage.sqlite.heartbeats import checkpoint, heartbeat
from interlock.storage.sqlite.job_blocks import SQLiteJobBlocks
from interlock.storage.sqlite.job_row import to_job
from interlock.storage.sqlite.notify import EVENTS, Notifier, Topic
from interlock.storage.sqlite.writer import Writer
from interlock.storage.wakeup import NextLook

_READ: Final = load("interlock.storage.sqlite", "read.sql")
_ANY_AGENT_DUE: Final = load("interlock.storage.sqlite", "transition_effects.sql")["any_agent_due"]
PACKAGE: Final = "interlock.storage.sqlite"
READERS: Final = 4
FULL: Final = 2
T = TypeVar("T")


class SQLiteStore(StoreParts, DoctorVerbs, SQLiteJobBlocks):
    """A store in one file. Many processes can open it; each has one writer thread and a few reader threads."""

    def __init__(self, path: str, *, clock: Callable[[], int] = wall_clock) -> None:
        self.path = path
        self._clock = clock
        self._keys: dict[str, EligibilityKeys] = {}
        self._notifier = Notifier(path)
        self._events_added = Topic(self._notifier, EVENTS)
        self.expired = ExpiredCounts()
        super().__init__(SQLiteDatabase(self._write, self._read, transition, clock, self._notifier.ring), by_seq)
        prepare_file(path)
        self._writer = Writer(self._connect, path)
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS, "interlock-reader")
        self._open_readers: list[Connection] = []

    @classmethod
    async def open(cls, path: str, *, clock: Callable[[], int] = wall_clock, migrate: bool = True) -> SQLiteStore:
        """Open the file and migrate it; with `migrate=False`, raise if migrations are missing."""
        store = await asyncio.to_thread(cls, path, clock=clock)
        try:
            missing = await store._read(_missing)  # a file that was promoted can still be read
            if missing and migrate:
                await store.migrate()
            elif missing:
                raise SchemaMismatch(f"{path} lacks migration {missing[0]}; run interlock migrate")
        except BaseException:
            await store.close()
            raise
        return store

    async def migrate(self) -> list[str]:
        """Apply missing migrations in one transaction and return their names."""
        return await self._write(_migrate)

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        results = await self._write(lambda c: enqueue.enqueue(c, self._keys_of(tenant), tenant, jobs, whole, terms))
        self._notifier.ring(tenant)
        return results

    async def enqueue_within(
        self, connection: object, tenant: str, jobs: Sequence[NewJob], *, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        raise Invalid("a job can be enqueued inside a transaction of yours on PostgreSQL only")

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        expired, next_look = ExpiredCounts(), NextLook()

        def lease(c: Connection, *, careful: bool = False) -> list[Job]:
            return claim.claim(c, self._keys_of(tenant), tenant, ask, claimants, expired, next_look, careful)

        try:
            leased = await self._write(lease)
        except Exception as error:
            if not of_a_row(error):
                raise
            leased = await self._write(partial(lease, careful=True))
        self.expired += expired
        self._notifier.ring_in(tenant, next_look)
        return leased

    async def heartbeat(self, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        answers = await self._write(lambda c: heartbeat(c, tenant, heartbeats))
        if any(heartbeat.events for heartbeat in heartbeats):
            self._events_added.fire()
        return answers

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
        return await self._write(lambda c: checkpoint(c, tenant, checkpoints))

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        try:
            results = await self._write(lambda c: transition.carry_out(c, tenant, orders, self._keys_of(tenant)))
        except Exception as error:
            if not of_a_row(error):
                raise
            results = await self._write(lambda c: transition.carry_out_apart(c, tenant, orders, self._keys_of(tenant)))
        self._notifier.ring(tenant)
        if any(isinstance(order, STOPS) for order in orders):
            self._notifier.ring(cancels_of(tenant))
        return results

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        return await self._write(lambda c: progress.save_steps(c, tenant, steps))

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        answers = await self._write(lambda c: progress.add_events(c, tenant, reports))
        self._events_added.fire()
        return answers

    def watch_events(self) -> asyncio.Event:
        return self._events_added.event()

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        return await self._write(lambda c: prune.prune(c, tenant, order))

    async def extend_history(self) -> int:
        return 0

    async def leave_history(self, cutoff: int) -> int:
        return 0

    async def drop_history(self, cutoff: int) -> int:
        return 0

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]:
        def read(c: Connection) -> list[Job | None]:
            rows = c.rows(_READ["jobs"], {"tenant": tenant, "ids": json.dumps(job_ids)})
            jobs = {job.id: job for job in map(to_job, rows)}
            if any(job.status not in TERMINAL for job in jobs.values()):
                c.refuse_if_promoted()  # it goes on elsewhere, and nobody would see it end here
            return [jobs.get(id) for id in job_ids]

        return await self.read_settled(tenant, read)

    async def find(self, tenant: str, filter: Filter) -> list[Job]:
        return await self.read_settled(tenant, lambda c: list_jobs.find(c, tenant, filter))

    async def due_leases(self, limit: int) -> list[Due]:
        return await self._due("due_leases", limit)

    async def due_deadlines(self, limit: int) -> list[Due]:
        return await self._due("due_deadlines", limit)

    async def _due(self, statement: str, limit: int) -> list[Due]:
        def read(c: Connection) -> list[Due]:
            c.refuse_if_promoted()  # an idle server asks only this
            return [Due._make(row) for row in c.rows(_READ[statement], {"now": c.read_clock(), "limit": limit})]

        return await self._read(read)

    async def forget_claims(self, older_than_seconds: float, limit: int) -> int:
        return await self._write(lambda c: claim.forget_claims(c, round(older_than_seconds * SECOND), limit))

    async def now(self) -> int:
        return self._clock()

    async def raise_epoch(self, above: int) -> int:
        def write(c: Connection) -> int:
            ((value,),) = c.rows(_READ["raise_epoch"], {"above": above})
            return int(value)

        return await self._write(write)

    def watch(self, tenant: str) -> asyncio.Event:
        return self._notifier.event(tenant)

    async def new_job_shard(self, tenant: str, type: str | None = None) -> int:
        return 0

    async def unreachable(self) -> dict[str, str]:
        await self.now()
        return {}

    async def facts(self) -> dict[str, str]:
        def read(c: Connection) -> dict[str, str]:
            return {
                "engine": f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
                "file": self.path,
                **({} if self.path == MEMORY else {"permissions": permissions(self.path)}),
                "journal_mode": str(c.db.pragma("journal_mode")),
                "synchronous": {0: "off", 1: "normal", 2: "full", 3: "extra"}[int(str(c.db.pragma("synchronous")))],
                "integrity": str(c.db.pragma("quick_check")),
                "schema": _applied(c)[-1] if _applied(c) else "none",
            }

        return await self._read(read)

    async def fitness(self) -> Fitness:
        def read(c: Connection) -> Fitness:
            self._writer.refuse_lost_file()
            durable = self.path != MEMORY and int(str(c.db.pragma("synchronous"))) >= FULL
            return Fitness(lacking(PACKAGE, _checksums(c).keys()), durable)

        found = await self._read(read)
        await self._write(_touch)
        return found

    async def close(self) -> None:
        await self._notifier.close()
        await self._writer.close()
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._open_readers:
            connection.close()
        self._open_readers.clear()

    async def read_settled(self, tenant: str, query: Callable[[Connection], T]) -> T:
        """Assign free concurrency slots to due jobs, then run the query, so that it sees current slots."""

        def read(c: Connection) -> tuple[bool, T | None]:
            ((due,),) = c.rows(_ANY_AGENT_DUE, {"tenant": tenant, "now": c.read_clock()})
            return (True, None) if due and not c.is_promoted else (False, query(c))

        due, answer = await self._read(read)
        if due:
            await self._write(lambda c: transition_effects.fill_slots(c, tenant))
            return await self._read(query)
        return answer  # type: ignore[return-value]

    def _keys_of(self, tenant: str) -> EligibilityKeys:
        return self._keys.setdefault(tenant, EligibilityKeys(tenant))

    async def _write(self, verb: Callable[[Connection], T]) -> T:
        return await self._writer.run(verb)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        if self.path == MEMORY:
            return await self._writer.run(query)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_here, query)

    def _read_here(self, query: Callable[[Connection], T]) -> T:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = Connection(self.path, clock=self._clock, readonly=True)
            self._open_readers.append(connection)
        try:
            return query(connection)
        except apsw.Error as error:
            meaning = explain(error, self.path)
            if isinstance(meaning, StorageBroken):
                self._writer.stop(meaning)
            raise meaning from error

    def _connect(self) -> Connection:
        return Connection(self.path, clock=self._clock)


_LADDER: Final = """
CREATE TABLE IF NOT EXISTS schema_migration (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL)
"""


def _applied(connection: Connection) -> list[str]:
    if not connection.rows("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migration'"):
        return []
    return [str(name) for (name,) in connection.rows("SELECT name FROM schema_migration ORDER BY number")]


def _missing(connection: Connection) -> list[str]:
    return [m.name for m in pending(migrations(PACKAGE), _checksums(connection))]


def _checksums(connection: Connection) -> dict[int, str]:
    if not _applied(connection):
        return {}
    return dict(connection.rows("SELECT number, checksum FROM schema_migration"))


def _migrate(connection: Connection) -> list[str]:
    db = connection.db
    if not _applied(connection) and connection.rows("SELECT 1 FROM sqlite_schema WHERE name = 'job'"):
        raise SchemaMismatch("the file belongs to another application with a table job: name another file")
    db.execute(_LADDER)
    todo = pending(migrations(PACKAGE), _checksums(connection))
    for m in todo:
        db.execute(expand(m.text))
        db.execute("INSERT INTO schema_migration VALUES (?, ?, ?, ?)", (m.number, m.name, m.checksum, connection.now))
    return [m.name for m in todo]


def _touch(connection: Connection) -> None:
    """Rewrite an unchanged value, which fails like any write if the disk is full or read-only."""
    connection.db.pragma("user_version", int(str(connection.db.pragma("user_version"))))
