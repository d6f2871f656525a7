"""A crash at every statement and every commit of every verb, then recovery.

SQLite: a layer below it records what a verb writes, in order, and a hook records each statement. Each prefix of that
record is what a killed process leaves; it is opened as a restarted process does. PostgreSQL: a proxy numbers what the
process sends. The connection breaks before the server gets a message, and after it answered but before the process
hears it; the process is gone then, and another one goes on.

The promise: a verb took effect as a whole or not at all; what was answered took effect; the verb can be repeated, and
then it took effect once. Every history replays, and everything that is counted is counted right.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import apsw
import asyncpg

from campaign.power_loss import Entry, RecordingDisk, Truncate, Write, _apply
from campaign.results import Outcome, Plan, Stopwatch
from campaign.stores import scratch_parent
from campaign.verbs import ONCE, VERBS, Act, Verb
from interlock.domain.job import Filter
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import TenantQueue
from tests.support.eventually import eventually
from tests.support.invariants import check_history, check_postgres, check_sqlite
from tests.support.postgres import Postgres, postgres
from tests.support.stores import APP_LOGIN, START, ManualClock, fresh_database, make_template, migrated_file, opened

TENANT: Final = "default"
LISTS: Final = {"eligibility_key", "tenant"}  # PostgreSQL registers these names before the call that uses them
BATCHES: Final = (1, 1, 2, 5)


class Shape(NamedTuple):
    """How many rows of a tenant each table has, and how far each of its jobs is."""

    rows: tuple[tuple[str, int], ...]
    jobs: tuple[tuple[Any, ...], ...]


def judge(found: Shape, before: Shape, after: Shape, *, answered: bool) -> str | None:
    """Return what is wrong with the state that a crash left, or None."""
    if found == after:
        return None
    if answered:
        return f"it was answered and is not there: {_difference(found, after)}"
    return None if found == before else f"a part of it is there: {_difference(found, before)}"


def _difference(found: Shape, expected: Shape) -> str:
    rows = [
        f"{table}: {number}, not {dict(expected.rows)[table]}" for table, number in set(found.rows) - set(expected.rows)
    ]
    return ", ".join(sorted(rows)) or f"jobs {found.jobs}, not {expected.jobs}"


async def check_jobs(queue: TenantQueue) -> None:
    """Every job and its history can be read, fit together, and are covered by the chain."""
    for job in await queue.store.find(queue.tenant, Filter(limit=1000)):
        check_history(await queue.job(job.id), await queue.history(job.id))
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is None, f"history: {verdict.first_bad}"


async def recover(name: str, act: Act, queue: TenantQueue, found: Shape, after: Shape) -> None:
    """Check what the crash left, and repeat the call as its caller does."""
    await check_jobs(queue)
    if found != after or name not in ONCE:
        await act(queue)


class Statement(NamedTuple):
    text: str


class Tracer:
    """Records the statements of each SQLite connection that is opened from now on."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log
        apsw.connection_hooks.append(self._watch)

    def _watch(self, opened: apsw.Connection) -> None:
        opened.exec_trace = self._note

    def _note(self, cursor: object, text: str, bindings: object) -> bool:
        self._log.append(Statement(text))
        return True

    def close(self) -> None:
        apsw.connection_hooks.remove(self._watch)


def shape_of_file(path: Path) -> Shape:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        tables = db.execute(
            "SELECT m.name FROM sqlite_schema m, pragma_table_info(m.name) c"
            " WHERE m.type = 'table' AND c.name = 'tenant' ORDER BY 1"
        ).fetchall()
        rows = [
            (name, db.execute(f'SELECT count(*) FROM "{name}" WHERE tenant = ?', (TENANT,)).get) for (name,) in tables
        ]
        jobs = db.execute("SELECT status, version, fence, attempt FROM job WHERE tenant = ? ORDER BY seq", (TENANT,))
        return Shape(tuple(sorted(rows)), tuple(jobs.fetchall()))  # type: ignore[arg-type] # counts
    finally:
        db.close()


class Recorded(NamedTuple):
    """The files before a verb, what it did to them, and what is true before and after it."""

    files: dict[str, bytearray]
    log: Sequence[Entry | Statement]
    act: Act
    before: Shape
    after: Shape


async def record(disk: RecordingDisk, verb: Verb, many: int, path: Path, clock: ManualClock) -> Recorded:
    """Run a verb on a file and record it."""
    await asyncio.to_thread(migrated_file, path)
    async with opened(SQLiteStore.open(str(path), clock=clock)) as store:
        queue = TenantQueue(store, TENANT, clock)
        act = await verb(queue, many)
        before = shape_of_file(path)
        files = {file.name: bytearray(file.read_bytes()) for file in path.parent.iterdir() if _is_data(file)}
        disk.log.clear()
        await act(queue)
        log = list(disk.log)
    return Recorded(files, log, act, before, shape_of_file(path))


