"""`python -m bench.peers`: Interlock beside other queues, and beside an earlier version of itself, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.__main__ import OUT, running_server, set_up, tidy_up
from bench.peers import picture
from bench.peers.environments import PEERS, Environment, NotInstalled, Peer, installed, interlock
from bench.peers.plan import BEFORE, MAX_MS, MEASUREMENTS, OURS, Comparison, Rounds, comparisons
from bench.plan import ENGINES, TITLES, BenchFailed, EngineName
from bench.versions import as_admin, empty_database, migrated_database
from tests.support.postgres import OWNER, Postgres, PostgresFailed, PostgresMissing
from tests.support.stores import APP_LOGIN

ABOUT = """Install other queues into environments of their own, in the user's cache, and let each enqueue and drain as
many no-op jobs with about 100 bytes of payload on a fresh database: the same PostgreSQL for all, with fsync and
synchronous_commit on; SQLite with synchronous=FULL. Interlock keeps its whole audit, and on PostgreSQL it connects with
the rights of a server. Everyone runs once in each round, in turns. A peer that cannot be installed or fails is named,
and the exit code is 1. Only ratios within one run mean anything."""

RUN_SECONDS = 900
SETTLE_SECONDS = 1.0  # between the start of a worker and the first job whose start is timed


class Options(argparse.Namespace):
    engine: EngineName | None
    jobs: int
    singles: int
    starts: int
    rounds: int
    only: str
    measure: str
    before: Path | None
    quick: bool
    out: Path


class Contestant(NamedTuple):
    """A queue on one engine."""

    name: str
    engine: EngineName
    environment: Environment
    measurements: Sequence[str]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench.peers", description=ABOUT)
    top.add_argument("--engine", choices=ENGINES, help="only this engine (default: both)")
    top.add_argument("--jobs", type=int, default=50_000, metavar="N", help="jobs each of them drains (default: 50000)")
    top.add_argument("--singles", type=int, default=2000, metavar="N", help="jobs enqueued one by one (default: 2000)")
    top.add_argument("--starts", type=int, default=200, metavar="N", help="jobs whose start is timed (default: 200)")
    top.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each, in turns (default: 3)")
    top.add_argument("--only", default="", metavar="TEXT", help="only peers whose name contains this")
    top.add_argument("--measure", default="", metavar="TEXT", help=f"only these of {', '.join(MEASUREMENTS)}")
    top.add_argument("--before", type=Path, metavar="DIR", help="a checkout of an earlier version, to compare with")
    top.add_argument("--quick", action="store_true", help="one round with 2000 jobs, to see whether all works")
    top.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where results go (default: bench/out)")
    return top


def chosen(options: Options) -> list[Peer]:
    return [
        peer for peer in PEERS if options.engine in (None, peer.engine) and options.only.lower() in peer.name.lower()
    ]


def bring(peers: Sequence[Peer], options: Options, aside: Console) -> tuple[list[Contestant], list[str]]:
    """Interlock, and the peers that could be installed; the others are named."""
    everything = [name for name in MEASUREMENTS if options.measure in name and name != "start-p95"]
    engines = [options.engine] if options.engine else ENGINES
    here: list[Contestant] = []
    missing: list[str] = []
    for engine in engines:
        ours = [name for name in everything if (name, engine) != ("drain-2", "sqlite")]
        here.append(Contestant(OURS, engine, interlock(), ours))
        if options.before is not None:
            here.append(Contestant(BEFORE, engine, interlock(options.before), ours))
    for peer in peers:
        if wanted := [name for name in peer.measurements if name in everything]:
            with aside.status(f"installing {peer.name} …"):
                try:
                    here.append(Contestant(peer.name, peer.engine, installed(peer), wanted))
                except NotInstalled as error:
                    missing.append(peer.name)
                    aside.print(f"bench: {error}", style="red", highlight=False)
    return here, missing


class Runs:
    """The runs of one contestant, each on a fresh database."""

    def __init__(self, who: Contestant, options: Options, server: Postgres | None) -> None:
        self._who, self._options, self._server = who, options, server

    async def measure(self, what: str) -> dict[str, float]:
        """Return the rate, or the times, of one measurement."""
        async with self._database() as place:
            if what in ("bulk", "single", "concurrent"):
                jobs = self._options.jobs if what == "bulk" else self._options.singles
                return {what: jobs / await self._seconds(place, what, jobs)}
            if what == "start":
                return await self._starts(place)
            return {what: await self._drained(place, int(what.removeprefix("drain-")))}

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[str]:
        is_ours = self._who.name in (OURS, BEFORE)
        if self._server is None or self._who.engine == "sqlite":
            with TemporaryDirectory(prefix="interlock-bench-") as directory:
                path = f"{directory}/bench.db"
                yield f"sqlite:///{path}" if is_ours else path
            return
        environment = self._who.environment.variables
        async with migrated_database(self._server, environment) if is_ours else empty_database(self._server) as name:
            yield self._server.dsn(name, user=APP_LOGIN if is_ours else OWNER)

    async def _seconds(self, place: str, *words: object) -> float:
        command = [*self._who.environment.command, place, *map(str, words)]
        printed = await asyncio.to_thread(_call, command, self._who.environment)
        return float(json.loads(printed.splitlines()[-1])["seconds"])

    async def _drained(self, place: str, processes: int) -> float:
        jobs = self._options.jobs
        await self._seconds(place, "bulk", jobs)
        if self._who.engine == "postgres":  # plans made for empty tables would measure something else
            assert self._server is not None
            await as_admin(self._server, "vacuum analyze", place.rpartition("/")[2])
            await as_admin(self._server, "checkpoint")
        workers = [await self._worker(place, "drain") for _ in range(processes)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
        reported = [json.loads((await worker.communicate())[0].splitlines()[-1]) for worker in workers]
        done, ended = sum(one["done"] for one in reported), max(one["ended"] for one in reported)
        if done != jobs:
            raise BenchFailed(f"{done} of {jobs} jobs were done")
        return jobs / float(ended - began)

    async def _starts(self, place: str) -> dict[str, float]:
        """Time from the response of an enqueue in one process to the first line of the handler in another."""
        await self._seconds(place, "single", 1)
        worker = await self._worker(place, "start")
        assert worker.stdout is not None
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            command = [*self._who.environment.command, place, "produce", str(self._options.starts)]
            printed = await asyncio.to_thread(_call, command, self._who.environment)
            committed = {int(number): float(at) for number, at in map(str.split, printed.splitlines())}
            began: dict[int, float] = {}
            async with asyncio.timeout(60):
                while not committed.keys() <= began.keys():
                    number, at = (await worker.stdout.readline()).split()
                    began[int(number)] = float(at)
        finally:
            if worker.returncode is None:
                worker.kill()
            await worker.communicate()
        taken = [(began[number] - at) * 1000 for number, at in committed.items()]
        return {"start": median(taken), "start-p95": quantiles(taken, n=20)[-1]}

    async def _worker(self, place: str, what: str) -> Process:
        """A process that has said that it is ready."""
        command = [*self._who.environment.command, place, what, str(self._options.jobs)]
        variables = {**os.environ, **self._who.environment.variables}
        worker = await asyncio.create_subprocess_exec(*command, env=variables, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert worker.stdout is not None
        assert worker.stderr is not None
        async with asyncio.timeout(60):
            if await worker.stdout.readline() != b"ready\n":
                raise BenchFailed((await worker.stderr.read()).decode()[-2000:])
        return worker


def _call(command: Sequence[str], environment: Environment) -> str:
    variables = {**os.environ, **environment.variables}
    try:
        ran = subprocess.run(
            command, env=variables, check=True, capture_output=True, text=True, timeout=RUN_SECONDS
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise BenchFailed(lines[-1] if lines else type(error).__name__) from None
    return ran.stdout


async def compare(
    contestants: Sequence[Contestant], options: Options, server: Postgres | None, aside: Console
) -> tuple[Rounds, list[str]]:
    """The values of all rounds, and the names of those that failed. Everyone takes part in a round once, in turns."""
    rounds: dict[tuple[str, EngineName, str], list[float]] = defaultdict(list)
    failed: list[str] = []
    for number in range(1, options.rounds + 1):
        for what in [name for name in MEASUREMENTS if any(name in one.measurements for one in contestants)]:
            for who in contestants:
                if what not in who.measurements or who.name in failed:
                    continue
                try:
                    found = await Runs(who, options, server).measure(what)
                except (BenchFailed, TimeoutError, ValueError, IndexError) as error:
                    failed.append(who.name)
                    aside.print(f"bench: {who.name} failed: {error}", style="red", highlight=False)
                    continue
                for title, value in found.items():
                    rounds[who.name, who.engine, title].append(value)
                    line = f"round {number}  {MEASUREMENTS[title]:<28}  {TITLES[who.engine]:<10}  {who.name:<16}"
                    aside.print(f"{line} {_value(title, value)}", highlight=False)
    return rounds, failed


def _value(what: str, value: float) -> str:
    return f"{value:,.2f} ms" if what.startswith("start") else f"{value:,.0f} jobs/s"


AIM_HEADINGS = ("measurement", "beside", "its jobs/s", "our jobs/s", "ratio", "range", "target", "")


def table_of(rounds: Rounds) -> tuple[list[str], list[list[str]]]:
    """Every contestant's median of every measurement."""
    who = list(dict.fromkeys((name, engine) for name, engine, _ in rounds))
    headings = ["measurement", *(f"{name}, {TITLES[engine]}" for name, engine in who)]
    lines = []
    for what, title in MEASUREMENTS.items():
        values = [rounds.get((name, engine, what), ()) for name, engine in who]
        if any(values):
            lines.append([title, *(_value(what, median(one)) if one else "" for one in values)])
    return headings, lines


