"""`python -m bench`: Interlock beside the bare limit of each engine, in one run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import asyncpg
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import machine, plot, report
from bench.plan import ENGINES, TITLES, BenchFailed, EngineName, Measurement, measurements
from bench.results import Row, rows
from bench.run import Rates, run
from interlock.errors import Error
from tests.support.postgres import GIVEN, Postgres, PostgresFailed, PostgresMissing, PostgresServer, postgres
from tests.support.stores import TEMPLATE, make_template

OUT = Path(__file__).parent / "out"
# No checkpoint in the middle of a run; durability is untouched.
SERVER = {"max_wal_size": "4GB", "checkpoint_timeout": "30min"}

ABOUT = f"""Time enqueue and claim + complete on SQLite and PostgreSQL, with full durability and the full audit, beside
a bare table on the same engine in the same run. Only the ratios mean anything: rates depend on the machine and on
the moment. Each measurement has a fresh database; bare and ours work in turns; afterwards everything is counted and
the audit is verified. PostgreSQL is started for the run, or is the one that {GIVEN} names. Databases
are made in the directory for temporary files: set TMPDIR to a real disk if that is a file system in memory."""

EXAMPLES = """examples:
  python -m bench --quick                      does everything work? (the figures mean little)
  python -m bench --rounds 5                   steadier medians
  python -m bench --engine sqlite --only 1000  only what has 1000 in its name
  python -m bench.profile sqlite               where the time goes"""


class Options(argparse.Namespace):
    engine: EngineName | None
    rounds: int
    jobs: int
    quick: bool
    only: str
    out: Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m bench", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--engine", choices=ENGINES, help="only this engine (default: both)")
    top.add_argument("--rounds", type=_positive, default=3, metavar="N", help="runs of each measurement (default: 3)")
    top.add_argument(
        "--jobs", type=_positive, default=20_000, metavar="N",
        help="jobs in a batched run; slow measurements take a part of it (default: 20000)",
    )  # fmt: skip
    top.add_argument("--quick", action="store_true", help="one round with 2000 jobs, to see whether all works")
    top.add_argument("--only", default="", metavar="TEXT", help="only measurements whose name contains this")
    top.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="where results are saved (default: bench/out)"
    )
    return top


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def asked_for(options: Options) -> Sequence[EngineName]:
    return [options.engine] if options.engine else ENGINES


def chosen(engine: EngineName, only: str) -> list[Measurement]:
    return [what for what in measurements(engine) if only in what.title]


async def set_up(server: Postgres) -> str:
    """Make the database that all others are copied from, and tell the version of the server."""
    await make_template(server)
    connection = await asyncpg.connect(server.dsn())
    try:
        return str(await connection.fetchval("show server_version"))
    finally:
        await connection.close()


async def tidy_up(server: Postgres) -> None:
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute(f"drop database {TEMPLATE}")
    finally:
        await connection.close()


async def measure(options: Options, server: Postgres | None, progress: Progress) -> list[Row]:
    """All rows of all engines, with a line for each measurement as it comes in."""
    made: list[Row] = []
    engines = asked_for(options)
    bar = progress.add_task("", total=sum(len(chosen(e, options.only)) for e in engines) * options.rounds)
    for engine in engines:
        plan = chosen(engine, options.only)
        name = TITLES[engine]

        def reported(number: int, what: Measurement, rates: Rates, name: str = name) -> None:
            bare = "" if rates.bare is None else f"   bare {rates.bare:>9,.0f}   ratio {rates.ours / rates.bare:.2f}"
            line = f"round {number}  {name:<10}  {what.title:<49} ours {rates.ours:>9,.0f} jobs/s{bare}"
            progress.console.print(line, highlight=False)
            progress.update(bar, advance=1, description=f"{name}, round {number} of {options.rounds}")

        progress.update(bar, description=f"{name}, round 1 of {options.rounds}")
        here = server if engine == "postgres" else None
        found = await run(engine, plan, rounds=options.rounds, jobs=options.jobs, server=here, reported=reported)
        made += rows(engine, plan, found)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    if options.quick:
        options.rounds, options.jobs = 1, 2000
    wide = None if sys.stdout.isatty() else 140
    screen, aside = Console(width=wide), Console(stderr=True, width=wide)
    if not any(chosen(engine, options.only) for engine in asked_for(options)):
        parser().error(f"no measurement has {options.only!r} in its name")
    options.out.mkdir(parents=True, exist_ok=True)
    here = machine.facts()
    aside.print(
        f"{here['cores']} cores, load {here['load_before']}, one fsync {here['fsync_ms']} ms, "
        f"SQLite {here['sqlite']}, asyncpg {here['asyncpg']}",
        highlight=False,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with (
            nullcontext() if options.engine == "sqlite" else running_server() as server,
            Progress(*columns, console=aside, transient=True) as progress,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            if server is not None:
                here["postgres"] = runner.run(set_up(server))
            made = runner.run(measure(options, server, progress))
            if server is not None:
                runner.run(tidy_up(server))
    except (BenchFailed, Error, PostgresMissing, PostgresFailed) as error:
        aside.print(f"bench: {error}", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    report.show(screen, made)
    asked = {"rounds": options.rounds, "jobs": options.jobs, "only": options.only}
    saved = report.save(options.out, here, asked, made), plot.save(options.out, made)
    aside.print(f"saved {saved[0]} and {saved[1]}", highlight=False, soft_wrap=True)
    return 0


@contextmanager
def running_server() -> Iterator[Postgres]:
    """The server that was given, else one for this run."""
    with postgres() if os.environ.get(GIVEN) else PostgresServer(settings=SERVER) as server:
        yield server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