def _is_data(file: Path) -> bool:
    return file.is_file() and not file.name.endswith("-shm")


async def crash_file(name: str, made: Recorded, path: Path, clock: ManualClock, *, answered: bool) -> None:
    """Open what a killed process left, check it, and repeat the verb."""
    found = shape_of_file(path)
    if (fault := judge(found, made.before, made.after, answered=answered)) is not None:
        raise AssertionError(fault)
    async with opened(SQLiteStore.open(str(path), clock=clock)) as store:
        await recover(name, made.act, TenantQueue(store, TENANT, clock), found, made.after)
    if (last := shape_of_file(path)) != made.after:
        raise AssertionError(f"after it was repeated: {_difference(last, made.after)}")
    check_sqlite(path, TENANT, integrity=True)


def sweep_file(disk: RecordingDisk, name: str, verb: Verb, many: int, outcome: Outcome, watch: Stopwatch) -> int:
    """Crash a verb on SQLite everywhere; returns how many different files there were to open."""
    images = 0
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
        clock = ManualClock(START)
        (Path(scratch) / "first").mkdir()
        made = asyncio.run(record(disk, verb, many, Path(scratch) / "first" / "queue.db", clock))
        is_new = True
        for point in range(len(made.log) + 1):
            if watch.is_over:
                break
            answered = point == len(made.log)
            if is_new or answered:  # else it has the bytes of the last point
                images += 1
                path = Path(scratch) / str(point) / "queue.db"
                path.parent.mkdir()
                for file, data in made.files.items():
                    (path.parent / file).write_bytes(data)
                try:
                    asyncio.run(crash_file(name, made, path, ManualClock(clock.now), answered=answered))
                except Exception as error:
                    outcome.violations.append(
                        f"sqlite, {name} of {many}, point {point}: {type(error).__name__}: {error}"
                    )
            outcome.done += 1
            if not answered:
                entry = made.log[point]
                is_new = isinstance(entry, Write | Truncate)
                if isinstance(entry, Write | Truncate):
                    _apply(made.files, entry)
    return images