def latencies(rounds: Rounds) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for (what, engine), most in MAX_MS.items():
        if taken := rounds.get((OURS, engine, what)):
            spread = f"{min(taken):.2f} to {max(taken):.2f}"
            met = "met" if median(taken) <= most else "not met"
            title = f"{TITLES[engine]}: {MEASUREMENTS[what]}"
            lines.append((title, "", "", f"{median(taken):.2f} ms", "", spread, f"≤ {most:g} ms", met))
    return lines


def show(screen: Console, rounds: Rounds, aims: Sequence[Comparison]) -> None:
    headings, lines = table_of(rounds)
    for names, rows in ((headings, lines), (AIM_HEADINGS, [*(one.cells() for one in aims), *latencies(rounds)])):
        table = Table(box=box.SIMPLE_HEAD)
        for name in names:
            table.add_column(name, justify="left" if name in ("measurement", "beside", "") else "right")
        for row in rows:
            table.add_row(*row, style="yellow" if row[-1] == "not met" else None)
        screen.print(table)


def markdown(rounds: Rounds, aims: Sequence[Comparison]) -> str:
    """Both tables for docs/explanation/benchmarks.md."""
    headings, lines = table_of(rounds)
    parts = []
    met = (*AIM_HEADINGS[:-1], "met")
    for names, rows in ((headings, lines), (met, [*(one.cells() for one in aims), *latencies(rounds)])):
        parts += [" | ".join(names), "|".join(["---"] * len(names)), *(" | ".join(row) for row in rows), ""]
    return "\n".join(f"| {line} |" if line else "" for line in parts)


