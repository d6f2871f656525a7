"""Acknowledged work under faults: servers, clients and the database are killed, stopped and cut off under load.

Each client logs what was acknowledged to it (`campaign/load.py`). Afterwards the logs are compared with the database.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import apsw
import asyncpg

from campaign.load import NARROW, payload_of, result_of
from campaign.results import Outcome, Plan, Stopwatch
from interlock.domain.approval import ApprovalFilter, ApprovalStatus
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.limits import Limit
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.api.toxic_proxy import Toxic, ToxicProxy, toxic_proxy
from tests.support.children import Child, own
from tests.support.invariants import check_history, check_postgres, check_sqlite
from tests.support.postgres import PostgresServer, free_port
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template, migrated_file

ROOT: Final = Path(__file__).resolve().parent.parent
TENANT: Final = "default"
CLIENTS: Final = 3
SERVERS: Final = {"sqlite": 1, "postgres": 2}  # one process serves a file
STUCK_SECONDS: Final = 120.0
BUSY_MILLISECONDS: Final = 60_000
PAUSE_SECONDS: Final = 0.6  # between faults, at most
FULL_SECONDS: Final = 2.0  # how long a disk is full, at most
DISK_BYTES: Final = 32 << 30  # of the file system of PostgreSQL: a bound, not what it takes
JUMP_SECONDS: Final = 20.0  # of a clock, at most, in either direction
ROOM: Final = 5  # of the limit that some jobs name
HISTORIES_EVERY: Final = 20  # the history of one job in so many is replayed; audit verifies all
OPEN: Final = tuple(status for status in Status if status not in TERMINAL)
EXPECTED_REFUSALS: Final = {"already_decided", "already_finished", "lease_lost"}


@dataclass
class Book:
    """What was acknowledged, and what may have happened besides."""

    tried: set[str] = field(default_factory=set)
    ids: dict[str, str] = field(default_factory=dict)  # by idempotency key
    keys: dict[str, str] = field(default_factory=dict)  # by ID
    leases: dict[tuple[str, int], str] = field(default_factory=dict)
    succeeded: dict[str, int] = field(default_factory=dict)  # the fence of the run, by ID
    decided: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Add a line of a log."""
        kind, *facts = json.loads(line)
        self.counts[kind] += 1
        match kind:
            case "try":
                self.tried.update(facts[0])
            case "enqueued":
                for key, id in facts[0]:
                    self._once(self.ids, key, id, "one idempotency key got two jobs")
                    self._once(self.keys, id, key, "one job was acknowledged under two idempotency keys")
            case "claimed":
                for id, fence in facts[1]:
                    self._once(self.leases, (id, fence), facts[0], "one lease was granted twice")
            case "finished":
                for id, fence, status in facts[0]:
                    if status == "succeeded":
                        self._once(self.succeeded, id, fence, "one job was completed twice")
            case "decided":
                self._once(self.decided, facts[0], facts[1], "one approval was decided twice")
            case "refused":
                self.refused[facts[0]] += 1
                if facts[0] not in EXPECTED_REFUSALS:
                    self.violations.append(f"a legal call was rejected with {facts[0]}")

    def _once(self, known: dict[Any, Any], name: Any, value: Any, fault: str) -> None:
        if known.setdefault(name, value) != value:
            self.violations.append(f"{fault}: {name}, {known[name]} and {value}")

    def check(self, job: Job, seen: set[str]) -> None:
        """Compare one job of the database with the logs."""
        key = job.idempotency_key or ""
        if key not in self.tried:
            self.violations.append(f"job {job.id} was never enqueued")
        if self.ids.get(key, job.id) != job.id or key in seen:
            self.violations.append(f"idempotency key {key} has two jobs: {job.id} and {self.ids.get(key)}")
        seen.add(key)
        if json.loads(job.payload or "null") != payload_of(key):
            self.violations.append(f"job {job.id} has another payload")
        if job.status is not Status.SUCCEEDED:
            self.violations.append(f"job {job.id} ended as {job.status}, expected succeeded")
        elif json.loads(job.result or "null") != result_of(job.id, job.fence):
            self.violations.append(f"job {job.id} has another result: {job.result}")
        if self.succeeded.get(job.id, job.fence) != job.fence:
            self.violations.append(f"job {job.id}: the acknowledged completion was replaced")

    def check_missing(self, seen: set[str]) -> None:
        lost = self.ids.keys() - seen
        self.violations += [f"acknowledged and lost: {self.ids[key]}" for key in sorted(lost)[:20]]

    def check_decisions(self, statuses: dict[str, ApprovalStatus]) -> None:
        said = {ApprovalStatus.APPROVED: "approve", ApprovalStatus.DENIED: "deny"}
        for id, decision in self.decided.items():
            if said.get(statuses.get(id, ApprovalStatus.VOID)) != decision:
                self.violations.append(f"approval {id}: {decision} was acknowledged, it is {statuses.get(id)}")