class Wire:
    """A proxy in front of PostgreSQL that breaks at one point: messages are numbered from 0 once it is armed.

    Point 2n is before the server gets message n, point 2n + 1 after the server answered it.
    """

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._point: int | None = None
        self._sent = 0
        self._is_deaf = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.ports: list[int] = []
        self.broken = asyncio.Event()

    @property
    def dsn(self) -> str:
        login = self._parts.netloc.rpartition("@")[0]
        return self._parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    def arm(self, point: int) -> None:
        self._point = point

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self.broken.is_set():
                back, there = await asyncio.open_connection(self._parts.hostname, self._parts.port)
                self.ports.append(there.get_extra_info("sockname")[1])
                ways = {asyncio.create_task(self._ask(reader, there)), asyncio.create_task(self._answer(back, writer))}
                ways.add(asyncio.create_task(self._break()))
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                there.transport.abort()
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _break(self) -> None:
        await self.broken.wait()

    async def _ask(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            if self._point is not None:
                message, self._is_deaf = self._sent, self._sent * 2 + 1 == self._point
                self._sent += 1
                if message * 2 == self._point:
                    self.broken.set()
                    return
            there.write(data)

    async def _answer(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await back.read(1 << 20):
            if self._is_deaf:
                self.broken.set()
                return
            writer.write(data)

    async def close(self) -> None:
        self.broken.set()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def wire(dsn: str) -> AsyncIterator[Wire]:
    line = Wire(dsn)
    server = await asyncio.start_server(line.connected, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        server.close()
        await line.close()
        await server.wait_closed()


class Database:
    """A PostgreSQL database in which each crash has a tenant of its own."""

    def __init__(self, dsn: str, store: PostgresStore, admin: asyncpg.Connection[Any], clock: ManualClock) -> None:
        self._dsn, self._store, self._admin, self._clock = dsn, store, admin, clock
        self._numbers = itertools.count(1)
        self._tables: list[str] = []

    async def shape(self, tenant: str) -> Shape:
        if not self._tables:
            found = await self._admin.fetch(
                "select c.oid::regclass::text from pg_class c"
                " join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'"
                " where c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition"
            )
            self._tables = sorted(row[0] for row in found if row[0].removeprefix("interlock.") not in LISTS)
        counts = ", ".join(f"(select count(*) from {table} where tenant = $1)" for table in self._tables)
        (numbers,) = await self._admin.fetch(f"select {counts}", tenant)
        jobs = await self._admin.fetch(
            "select status::text, version, fence, attempt from interlock.job where tenant = $1 order by seq", tenant
        )
        return Shape(tuple(zip(self._tables, numbers, strict=True)), tuple(tuple(job) for job in jobs))

    async def undisturbed(self, verb: Verb, many: int) -> Shape:
        """Run a verb without a crash and return the shape of its tenant."""
        queue = self._queue()
        await (await verb(queue, many))(queue)
        return await self.shape(queue.tenant)

    def _queue(self) -> TenantQueue:
        return TenantQueue(self._store, f"crash-{next(self._numbers)}", self._clock)

    async def crash(self, name: str, verb: Verb, many: int, point: int, after: Shape) -> bool:
        """Crash a verb at one point, check what is left, and repeat it; whether it has such a point."""
        queue = self._queue()
        act = await verb(queue, many)
        before = await self.shape(queue.tenant)
        async with wire(self._dsn) as line:
            async with opened(PostgresStore.open(line.dsn, size=1, clock=queue.clock)) as doomed:
                line.arm(point)
                call = asyncio.ensure_future(act(TenantQueue(doomed, queue.tenant, queue.clock)))
                broken = asyncio.create_task(line.broken.wait())
                await asyncio.wait((call, broken), return_when=asyncio.FIRST_COMPLETED)
                answered = call.done() and not line.broken.is_set()
                line.broken.set()
                broken.cancel()
                while not call.done():  # a call that is about to try again meets the next cancellation
                    call.cancel()
                    await asyncio.sleep(0.01)
                await asyncio.gather(call, broken, return_exceptions=True)
                if answered:
                    call.result()
            await self._wait_until_gone(line.ports)
        found = await self.shape(queue.tenant)
        if (fault := judge(found, before, after, answered=answered)) is not None:
            raise AssertionError(fault)
        await recover(name, act, queue, found, after)
        if (last := await self.shape(queue.tenant)) != after:
            raise AssertionError(f"after it was repeated: {_difference(last, after)}")
        await check_postgres(self._admin, queue.tenant)
        return not answered

    async def _wait_until_gone(self, ports: list[int]) -> None:
        """The server has noticed that these connections are closed, and rolled back what was open."""

        async def gone() -> bool:
            query = "select count(*) from pg_stat_activity where client_port = any($1)"
            return not await self._admin.fetchval(query, ports)

        await eventually(gone)


@asynccontextmanager
async def database(server: Postgres) -> AsyncIterator[Database]:
    async with fresh_database(server) as name:
        dsn, clock = server.dsn(name, user=APP_LOGIN), ManualClock(START)
        admin = await asyncpg.connect(server.dsn(name))
        try:
            async with opened(PostgresStore.open(dsn, size=2, clock=clock)) as store:
                yield Database(dsn, store, admin, clock)
        finally:
            await admin.close()


async def sweep_database(at: Database, name: str, verb: Verb, many: int, outcome: Outcome, watch: Stopwatch) -> None:
    """Crash a verb on PostgreSQL everywhere."""
    after = await at.undisturbed(verb, many)
    for point in itertools.count():
        if watch.is_over:
            break
        outcome.done += 1
        try:
            if not await at.crash(name, verb, many, point, after):
                break
        except Exception as error:
            outcome.violations.append(f"postgres, {name} of {many}, point {point}: {type(error).__name__}: {error}")
            if point > 100:
                break


def run_on(server: Postgres, plan: Plan, verbs: dict[str, Verb] = VERBS) -> Outcome:
    """Sweep all verbs on both engines, again and again with other sizes of their batches."""
    outcome = Outcome("crash sweep", "crashes", plan.seed, plan.size)
    watch, dice = Stopwatch(plan, outcome), random.Random(plan.seed)
    crashes, images, passes = {"sqlite": 0, "postgres": 0}, 0, 0

    async def databases(many: dict[str, int]) -> None:
        async with database(server) as at:
            for name, verb in verbs.items():
                await sweep_database(at, name, verb, many[name], outcome, watch)

    disk = RecordingDisk()
    tracer = Tracer(disk.log)
    try:
        while not watch.is_over and len(outcome.violations) < 20:
            many = {name: dice.choice(BATCHES) for name in verbs}
            passes += 1
            done = outcome.done
            for name, verb in verbs.items():
                images += sweep_file(disk, name, verb, many[name], outcome, watch)
            crashes["sqlite"] += outcome.done - done
            done = outcome.done
            asyncio.run(databases(many))
            crashes["postgres"] += outcome.done - done
    finally:
        tracer.close()
        disk.unregister()
    outcome.numbers |= {"verbs": len(verbs), "passes": passes, "crashes": crashes, "different SQLite files": images}
    return outcome


def run(plan: Plan) -> Outcome:
    with postgres() as server:
        asyncio.run(make_template(server))
        return run_on(server, plan)
