"""`python -m bench.peers`: how quickly others drain the same jobs on the same machine, beside our worker."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import machine, report
from bench.__main__ import OUT, running_server, set_up, tidy_up
from bench.peers import picture
from bench.peers.environments import PEERS, Environment, NotInstalled, Peer, installed, ours
from bench.plan import ENGINES, TITLES, BenchFailed, EngineName
from bench.results import Row
from tests.support.postgres import OWNER, Postgres, PostgresFailed, PostgresMissing
from tests.support.stores import fresh_database

ABOUT = """Install other queues into environments of their own, in the user's cache, and let each drain as many no-op
jobs with about 100 bytes of payload on a fresh database: the same PostgreSQL for all, with fsync and
synchronous_commit on; SQLite with synchronous=FULL. Interlock keeps its whole audit. A peer that cannot be
installed or fails is named, and the exit code is 1. Only ratios within one run mean anything."""

RUN_SECONDS = 1800


class Options(argparse.Namespace):
    engine: EngineName | None
    jobs: int
    rounds: int
    only: str
    quick: bool
    out: Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench.peers", description=ABOUT)
    top.add_argument("--engine", choices=ENGINES, help="only peers on this engine (default: both)")
    top.add_argument("--jobs", type=int, default=50_000, metavar="N", help="jobs each of them drains (default: 50000)")
    top.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each, in turns (default: 3)")
    top.add_argument("--only", default="", metavar="TEXT", help="only peers whose name contains this")
    top.add_argument("--quick", action="store_true", help="one round with 2000 jobs, to see whether all works")
    top.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where results go (default: bench/out)")
    return top


def chosen(options: Options) -> list[Peer]:
    return [
        peer for peer in PEERS if options.engine in (None, peer.engine) and options.only.lower() in peer.name.lower()
    ]


def bring(peers: Sequence[Peer], aside: Console) -> dict[Peer, Environment]:
    """Those that could be installed; the others are named."""
    here: dict[Peer, Environment] = {}
    for peer in peers:
        with aside.status(f"installing {peer.name} …"):
            try:
                here[peer] = installed(peer)
            except NotInstalled as error:
                aside.print(f"bench: {error}", style="red", highlight=False)
    return here


async def rate(engine: EngineName, environment: Environment, jobs: int, server: Postgres | None) -> float:
    """Jobs per second of one run on a fresh database; a run that has not done all of them has no rate."""
    if engine == "postgres":
        assert server is not None
        async with fresh_database(server) as name:
            return await asyncio.to_thread(_run, environment, server.dsn(name, user=OWNER), jobs)
    with TemporaryDirectory(prefix="interlock-bench-") as directory:
        path = str(Path(directory) / "bench.db")
        place = f"sqlite:///{path}" if environment == ours() else path
        return await asyncio.to_thread(_run, environment, place, jobs)


def _run(environment: Environment, place: str, jobs: int) -> float:
    command = [*environment.command, place, str(jobs)]
    variables = {**os.environ, **environment.variables}
    try:
        ran = subprocess.run(
            command, env=variables, check=True, capture_output=True, text=True, timeout=RUN_SECONDS
        )  # fmt: skip
        reported = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise BenchFailed(lines[-1] if lines else type(error).__name__) from None
    if reported["done"] != jobs:
        raise BenchFailed(f"only {reported['done']} of {jobs} jobs were done")
    return jobs / float(reported["seconds"])


async def compare(
    peers: Mapping[Peer, Environment], options: Options, server: Postgres | None, aside: Console
) -> tuple[list[Row], list[str]]:
    """A row for each peer, and the names of those that failed. Everybody runs once in each round, in turns with us."""
    theirs: dict[Peer, list[float]] = {peer: [] for peer in peers}
    our: dict[EngineName, list[float]] = {peer.engine: [] for peer in peers}
    failed: list[str] = []
    for number in range(1, options.rounds + 1):
        for engine in our:
            our[engine].append(await rate(engine, ours(), options.jobs, server))
            _tell(aside, number, "Interlock", engine, our[engine][-1])
            for peer in peers:
                if peer.engine != engine or peer.name in failed:
                    continue
                try:
                    theirs[peer].append(await rate(engine, peers[peer], options.jobs, server))
                    _tell(aside, number, peer.name, engine, theirs[peer][-1])
                except BenchFailed as error:
                    failed.append(peer.name)
                    aside.print(f"bench: {peer.name} failed: {error}", style="red", highlight=False)
    rows = [
        Row(peer.engine, peer.name, "peer", rates, our[peer.engine], peer.target)
        for peer, rates in theirs.items()
        if len(rates) == options.rounds
    ]
    return rows, failed


def _tell(aside: Console, number: int, name: str, engine: EngineName, rate: float) -> None:
    aside.print(f"round {number}  {TITLES[engine]:<10}  {name:<16} {rate:>9,.0f} jobs/s", highlight=False)


def save(out: Path, facts: Mapping[str, object], options: Options, rows: Sequence[Row]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    asked = {"rounds": options.rounds, "jobs": options.jobs, "only": options.only}
    results = {"machine": facts, "options": asked, "results": [row.to_dict() for row in rows]}
    (out / "peers.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "peers.md").write_text(report.markdown(rows))
    (out / "peers.svg").write_text(picture.draw(rows))


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    if options.quick:
        options.rounds, options.jobs = 1, 2000
    wide = None if sys.stdout.isatty() else 140
    screen, aside = Console(width=wide), Console(stderr=True, width=wide)
    if not (wanted := chosen(options)):
        parser().error(f"no peer has {options.only!r} in its name")
    here = machine.facts()
    peers = bring(wanted, aside)
    needs_server = any(peer.engine == "postgres" for peer in peers)
    try:
        with running_server() if needs_server else nullcontext() as server, asyncio.Runner() as runner:
            if server is not None:
                here["postgres"] = runner.run(set_up(server))
            rows, failed = runner.run(compare(peers, options, server, aside))
            if server is not None:
                runner.run(tidy_up(server))
    except (BenchFailed, PostgresMissing, PostgresFailed) as error:
        aside.print(f"bench: {error}", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    if rows:
        report.show(screen, rows)
        save(options.out, here, options, rows)
        aside.print(f"saved {options.out / 'peers.json'}, peers.md and peers.svg", highlight=False, soft_wrap=True)
    return 1 if failed or len(peers) < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