class Logs:
    """The logs of all clients, read as they grow."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._offsets: dict[Path, int] = {}

    def add(self, path: Path) -> None:
        self._offsets[path] = 0

    def read_more(self) -> None:
        for path, offset in self._offsets.items():
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._offsets[path] = offset + len(whole)
                for line in whole.decode().splitlines():
                    self._book.read(line)


# One statement sees one moment.
_NARROW: Final = {
    "sqlite": """
        SELECT count(*) FROM job j JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
        WHERE j.status = 'running' AND b.limits IS NOT NULL""",
    "postgres": "select count(*) from interlock.job where status = 'running' and limits is not null",
}
_CLOCK: Final = """
create or replace function interlock.clock() returns timestamptz language sql stable parallel safe
return coalesce(nullif(current_setting('interlock.clock', true), '')::timestamptz, now() + interval '{} seconds')
"""


async def set_limit(store: Store) -> None:
    """Create the limit that some jobs name."""
    await store.limits.set(TENANT, Limit(NARROW, concurrency=ROOM), actor="user:campaign")


class MemoryDisk:
    """A file system in memory whose size can change: it is full when it is as large as what it holds."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __enter__(self) -> MemoryDisk | None:
        """Mount it, where this process may do that."""
        self._place.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self._place], capture_output=True)
        if mounted.returncode:
            return None
        own(self._place)
        self.empty()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self._place], capture_output=True)

    def fill(self) -> None:
        """Leave no room. A file that grows in between makes the call fail, so it is repeated."""
        while not self._resize((found := os.statvfs(self._place)).f_frsize * (found.f_blocks - found.f_bfree)):
            pass

    def empty(self) -> None:
        self._resize(DISK_BYTES)

    def _resize(self, size: int) -> bool:
        done = subprocess.run(["mount", "-o", f"remount,size={size}", self._place], capture_output=True)
        return done.returncode == 0


