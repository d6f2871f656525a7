"""`python -m bench.http`: the service over loopback, one server process and the load in another."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from bench import http_report, machine
from bench.__main__ import OUT, running_server, set_up, tidy_up
from bench.http_plan import PLAN, Measurement, Row
from bench.load import Order, Outcome
from bench.plan import ENGINES, TITLES, BenchFailed, EngineName
from bench.versions import migrated_database, variables
from tests.support.postgres import Postgres, PostgresFailed, PostgresMissing
from tests.support.stores import APP_LOGIN

ABOUT = """Time creating jobs, and the whole cycle create, claim, complete, through the HTTP API on SQLite and
PostgreSQL with durable commits, from 1 to 64 connections. The server is `interlock serve` as it comes; the load runs in
a process of its own on the same machine and takes its share of it. A cycle is three calls, one after the other; its
times are those of the three together. Each measurement has a fresh database."""

_NONE: Mapping[str, str] = {}
NOW, BEFORE = "", "before"


class Options(argparse.Namespace):
    engine: EngineName | None
    rounds: int
    seconds: float
    only: str
    before: Path | None
    out: Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench.http", description=ABOUT)
    top.add_argument("--engine", choices=ENGINES, help="only this engine (default: both)")
    top.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each measurement (default: 3)")
    top.add_argument("--seconds", type=float, default=3.0, metavar="S", help="length of a run (default: 3)")
    top.add_argument("--only", default="", metavar="TEXT", help="only measurements whose name contains this")
    top.add_argument("--before", type=Path, metavar="DIR", help="a checkout of an earlier version, to compare with")
    top.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where results go (default: bench/out)")
    return top


@asynccontextmanager
async def served(
    engine: EngineName, server: Postgres | None, settings: Mapping[str, str] = _NONE
) -> AsyncIterator[int]:
    """The port of a server over a fresh database; `settings` are environment variables."""
    with TemporaryDirectory(prefix="interlock-bench-") as name:
        if engine == "sqlite":
            with serving(f"sqlite:///{name}/jobs.db", Path(name), settings) as port:
                yield port
            return
        assert server is not None
        async with migrated_database(server, settings) as database:
            with serving(server.dsn(database, user=APP_LOGIN), Path(name), settings) as port:
                yield port


@contextmanager
def serving(database: str, directory: Path, settings: Mapping[str, str] = _NONE) -> Iterator[int]:
    """`interlock serve` in a process of its own; its log goes to a file, as a server's log does."""
    command = [sys.executable, "-m", "interlock", "serve", "--database", database, "--port", "0"]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=directory, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            given = process.stdout.readline()
            if " serves http://" not in given:
                raise BenchFailed(f"the server did not start: {(directory / 'log').read_text()[-2000:]}")
            yield int(given.partition(" serves ")[2].split()[0].rpartition(":")[2])
        finally:
            process.terminate()
            process.wait()


def loaded(port: int, what: Measurement, seconds: float) -> Outcome:
    """One run of the load against a server."""
    order = Order(
        port=port, kind=what.kind, connections=what.connections, batch=what.batch, seconds=seconds,
        warm_seconds=min(1.0, seconds),
    )  # fmt: skip
    command = [sys.executable, "-m", "bench.load"]
    ended = subprocess.run(command, input=msgspec.json.encode(order), capture_output=True, cwd=OUT.parents[1])
    if ended.returncode:
        raise BenchFailed(f"the load failed: {ended.stderr.decode()[-2000:]}")
    return msgspec.json.decode(ended.stdout, type=Outcome)


async def measure(options: Options, server: Postgres | None, aside: Console) -> list[Row]:
    """A row for each measurement; with an earlier version, in turns with it."""
    made = []
    versions = {NOW: None} if options.before is None else {NOW: None, BEFORE: options.before}
    for engine in [options.engine] if options.engine else ENGINES:
        for what in chosen(options.only):
            outcomes: dict[str, list[Outcome]] = {version: [] for version in versions}
            for number in range(1, options.rounds + 1):
                for version, before in versions.items():
                    async with served(engine, server, variables(before)) as port:
                        outcomes[version].append(await asyncio.to_thread(loaded, port, what, options.seconds))
                    one = row(engine, what, outcomes[version][-1:])
                    aside.print(f"{_line(number, one)} {version}", highlight=False)
            before_rates = [one.jobs / one.seconds for one in outcomes.get(BEFORE, ())]
            made.append(row(engine, what, outcomes[NOW])._replace(before=before_rates))
    return made


def _line(number: int, row: Row) -> str:
    what = f"{TITLES[row.engine]:<10}  {row.what.title:<38} {row.what.connections:>3} connections"
    times = f"p50 {row.p50:.1f}   p95 {row.p95:.1f}   p99 {row.p99:.1f} ms"
    return f"round {number}  {what} {row.rate:>9,.0f} jobs/s   {times}"


def chosen(only: str) -> list[Measurement]:
    return [what for what in PLAN if only in f"{what.title} {what.connections}"]


def row(engine: EngineName, what: Measurement, outcomes: Sequence[Outcome]) -> Row:
    """The median of the rounds, of the rate and of each time."""
    p50, p95, p99 = (median(_at(one.milliseconds, share) for one in outcomes) for share in (0.5, 0.95, 0.99))
    return Row(engine, what, [one.jobs / one.seconds for one in outcomes], p50, p95, p99)


def _at(sorted_times: Sequence[float], share: float) -> float:
    if not sorted_times:
        raise BenchFailed("nothing was done within the time; give it more --seconds")
    return sorted_times[min(int(len(sorted_times) * share), len(sorted_times) - 1)]


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    wide = None if sys.stdout.isatty() else 140
    screen, aside = Console(width=wide), Console(stderr=True, width=wide)
    if not chosen(options.only):
        parser().error(f"no measurement has {options.only!r} in its name")
    options.out.mkdir(parents=True, exist_ok=True)
    here = machine.facts()
    try:
        with nullcontext() if options.engine == "sqlite" else running_server() as server:
            if server is not None:
                here["postgres"] = asyncio.run(set_up(server))
            made = asyncio.run(measure(options, server, aside))
            if server is not None:
                asyncio.run(tidy_up(server))
    except (BenchFailed, PostgresMissing, PostgresFailed) as error:
        aside.print(f"bench: {error}", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    http_report.show(screen, made)
    asked = {"rounds": options.rounds, "seconds": options.seconds, "only": options.only}
    aside.print(f"saved {http_report.save(options.out, here, asked, made)}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
