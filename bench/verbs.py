"""`python -m bench.verbs`: steps, messages, streams and sleep of Interlock beside those of DBOS, in one run."""

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
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench import machine
from bench.__main__ import OUT, running_server, set_up, tidy_up
from bench.peers.environments import CONTESTANTS, Environment, NotInstalled, Peer, installed
from bench.plan import ENGINES, TITLES, EngineName
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import fresh_database

ABOUT = """Time the durable verbs in one process, Interlock and DBOS in turns, each on a fresh database of the same
engine, with 50 jobs that run steps, one job that receives messages, and one that writes a stream. Then let many jobs
sleep, and measure how late others wake beside them (Interlock only: a sleeping workflow of DBOS stays in the memory of
its process). Rates depend on the machine and on the moment: look at the ratios of one run."""
DBOS: Final = ("dbos==3.4.0", "psycopg[binary]==3.3.9")
RATES: Final = ("steps_per_second", "sends_per_second", "receives_per_second", "chunks_per_second")
DELAYS: Final = ("stream_latency", "wake_lateness", "wake_lateness_beside_sleepers")
RUN_SECONDS: Final = 3600
Found = dict[str, Any]


class Options(argparse.Namespace):
    engine: EngineName | None
    size: int
    sleeping: int
    rounds: int
    out: Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench.verbs", description=ABOUT)
    top.add_argument("--engine", choices=ENGINES, help="only this engine (default: both)")
    top.add_argument("--size", type=int, default=5000, metavar="N", help="steps, messages and chunks (default: 5000)")
    top.add_argument("--sleeping", type=int, default=100_000, metavar="N", help="sleeping jobs (default: 100000)")
    top.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each, in turns (default: 3)")
    top.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where results go (default: bench/out)")
    return top


def timed(environment: Environment, url: str, size: int, sleeping: int) -> Found:
    """Run a contestant in a process of its own and return what it found."""
    command = [*environment.command, url, str(size), str(sleeping)]
    variables = {**os.environ, **environment.variables}
    ran = subprocess.run(command, env=variables, check=False, capture_output=True, text=True, timeout=RUN_SECONDS)
    if ran.returncode:
        raise SystemExit(f"bench: {environment.command[-1]} failed: {ran.stderr.strip().splitlines()[-1]}")
    found: Found = json.loads(ran.stdout.splitlines()[-1])
    return found


async def measured(
    environment: Environment, engine: EngineName, server: Postgres | None, size: int, sleeping: int
) -> Found:
    """Measure on a fresh database."""
    if engine == "sqlite":
        with TemporaryDirectory(prefix="interlock-bench-") as directory:
            url = f"sqlite:///{directory}/bench.db"
            return await asyncio.to_thread(timed, environment, url, size, sleeping)
    assert server is not None
    async with fresh_database(server) as name:
        url = server.dsn(name, user=OWNER)
        return await asyncio.to_thread(timed, environment, url, size, sleeping)


async def compare(
    engine: EngineName, server: Postgres | None, options: Options, peers: Mapping[str, Environment]
) -> dict[str, list[Found]]:
    """Run everybody once in each round; many jobs sleep in the last round only."""
    found: dict[str, list[Found]] = {name: [] for name in peers}
    for number in range(1, options.rounds + 1):
        for name, environment in peers.items():
            sleeping = options.sleeping if number == options.rounds and name == "Interlock" else 0
            found[name].append(await measured(environment, engine, server, options.size, sleeping))
            print(f"round {number}  {TITLES[engine]:<10}  {name:<10} {json.dumps(found[name][-1])}", file=sys.stderr)
    return found


def table(engine: EngineName, found: Mapping[str, Sequence[Found]]) -> list[str]:
    """Return the medians as rows of a Markdown table, with the ratio to the peer for rates."""
    lines = []
    ours, theirs = found["Interlock"], found.get("DBOS", ())
    for name in RATES:
        mine = median(one[name] for one in ours)
        cells = [f"{mine:,.0f} /s", "-", "-"]
        if theirs:
            other = median(one[name] for one in theirs)
            cells[1:] = [f"{other:,.0f} /s", f"{mine / other:.1f} times"]
        lines.append(f"| {TITLES[engine]} | {name.removesuffix('_per_second')} | {' | '.join(cells)} |")
    for name in DELAYS:
        pairs = [[one[name] for one in side if name in one] for side in (ours, theirs)]
        cells = [
            f"p50 {median(one['p50_ms'] for one in side):.0f} ms, p95 {median(one['p95_ms'] for one in side):.0f} ms"
            if side else "-"
            for side in pairs
        ]  # fmt: skip
        lines.append(f"| {TITLES[engine]} | {name.replace('_', ' ')} | {' | '.join(cells)} | |")
    return lines


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    engines: list[EngineName] = [options.engine] if options.engine else list(ENGINES)
    peers = {"Interlock": Environment([sys.executable, str(CONTESTANTS / "verbs_on_interlock.py")], {})}
    try:
        peers["DBOS"] = installed(Peer("DBOS", "postgres", DBOS, "verbs_on_dbos.py", ()))
    except NotInstalled as error:
        print(f"bench: {error}", file=sys.stderr)
    facts: dict[str, object] = {**machine.facts(), "load_before": os.getloadavg()[0]}
    lines = ["| engine | verb | Interlock | DBOS | ratio |", "|---|---|---|---|---|"]
    results: dict[str, object] = {}
    with running_server() if "postgres" in engines else nullcontext() as server, asyncio.Runner() as runner:
        if server is not None:
            facts["postgres"] = runner.run(set_up(server))
        for engine in engines:
            found = runner.run(compare(engine, server, options, peers))
            results[engine] = found
            lines += table(engine, found)
        if server is not None:
            runner.run(tidy_up(server))
    facts["load_after"] = os.getloadavg()[0]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "verbs.json").write_text(json.dumps({"machine": facts, "results": results}, indent=2) + "\n")
    print("\n".join(lines))
    print(f"load before {facts['load_before']:.1f}, after {facts['load_after']:.1f}")
    return 0 if "DBOS" in peers else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
