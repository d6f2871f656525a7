"""`python -m bench.worker`: the real worker beside its store, how soon it starts a job, and what idling costs."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.__main__ import OUT, running_server, set_up, tidy_up
from bench.homes import STORE, TYPE, Home, opened
from bench.plan import ENGINES, TITLES, BenchFailed, EngineName
from interlock.domain.decide import CompleteJob
from interlock.domain.policy import ClaimFilter
from interlock.errors import Error
from interlock.worker.loop import Worker
from tests.support.postgres import Postgres, PostgresFailed, PostgresMissing

ABOUT = """Drain no-op async jobs with the real worker, with every rule and the whole audit on, beside claim + complete
straight on the same store in the same run; then time how soon an idle worker starts a job, alone and with many jobs
waiting that it may not have; then see what an idle worker and an idle server cost. Only ratios mean anything."""

TURNS = 4
BATCH = 100
LOOPS = 2  # as a worker, which claims and reports at the same time
WARM = 1000
STARTS = 300
APART_SECONDS = (0.01, 0.03)  # so that the worker is idle again, and nobody is held up by the job before
CONCURRENCY, PREFETCH = 100, 400
LEAST_OF_STORE = {"sqlite": 0.65, "postgres": 0.75}
MAX_MS = {"sqlite": 2.0, "postgres": 3.0}
MAX_IDLE_PERCENT = 1.0


class Options(argparse.Namespace):
    engine: EngineName | None
    jobs: int
    rounds: int
    waiting: int
    idle_seconds: float
    quick: bool
    out: Path


class Figure(NamedTuple):
    """One thing that was measured, and the bound it should keep."""

    engine: str
    title: str
    value: float
    unit: str
    bound: float | None = None
    is_floor: bool = False
    about: str = ""

    @property
    def met(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.is_floor else self.value <= self.bound


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench.worker", description=ABOUT)
    top.add_argument("--engine", choices=ENGINES, help="only this engine (default: both)")
    top.add_argument("--jobs", type=int, default=50_000, metavar="N", help="jobs to drain (default: 50000)")
    top.add_argument("--rounds", type=int, default=1, metavar="N", help="drains, each on a fresh database (default: 1)")
    top.add_argument("--waiting", type=int, default=1_000_000, metavar="N", help="jobs in the way (default: 1000000)")
    top.add_argument("--idle-seconds", type=float, default=10.0, metavar="S", help="how long to idle (default: 10)")
    top.add_argument("--quick", action="store_true", help="2000 jobs, 5000 in the way, 2 s idle: does everything work?")
    top.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where results go (default: bench/out)")
    return top


async def drain(engine: EngineName, home: Home, jobs: int) -> list[Figure]:
    """Both take turns, a part of the jobs each time, so that what disturbs the machine disturbs both."""
    app = home.app()

    @app.task(name=TYPE)
    async def noop(number: int, text: str) -> None:
        pass

    async def by_worker() -> int:
        return await Worker(app, concurrency=CONCURRENCY, prefetch=PREFETCH).run(drain=True)

    async def by_store() -> int:
        return sum(await asyncio.gather(*(_claim_and_complete(home, f"loop-{i}") for i in range(LOOPS))))

    sides = {"default": by_worker, STORE: by_store}
    seconds = dict.fromkeys(sides, 0.0)
    for commit_seq in range(-1, TURNS):
        count = WARM if commit_seq < 0 else jobs // TURNS
        for tenant, side in sides.items():
            await home.load(count, tenant=tenant)
            await home.settle()
            gc.collect()
            began = time.perf_counter()
            done = await side()
            if commit_seq >= 0:
                seconds[tenant] += time.perf_counter() - began
            if done != count:
                raise BenchFailed(f"{done} of {count} jobs were drained")
    if (bad := (await home.store.audit.verify()).first_bad) is not None:
        raise BenchFailed(f"the audit found a bad row: {bad}")
    rates = {tenant: jobs // TURNS * TURNS / spent for tenant, spent in seconds.items()}
    about = f"{rates['default']:,.0f} of {rates[STORE]:,.0f} jobs/s"
    ratio = rates["default"] / rates[STORE]
    title = f"worker, {jobs:,} no-op jobs, beside its store"
    return [Figure(TITLES[engine], title, ratio, "x", LEAST_OF_STORE[engine], is_floor=True, about=about)]


async def _claim_and_complete(home: Home, worker: str) -> int:
    ask, done = ClaimFilter(worker, types=frozenset({TYPE}), limit=BATCH), 0
    while jobs := await home.store.claim(STORE, ask):
        done += len(await home.store.carry_out(STORE, [CompleteJob(job.id, job.fence, worker) for job in jobs]))
    return done


async def starts(engine: EngineName, home: Home, waiting: int) -> list[Figure]:
    """From the answer to an enqueue to the first line of the handler, one job after another, with an idle worker."""
    app, began = home.app(), asyncio.Queue[float]()

    @app.task(name=TYPE)
    async def noop(number: int = 0, text: str = "") -> None:
        began.put_nowait(time.perf_counter())

    producer = home.client(home.elsewhere)
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    figures = []
    try:
        for in_the_way in dict.fromkeys((0, waiting)):
            if in_the_way:
                await home.load(in_the_way // 2, type="other")
                await home.load(in_the_way - in_the_way // 2, delay=86_400.0)
                await home.settle()
            taken = []
            for _ in range(STARTS):
                await asyncio.sleep(random.uniform(*APART_SECONDS))
                await producer.jobs.enqueue([noop._request((), {})])
                committed = time.perf_counter()
                async with asyncio.timeout(60):
                    taken.append((await began.get() - committed) * 1000)
            p50, p95 = median(taken), quantiles(taken, n=20)[-1]
            title = "start latency" + (f", {in_the_way:,} jobs waiting" if in_the_way else "")
            figures.append(Figure(TITLES[engine], title, p50, "ms", MAX_MS[engine], about=f"p95 {p95:.2f} ms"))
    finally:
        worker.stop()
        await working
    return figures


async def idle_worker(engine: EngineName, home: Home, seconds: float) -> list[Figure]:
    app = home.app()

    @app.task(name=TYPE)
    async def noop() -> None:
        pass

    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(1.0)  # what starting costs is not idling
    before, since = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    percent = (time.process_time() - before) / (time.perf_counter() - since) * 100
    worker.stop()
    await working
    return [Figure(TITLES[engine], "idle worker, of one core", percent, "%", MAX_IDLE_PERCENT)]


async def idle_server(seconds: float) -> list[Figure]:
    """Of `interlock serve` in a process of its own; told only where the system says what a process has used."""
    async with _serving() as pid:
        if (before := _cpu_seconds(pid)) is None:
            return []
        since = time.perf_counter()
        await asyncio.sleep(seconds)
        percent = ((_cpu_seconds(pid) or before) - before) / (time.perf_counter() - since) * 100
    return [Figure(TITLES["sqlite"], "idle server, of one core", percent, "%", MAX_IDLE_PERCENT)]


@asynccontextmanager
async def _serving() -> AsyncIterator[int]:
    """The id of a server's process, from the moment it has said where it is."""
    with TemporaryDirectory(prefix="interlock-bench-") as directory:
        words = [sys.executable, "-m", "interlock", "serve", "--port", "0", "--database", "sqlite:///bench.db"]
        server = await asyncio.create_subprocess_exec(*words, cwd=directory, stdout=PIPE, stderr=DEVNULL)
        try:
            assert server.stdout is not None
            async with asyncio.timeout(60):
                if not await server.stdout.readline():
                    raise BenchFailed("the server did not start")
            await asyncio.sleep(1.0)  # what starting costs is not idling
            yield server.pid
        finally:
            if server.returncode is None:
                server.terminate()
            await server.communicate()


