"""Steady load for hours: memory, open files, sizes and latencies are sampled, and must stay flat.

The load is that of the part `acknowledged`, at a fixed rate and without faults; the same checks follow at the end.
What grows with the number of jobs (tables and indexes) is divided by it. The second quarter of the samples is compared
with the last: the first quarter warms caches up.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg
import httpx2

from campaign import plot
from campaign.acknowledged import TENANT, Fleet, compare, set_limit
from campaign.results import OUT, Outcome, Plan, Stopwatch
from interlock.domain.job import Filter
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.children import own
from tests.support.postgres import PostgresServer
from tests.support.stores import APP_LOGIN, ENGINES, TEMPLATE, make_template, migrated_file

EVERY_SECONDS: Final = 5.0
RATE: Final = 20.0  # jobs per second of each client
PROBES: Final = 20  # requests whose latency is one sample
LEAST_SAMPLES: Final = 12  # fewer show nothing


class Sample(NamedTuple):
    """What was measured at one moment."""

    seconds: float
    memory_mib: float  # of all servers together
    files: float
    bytes_per_job: float
    median_ms: float
    slowest_ms: float


class Bound(NamedTuple):
    """How much larger the last quarter may be than the second: by a factor, and by what is noise."""

    factor: float
    more: float


BOUNDS: Final = {
    "memory_mib": Bound(1.25, 32.0),
    "files": Bound(1.0, 20.0),
    "bytes_per_job": Bound(1.25, 512.0),
    "median_ms": Bound(2.0, 20.0),
}


def judge(samples: Sequence[Sample]) -> list[str]:
    """Return what has grown."""
    if len(samples) < LEAST_SAMPLES:
        return []
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    for name, bound in BOUNDS.items():
        before, after = (statistics.median(getattr(sample, name) for sample in some) for some in (early, late))
        if after > before * bound.factor + bound.more:
            found.append(f"{name} has grown from {before:.1f} to {after:.1f}")
    return found


def memory_mib(pid: int) -> float:
    """The resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def latencies(http: httpx2.AsyncClient) -> list[float]:
    """Milliseconds of some requests, one after another."""
    found = []
    for _ in range(PROBES):
        began = time.perf_counter()
        (await http.get("/v1/jobs?limit=10")).raise_for_status()
        found.append((time.perf_counter() - began) * 1000)
    return found


async def database_bytes(address: str, postgres: PostgresServer | None) -> int:
    if postgres is None:
        return sum(file.stat().st_size for file in Path(address[10:]).parent.glob("interlock.db*"))
    admin = await asyncpg.connect(postgres.dsn(TEMPLATE))
    try:
        return int(await admin.fetchval("select pg_database_size(current_database())"))
    finally:
        await admin.close()


async def jobs_of(store: Store) -> int:
    newest = await store.find(TENANT, Filter(limit=1))
    return newest[0].seq if newest else 0


async def run_on(engine: str, plan: Plan, every: float) -> tuple[Outcome, list[Sample]]:
    """Load one engine until there are as many samples, then check what was acknowledged."""
    outcome, samples = Outcome(f"soak on {engine}", "samples", plan.seed, plan.size), list[Sample]()
    with tempfile.TemporaryDirectory(prefix="interlock-campaign-") as directory:
        home = Path(directory)
        own(home)
        (home / "data").mkdir()
        own(home / "data")
        async with AsyncExitStack() as stack:
            postgres: PostgresServer | None = None
            if engine == "postgres":
                postgres = stack.enter_context(PostgresServer())
                await make_template(postgres)
                address = postgres.dsn(TEMPLATE, user=APP_LOGIN)
            else:
                file = home / "data" / "interlock.db"
                await asyncio.to_thread(migrated_file, file)
                own(file)
                address = f"sqlite:///{file}"
            store = await (SQLiteStore.open(address[10:]) if postgres is None else PostgresStore.open(address, size=2))
            stack.push_async_callback(store.close)
            await set_limit(store)
            fleet = Fleet(engine, home, address, postgres, plan.seed, rate=RATE)
            stack.callback(fleet.end)
            await fleet.start(stack)
            http = await stack.enter_async_context(
                httpx2.AsyncClient(base_url=f"http://127.0.0.1:{fleet.ports[0]}", trust_env=False, timeout=60.0)
            )
            watch, began = Stopwatch(plan, outcome), time.monotonic()
            while await fleet.gets_on() and not watch.is_over and not fleet.book.violations:
                await asyncio.sleep(every)
                fleet.logs.read_more()
                pids = [server.pid for server in fleet.servers]
                took = sorted(await latencies(http))
                jobs = await jobs_of(store)
                size = await database_bytes(address, postgres)
                samples.append(
                    Sample(
                        time.monotonic() - began, sum(map(memory_mib, pids)), sum(map(open_files, pids)),
                        size / max(jobs, 1), statistics.median(took), took[-1],
                    )
                )  # fmt: skip
                outcome.done = len(samples)
            await fleet.drain(store)
            fleet.end()
            await compare(fleet.book, store)
            outcome.violations += [f"{engine}: {text}" for text in (*fleet.book.violations[:20], *judge(samples))]
            outcome.numbers[engine] = {"jobs": len(fleet.book.ids)} | {
                name: [round(value, 1) for value in (getattr(samples[0], name), getattr(samples[-1], name))]
                for name in Sample._fields
                if samples
            }
    return outcome, samples


def draw(taken: dict[str, list[Sample]], directory: Path) -> list[str]:
    """Plot every measure of all engines over time."""
    value: Callable[[Sample, str], float] = getattr
    return [
        plot.write(
            directory, f"soak-{name.replace('_', '-')}", f"Soak: {name.replace('_', ' ')}", "s",
            {engine: [(one.seconds, value(one, name)) for one in samples] for engine, samples in taken.items()},
        )
        for name in Sample._fields[1:]
    ]  # fmt: skip


def run(plan: Plan, every: float = EVERY_SECONDS, directory: Path = OUT) -> Outcome:
    outcome = Outcome("soak", "samples", plan.seed, plan.size)
    half = Plan(plan.seed, plan.size // 2, plan.seconds / 2, plan.say)
    taken: dict[str, list[Sample]] = {}
    for engine in ENGINES:
        one, taken[engine] = asyncio.run(run_on(engine, half, every))
        outcome.done += one.done
        outcome.seconds += one.seconds
        outcome.numbers |= one.numbers
        outcome.violations += one.violations
    outcome.numbers["plots"] = draw(taken, directory)
    return outcome