def save(out: Path, facts: dict[str, object], options: Options, rounds: Rounds, aims: Sequence[Comparison]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    asked = {name: getattr(options, name) for name in ("rounds", "jobs", "singles", "starts", "only", "measure")}
    found = [
        {"contestant": who, "engine": TITLES[engine], "measurement": what, "rounds": [round(v, 3) for v in values]}
        for (who, engine, what), values in rounds.items()
    ]
    ratios = [one.aim._asdict() | {"ratio": round(one.ratio, 4), "met": one.met} for one in aims]
    results = {"machine": facts, "options": asked, "results": found, "aims": ratios}
    (out / "peers.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "peers.md").write_text(markdown(rounds, aims))
    (out / "peers.svg").write_text(picture.draw(rounds))


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    if options.quick:
        options.rounds, options.jobs, options.singles, options.starts = 1, 2000, 200, 20
    wide = None if sys.stdout.isatty() else 200
    screen, aside = Console(width=wide), Console(stderr=True, width=wide)
    if not (wanted := chosen(options)):
        parser().error(f"no peer has {options.only!r} in its name")
    here: dict[str, object] = {**machine.facts()}
    contestants, missing = bring(wanted, options, aside)
    if all(one.name == OURS for one in contestants):
        return 1
    needs_server = any(one.engine == "postgres" for one in contestants)
    try:
        with running_server() if needs_server else nullcontext() as server, asyncio.Runner() as runner:
            if server is not None:
                here["postgres"] = runner.run(set_up(server))
            rounds, failed = runner.run(compare(contestants, options, server, aside))
            if server is not None:
                runner.run(tidy_up(server))
    except (BenchFailed, PostgresMissing, PostgresFailed) as error:
        aside.print(f"bench: {error}", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    aims = comparisons(rounds)
    show(screen, rounds, aims)
    save(options.out, here, options, rounds, aims)
    aside.print(f"saved {options.out / 'peers.json'}, peers.md and peers.svg", highlight=False, soft_wrap=True)
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