def _cpu_seconds(pid: int) -> float | None:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: Options, server: Postgres | None, aside: Console) -> list[Figure]:
    found: list[Figure] = []
    for engine in [options.engine] if options.engine else ENGINES:
        here = server if engine == "postgres" else None
        for _ in range(options.rounds):
            async with opened(engine, here) as home:
                found += _told(aside, await drain(engine, home, options.jobs))
        async with opened(engine, here) as home:
            found += _told(aside, await idle_worker(engine, home, options.idle_seconds))
            found += _told(aside, await starts(engine, home, options.waiting))
    if options.engine != "postgres":
        found += _told(aside, await idle_server(options.idle_seconds))
    return found


def _told(aside: Console, figures: Sequence[Figure]) -> Sequence[Figure]:
    for one in figures:
        aside.print("  ".join(cells(one)), highlight=False)
    return figures


def cells(one: Figure) -> tuple[str, ...]:
    bound = "" if one.bound is None else f"{'≥' if one.is_floor else '≤'} {one.bound:g} {one.unit}"
    met = "" if one.met is None else "met" if one.met else "not met"
    return one.engine, one.title, f"{one.value:.2f} {one.unit}", one.about, bound, met


def show(screen: Console, figures: Sequence[Figure]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("engine", "measurement", "found", "", "target", ""):
        table.add_column(heading, no_wrap=True)
    for one in figures:
        table.add_row(*cells(one), style="yellow" if one.met is False else None)
    screen.print(table)


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    if options.quick:
        options.jobs, options.rounds, options.waiting, options.idle_seconds = 2000, 1, 5000, 2.0
    logging.getLogger("interlock").setLevel(logging.ERROR)
    wide = None if sys.stdout.isatty() else 140
    screen, aside = Console(width=wide), Console(stderr=True, width=wide)
    here = machine.facts()
    try:
        with (
            nullcontext() if options.engine == "sqlite" else running_server() as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            if server is not None:
                here["postgres"] = runner.run(set_up(server))
            figures = runner.run(measure(options, server, aside))
            if server is not None:
                runner.run(tidy_up(server))
    except (BenchFailed, Error, PostgresMissing, PostgresFailed) as error:
        aside.print(f"bench: {error}", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    show(screen, figures)
    options.out.mkdir(parents=True, exist_ok=True)
    results = {"machine": here, "jobs": options.jobs, "waiting": options.waiting}
    reported = [one._asdict() | {"met": one.met} for one in figures]
    (options.out / "worker.json").write_text(json.dumps(results | {"results": reported}, indent=2) + "\n")
    aside.print(f"saved {options.out / 'worker.json'}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
