"""`python -m bench.profile sqlite|postgres`: where the time of a job goes, statement by statement."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import apsw
import asyncpg
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bench.plan import ENGINES
from bench.workload import TENANT, TYPES, new_jobs
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.errors import Error
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sql_files import load
from interlock.storage.sqlite.store import SQLiteStore
from interlock.storage.sqlite.writer import Writer
from tests.support.postgres import PostgresFailed, PostgresMissing, PostgresServer
from tests.support.stores import APP_LOGIN, fresh_database, make_template

SERVER = {
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "pg_stat_statements.track_planning": "on",
    "track_wal_io_timing": "on",
}
WORKER = "worker-0"
MAX_LENGTH = 110


class Spent(NamedTuple):
    """What one statement took in one phase."""

    what: str
    calls: int
    micros: float
    note: str = ""


class Phase(NamedTuple):
    """One verb over all jobs, as its caller saw it."""

    name: str
    seconds: float
    jobs: int


async def phases(store: Store, jobs: int, batch: int) -> AsyncIterator[Phase]:
    """Enqueue all, claim all, complete all; each phase ends with a pause in which the caller reads its meters."""
    new = new_jobs(jobs)
    began = time.perf_counter()
    for i in range(0, jobs, batch):
        await store.enqueue(TENANT, new[i : i + batch])
    yield Phase("enqueue", time.perf_counter() - began, jobs)
    ask = ClaimFilter(WORKER, types=frozenset(TYPES), limit=batch, lease_seconds=3600)
    claimed: list[list[Job]] = []
    began = time.perf_counter()
    while leased := await store.claim(TENANT, ask):
        claimed.append(leased)
    yield Phase("claim", time.perf_counter() - began, jobs)
    orders = [[CompleteJob(job.id, job.fence, WORKER) for job in some] for some in claimed]
    began = time.perf_counter()
    for some in orders:
        await store.carry_out(TENANT, some)
    yield Phase("complete", time.perf_counter() - began, jobs)


async def warm_up(store: Store) -> None:
    async for _ in phases(store, 100, 10):
        pass


def show(console: Console, phase: Phase, spent: Sequence[Spent], rest: str) -> None:
    """A table of the phase, the dearest first; `rest` names what no statement accounts for."""
    total = phase.seconds * 1e6
    title = f"{phase.name}: {total / phase.jobs:.1f} µs per job ({phase.jobs / phase.seconds:,.0f} jobs/s)"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("µs/job", "share", "calls"):
        table.add_column(heading, justify="right")
    table.add_column("statement", no_wrap=True)
    table.add_column("", no_wrap=True)
    counted = sum(one.micros for one in spent if not one.what.startswith("  "))
    for one in [*spent, Spent(rest, 0, total - counted)]:
        if one.micros >= total * 0.002:
            share, calls = f"{one.micros / total:.0%}", f"{one.calls:,}" if one.calls else ""
            table.add_row(f"{one.micros / phase.jobs:.2f}", share, calls, one.what, one.note)
    console.print(table, highlight=False, markup=False)


class Meter:
    """Time spent inside SQLite by statement, binding and fetching included."""

    def __init__(self) -> None:
        self.nanos: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)

    def take(self) -> list[Spent]:
        """What has been spent since the last time, the dearest first."""
        names = {
            text: f"{file}: {name}"
            for file in (
                "enqueue.sql",
                "claim.sql",
                "transition.sql",
                "transition_effects.sql",
                "read.sql",
            )
            for name, text in load("interlock.storage.sqlite", file).items()
        }
        named: dict[str, Spent] = {}
        for sql, nanos in self.nanos.items():
            # the same statement for one row, for many, and for a range of places
            name = next(
                (name for text, name in names.items() if sql.startswith(text.split("WHERE")[0])), _one_line(sql)
            )
            one = named.get(name, Spent(name, 0, 0.0))
            named[name] = one._replace(calls=one.calls + self.calls[sql], micros=one.micros + nanos / 1000)
        self.nanos.clear()
        self.calls.clear()
        return sorted(named.values(), key=lambda one: -one.micros)

    @contextmanager
    def connections(self) -> Iterator[None]:
        """Every connection opened in the block is metered as long as it lives."""
        meter = self

        class Cursor(apsw.Cursor):
            _sql = ""
            _whole = False

            def execute(self, statements: str, *values: Any, **options: Any) -> apsw.Cursor:
                began = time.perf_counter_ns()
                self._sql = statements
                try:
                    return super().execute(statements, *values, **options)
                finally:
                    meter.nanos[statements] += time.perf_counter_ns() - began
                    meter.calls[statements] += 1

            def executemany(self, statements: str, *values: Any, **options: Any) -> apsw.Cursor:
                began = time.perf_counter_ns()
                self._sql = statements
                try:
                    return super().executemany(statements, *values, **options)
                finally:
                    meter.nanos[statements] += time.perf_counter_ns() - began
                    meter.calls[statements] += 1

            def fetchall(self) -> list[Any]:
                began = time.perf_counter_ns()
                self._whole = True
                try:
                    return super().fetchall()
                finally:
                    meter.nanos[self._sql] += time.perf_counter_ns() - began

            def __iter__(self) -> Any:
                """Rows that are read one by one are metered so; reading all at once takes as long as unmetered."""
                return super().__iter__() if self._whole else self._one_by_one()

            def _one_by_one(self) -> Iterator[Any]:
                rows = super().__iter__()
                while True:
                    began = time.perf_counter_ns()
                    try:
                        row = next(rows, None)
                    finally:
                        meter.nanos[self._sql] += time.perf_counter_ns() - began
                    if row is None:
                        return
                    yield row

        class Connection(apsw.Connection):
            def __init__(self, *values: Any, **options: Any) -> None:
                super().__init__(*values, **options)
                self.cursor_factory = Cursor

        with mock.patch.object(apsw, "Connection", Connection):
            yield


async def sqlite(console: Console, jobs: int, batch: int) -> None:
    meter = Meter()
    with TemporaryDirectory(prefix="interlock-profile-") as directory, meter.connections():
        store = await SQLiteStore.open(str(Path(directory) / "profile.db"))
        try:
            await warm_up(store)
            meter.take()
            async for phase in phases(store, jobs, batch):
                show(
                    console, phase, meter.take(), "everything else: Python, and the way to the writer's thread and back"
                )
        finally:
            await store.close()


async def python_of_sqlite(console: Console, jobs: int, batch: int) -> None:
    """The functions of the writer's thread by their own time; profiling slows Python down, so look at proportions."""
    profile = cProfile.Profile()
    run = Writer._run

    def profiled(writer: Writer) -> None:
        profile.enable()
        try:
            run(writer)
        finally:
            profile.disable()

    with TemporaryDirectory(prefix="interlock-profile-") as directory, mock.patch.object(Writer, "_run", profiled):
        store = await SQLiteStore.open(str(Path(directory) / "profile.db"))
        async for _ in phases(store, jobs, batch):
            pass
        await store.close()
    stats = pstats.Stats(profile, stream=console.file)
    stats.strip_dirs().sort_stats("tottime").print_stats(25)