class Fleet:
    """A database, its servers, and the clients, each behind a connection that can be disturbed."""

    def __init__(
        self,
        engine: str,
        home: Path,
        database: str,
        postgres: PostgresServer | None,
        seed: int,
        *,
        disk: MemoryDisk | None = None,
        rate: float | None = None,
    ) -> None:
        self.disk = disk  # of PostgreSQL, if it can be filled
        self.rate = rate  # jobs per second of each client; None: as many as it can
        self.engine, self.home, self.database, self.postgres = engine, home, database, postgres
        self._control = home / "disturbance.json"
        self._ahead = 0.0
        self._disturb(full=False)
        self.dice = random.Random(seed)
        self.book = Book()
        self.logs = Logs(self.book)
        self.ports = [free_port() for _ in range(SERVERS[engine])]
        self.servers: list[Child] = [self._server(number) for number in range(len(self.ports))]
        self.clients: list[Child] = []
        self.proxies: list[ToxicProxy] = []
        self.faults: Counter[str] = Counter()
        self.narrow = 0  # the most jobs that were seen running under the limit
        self.stopping = False
        self._started = 0

    def _server(self, number: int) -> Child:
        program = ["interlock"] if self.engine == "postgres" else ["campaign.disturbed", str(self._control)]
        command = [sys.executable, "-m", *program, "serve", "--auth", "off", "--host", "127.0.0.1"]
        command += ["--port", str(self.ports[number]), "--database", self.database]
        return Child(command, self.home, self.home / f"server-{number}.log", PYTHONPATH=str(ROOT))

    def _client(self, number: int) -> Child:
        self._started += 1
        name = f"c{self._started}"
        log = self.home / f"{name}.jsonl"
        self.logs.add(log)
        url = f"http://127.0.0.1:{self.proxies[number].port}"
        command = [sys.executable, "-m", "campaign.load", "--url", url, "--log", str(log), "--name", name]
        command += ["--seed", str(self.dice.randrange(1 << 32)), *(["--stopping"] if self.stopping else [])]
        command += [] if self.rate is None else ["--rate", str(self.rate)]
        return Child(command, self.home, self.home / "clients.log", PYTHONPATH=str(ROOT))

    async def start(self, stack: AsyncExitStack) -> None:
        for number in range(CLIENTS):
            port = self.ports[number % len(self.ports)]
            self.proxies.append(await stack.enter_async_context(toxic_proxy(f"http://nobody@127.0.0.1:{port}")))
            self.clients.append(self._client(number))

    async def fault(self) -> None:
        """One fault, chosen by the seed; returns when its cause is over."""
        faults: list[Callable[[], Awaitable[str]]] = [
            self._kill_a_client, self._kill_a_server, self._stop_a_process, self._disturb_a_connection,
            self._move_the_clock,
        ]  # fmt: skip
        if self.postgres is None:
            faults += [self._fill_the_disk]
        else:
            faults += [self._kill_the_database, self._end_backends]
        if self.disk is not None:
            faults += [self._fill_the_disk_of_postgres]
        self.faults[await self.dice.choice(faults)()] += 1

    async def _kill_a_client(self) -> str:
        number = self.dice.randrange(len(self.clients))
        await asyncio.to_thread(self.clients[number].end, signal.SIGKILL)
        self.clients[number] = self._client(number)
        return "client killed"

    async def _kill_a_server(self) -> str:
        number = self.dice.randrange(len(self.servers))
        await asyncio.to_thread(self.servers[number].end, signal.SIGKILL)
        self.servers[number] = self._server(number)
        return "server killed"

    async def _stop_a_process(self) -> str:
        """For longer than a lease, at times: what it holds then belongs to others when it goes on."""
        kind = self.dice.choice(("client", "server"))
        pid = self.dice.choice(self.clients if kind == "client" else self.servers).pid
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self.dice.uniform(0.1, 5.0))
        os.kill(pid, signal.SIGCONT)
        return f"{kind} stopped"

    async def _disturb_a_connection(self) -> str:
        proxy = self.dice.choice(self.proxies)
        toxic = self.dice.choice((Toxic.CUT, Toxic.SLICES, Toxic.REFUSE, Toxic.SILENCE, Toxic.HALF_OPEN))
        proxy.become(toxic)
        await asyncio.sleep(self.dice.uniform(0.1, 1.5))
        proxy.become(Toxic.NONE)
        return f"connection: {toxic.value}"

    async def _kill_the_database(self) -> str:
        assert self.postgres is not None
        await asyncio.to_thread(self.postgres.kill)
        await asyncio.to_thread(self.postgres.start)
        return "database killed"

    async def _end_backends(self) -> str:
        assert self.postgres is not None
        admin = await asyncpg.connect(self.postgres.dsn(TEMPLATE))
        try:
            query = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            pids = [row[0] for row in await admin.fetch(query)]
            for pid in self.dice.sample(pids, min(len(pids), 3)):
                await admin.execute("select pg_terminate_backend($1)", pid)
        finally:
            await admin.close()
        return "connections of the database ended"

    async def _move_the_clock(self) -> str:
        """It stays so until the next jump, unless that is the last."""
        await self.set_clock(round(self.dice.uniform(-JUMP_SECONDS, JUMP_SECONDS), 3))
        return "clock moved"

    async def set_clock(self, ahead: float) -> None:
        """The clock of the file's server, or of the database."""
        self._ahead = ahead
        if self.postgres is None:
            self._disturb(full=False)
            return
        admin = await asyncpg.connect(self.postgres.dsn(TEMPLATE))
        try:
            await admin.execute(_CLOCK.format(ahead))
        finally:
            await admin.close()

    async def _fill_the_disk(self) -> str:
        self._disturb(full=True)
        await asyncio.sleep(self.dice.uniform(0.1, FULL_SECONDS))
        self._disturb(full=False)
        return "disk full"

    async def _fill_the_disk_of_postgres(self) -> str:
        """PostgreSQL may end for it, and does not start again before there is room."""
        assert self.disk is not None
        assert self.postgres is not None
        self.disk.fill()
        await asyncio.sleep(self.dice.uniform(0.1, FULL_SECONDS))
        self.disk.empty()
        while True:  # it recovers now, if it ended its processes
            if self.postgres.has_ended:
                await asyncio.to_thread(self.postgres.kill)
                await asyncio.to_thread(self.postgres.start)
            with suppress(asyncpg.PostgresError, OSError):
                await (await asyncpg.connect(self.postgres.dsn(TEMPLATE))).close()
                return "disk full"
            await asyncio.sleep(0.05)

    def _disturb(self, *, full: bool) -> None:
        """Tell the server of a file."""
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps({"full": full, "ahead": self._ahead}))
        new.replace(self._control)

    async def check_limit(self) -> None:
        """Count the running jobs that name the limit, at this moment."""
        if self.postgres is not None:
            admin = await asyncpg.connect(self.postgres.dsn(TEMPLATE))
            try:
                running = await admin.fetchval(_NARROW[self.engine])
            finally:
                await admin.close()
        elif self.engine == "sqlite":
            running = await asyncio.to_thread(self._running_on_file)
        else:
            return
        self.narrow = max(self.narrow, running)
        if running > ROOM:
            self.book.violations.append(f"{running} jobs run under a limit of {ROOM}")

    def _running_on_file(self) -> int:
        file = apsw.Connection(self.database.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
        file.set_busy_timeout(BUSY_MILLISECONDS)  # a server that was killed leaves a log to recover
        try:
            return int(str(file.execute(_NARROW["sqlite"]).get))
        finally:
            file.close()

    async def gets_on(self) -> bool:
        """Wait until something more is acknowledged; whether it was."""
        before = self.book.counts["enqueued"] + self.book.counts["finished"]
        deadline = time.monotonic() + STUCK_SECONDS
        while self.book.counts["enqueued"] + self.book.counts["finished"] <= before:
            if dead := next((one for one in self.clients if one.ended is not None), None):
                self.book.violations.append(f"a client ended by itself: {dead.wrote.strip()[-500:]}")
                return False
            if time.monotonic() > deadline:
                self.book.violations.append(f"nothing was acknowledged for {STUCK_SECONDS:.0f} s")
                return False
            await asyncio.sleep(0.02)
            self.logs.read_more()
        return True

    async def drain(self, store: Store) -> None:
        """Without faults and without new jobs, every job ends."""
        self.stopping = True
        for client in self.clients:
            os.kill(client.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STUCK_SECONDS
        counted = -1
        while await self._some_open(store):
            self.logs.read_more()
            if self.book.counts["finished"] != counted:
                counted, deadline = self.book.counts["finished"], time.monotonic() + STUCK_SECONDS
            if time.monotonic() > deadline:
                self.book.violations.append("jobs do not end")
                return
            await asyncio.sleep(0.2)

    async def _some_open(self, store: Store) -> bool:
        return bool(await store.find(TENANT, Filter(statuses=OPEN, limit=1)))

    def end(self) -> None:
        for child in (*self.clients, *self.servers):
            if child.ended is None:
                child.end(signal.SIGKILL)
        self.logs.read_more()


async def all_jobs(store: Store) -> AsyncIterator[Sequence[Job]]:
    """Every job with its payload and result, page by page."""
    before = None
    while page := await store.find(TENANT, Filter(before_seq=before, limit=500)):
        before = page[-1].seq
        yield [job for job in await store.get(TENANT, [job.id for job in page]) if job is not None]


async def statuses_of_approvals(store: Store) -> dict[str, ApprovalStatus]:
    found: dict[str, ApprovalStatus] = {}
    before = None
    while page := await store.approvals.find(TENANT, ApprovalFilter(before=before, limit=200)):
        found |= {approval.id: approval.status for approval in page}
        before = (page[-1].opened_at, page[-1].id)
    return found


async def compare(book: Book, store: Store) -> None:
    """Compare the database with what was acknowledged."""
    seen: set[str] = set()
    versions = 0
    async for page in all_jobs(store):
        for job in page:
            book.check(job, seen)
            versions += job.version
            if job.seq % HISTORIES_EVERY == 0:
                try:
                    check_history(job, await store.history(TENANT, job.id))
                except AssertionError as error:
                    book.violations.append(f"history of {job.id}: {error}")
    book.check_missing(seen)
    book.check_decisions(await statuses_of_approvals(store))
    verdict = await store.audit.verify(TENANT)
    if verdict.first_bad is not None or verdict[:2] != (len(seen), versions):
        book.violations.append(f"audit: {verdict}, expected {len(seen)} jobs and {versions} rows")


async def run_on(engine: str, plan: Plan) -> Outcome:
    """Run one engine until as many jobs are acknowledged."""
    outcome = Outcome(f"acknowledged on {engine}", "jobs", plan.seed, plan.size)
    with tempfile.TemporaryDirectory(prefix="interlock-campaign-") as directory:
        home = Path(directory)
        own(home)
        async with AsyncExitStack() as stack:
            postgres: PostgresServer | None = None
            disk: MemoryDisk | None = None
            if engine == "postgres":
                disk = stack.enter_context(MemoryDisk(home / "disk"))
                postgres = stack.enter_context(PostgresServer(parent=home / "disk" if disk else None))
                await make_template(postgres)
                address = postgres.dsn(TEMPLATE, user=APP_LOGIN)
            else:
                file = home / "interlock.db"
                await asyncio.to_thread(migrated_file, file)
                own(file)
                address = f"sqlite:///{file}"
            store = await (SQLiteStore.open(address[10:]) if postgres is None else PostgresStore.open(address, size=4))
            await set_limit(store)
            await store.close()
            fleet = Fleet(engine, home, address, postgres, plan.seed, disk=disk)
            stack.callback(fleet.end)
            await fleet.start(stack)
            book = fleet.book
            watch = Stopwatch(plan, outcome)
            while await fleet.gets_on() and not watch.is_over and not book.violations:
                await fleet.check_limit()
                await fleet.fault()
                await asyncio.sleep(fleet.dice.uniform(0, PAUSE_SECONDS))
                outcome.done = len(book.ids)
            store = await (SQLiteStore.open(address[10:]) if postgres is None else PostgresStore.open(address, size=4))
            stack.push_async_callback(store.close)
            await fleet.set_clock(0.0)
            await fleet.drain(store)
            fleet.end()
            await compare(book, store)
            try:
                if postgres is None:
                    check_sqlite(address[10:], integrity=True)
                else:
                    admin = await asyncpg.connect(postgres.dsn(TEMPLATE))
                    await check_postgres(admin)
                    await admin.close()
            except AssertionError as error:
                book.violations.append(str(error))
            outcome.done = len(book.ids)
            outcome.violations += [f"{engine}: {text}" for text in book.violations[:20]]
            outcome.numbers[engine] = {
                "jobs acknowledged": len(book.ids),
                "faults": dict(fleet.faults) | {"all": fleet.faults.total()},
                "leases": len(book.leases),
                f"most jobs seen running under a limit of {ROOM}": fleet.narrow,
                "completions acknowledged": len(book.succeeded),
                "decisions acknowledged": len(book.decided),
                "calls repeated": book.counts["unknown"],
                "calls refused": dict(book.refused),
            }
    return outcome


def run(plan: Plan) -> Outcome:
    outcome = Outcome("acknowledged", "jobs", plan.seed, plan.size)
    half = Plan(plan.seed, plan.size // 2, plan.seconds / 2, plan.say)
    for engine in SERVERS:
        one = asyncio.run(run_on(engine, half))
        outcome.done += one.done
        outcome.seconds += one.seconds
        outcome.numbers |= one.numbers
        outcome.violations += one.violations
    return outcome