STATEMENTS = """
    select toplevel, calls, total_exec_time + total_plan_time as millis, rows, wal_bytes, query
    from pg_stat_statements s join pg_database d on d.oid = s.dbid
    where d.datname = $1 order by toplevel desc, millis desc"""
# What PostgreSQL waits for when it makes the log durable; the view that tells it moved in version 18.
SYNCED = {
    True: "select sum(fsyncs), sum(fsync_time + write_time) from pg_stat_io where object = 'wal'",
    False: "select wal_sync, wal_sync_time + wal_write_time from pg_stat_wal",
}


async def postgres(console: Console, jobs: int, batch: int, *, analyze: bool) -> None:
    with PostgresServer(settings=SERVER) as server:
        await make_template(server)
        admin = await asyncpg.connect(server.dsn())
        await admin.execute("create extension pg_stat_statements")
        try:
            async with fresh_database(server) as name, _store(server.dsn(name, user=APP_LOGIN)) as store:
                await warm_up(store)
                await _reset(admin)
                async for phase in phases(store, jobs, batch):
                    rest = "everything else: the client, the way there and back, and the commit"
                    await store._fetch("select pg_stat_force_next_flush()")
                    show(console, phase, await _spent(admin, name, jobs), rest)
                    if analyze and phase.name == "enqueue":
                        await _analyze(server.dsn(name))
                    await _reset(admin)
        finally:
            await admin.close()


@asynccontextmanager
async def _store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(dsn, size=1)
    try:
        yield store
    finally:
        await store.close()


async def _analyze(dsn: str) -> None:
    owner = await asyncpg.connect(dsn)
    try:
        await owner.execute("vacuum analyze")
    finally:
        await owner.close()


async def _reset(admin: asyncpg.Connection[asyncpg.Record]) -> None:
    await admin.execute("select pg_stat_statements_reset(), pg_stat_reset_shared('wal'), pg_stat_reset_shared('io')")


async def _spent(admin: asyncpg.Connection[asyncpg.Record], database: str, jobs: int) -> list[Spent]:
    """Calls from outside first; what ran inside them, triggers included, is indented and part of their time."""
    spent = []
    for toplevel, calls, millis, rows, wal, query in await admin.fetch(STATEMENTS, database):
        note = f"{rows / jobs:.2f} rows, {float(wal) / jobs:,.0f} bytes of log per job"
        spent.append(Spent(("" if toplevel else "  ") + _one_line(query), calls, millis * 1000, note))
    newer = admin.get_server_version().major >= 18
    row = await admin.fetchrow(SYNCED[newer])
    if row is not None and row[0]:
        spent.append(Spent("  (in the rest) writing and syncing the log", int(row[0]), float(row[1]) * 1000))
    return spent


def _one_line(sql: str) -> str:
    return " ".join(sql.split())[:MAX_LENGTH]


def main(arguments: Sequence[str]) -> int:
    top = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    top.add_argument("engine", choices=ENGINES)
    top.add_argument("--jobs", type=int, default=20_000, metavar="N", help="how many jobs (default: 20000)")
    top.add_argument("--batch", type=int, default=100, metavar="N", help="jobs at once (default: 100)")
    top.add_argument(
        "--python", action="store_true", help="SQLite: the Python functions of the writer's thread by their own time"
    )
    top.add_argument(
        "--cold", action="store_true", help="PostgreSQL: no VACUUM ANALYZE, so plans are those made for empty tables"
    )
    options = top.parse_args(arguments)
    if options.python and options.engine != "sqlite":
        top.error("--python is for SQLite: on PostgreSQL the work is done in the server")
    console = Console(width=None if sys.stdout.isatty() else 190)
    if options.engine == "postgres":
        work = postgres(console, options.jobs, options.batch, analyze=not options.cold)
    else:
        work = (python_of_sqlite if options.python else sqlite)(console, options.jobs, options.batch)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except (Error, PostgresMissing, PostgresFailed, asyncpg.PostgresError) as error:
        console.print(f"bench.profile: {error}", style="red", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
