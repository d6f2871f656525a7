"""`python -m bench.verbs`: steps, messages, streams and sleep of Interlock, DBOS and Absurd, in one run."""

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

ABOUT = """Time the durable verbs in one process, Interlock, DBOS and Absurd in turns, each on a fresh database of the
same engine, with 50 jobs that run steps, one job that receives messages, and one that writes a stream. Then let many
jobs sleep, and measure how late others wake beside them (not for DBOS: its sleeping workflows stay in the memory of
their process). Absurd has no streams and needs PostgreSQL. Rates depend on the machine and on the moment: look at the
ratios of one run."""
OURS: Final = "Interlock"
DBOS: Final = Peer("DBOS", "postgres", ("dbos==3.4.0", "psycopg[binary]==3.3.9"), "verbs_on_dbos.py", ())
ABSURD: Final = Peer(
    "Absurd", "postgres", ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9"), "verbs_on_absurd.py", ()
)
PEERS: Final[Mapping[EngineName, Sequence[Peer]]] = {"sqlite": (DBOS,), "postgres": (DBOS, ABSURD)}
STORES_SLEEPERS: Final = (OURS, ABSURD.name)
RATES: Final = (
    "steps_per_second", "sends_per_second", "receives_per_second", "chunks_per_second", "sleeps_begun_per_second",
)  # fmt: skip
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
    engine: EngineName, server: Postgres | None, options: Options, contestants: Mapping[str, Environment]
) -> dict[str, list[Found]]:
    """Run each contestant once in each round; many jobs sleep in the last round only."""
    found: dict[str, list[Found]] = {name: [] for name in contestants}
    for number in range(1, options.rounds + 1):
        for name, environment in contestants.items():
            sleeping = options.sleeping if number == options.rounds and name in STORES_SLEEPERS else 0
            found[name].append(await measured(environment, engine, server, options.size, sleeping))
            print(f"round {number}  {TITLES[engine]:<10}  {name:<10} {json.dumps(found[name][-1])}", file=sys.stderr)
    return found


def table(engine: EngineName, found: Mapping[str, Sequence[Found]]) -> list[str]:
    """Return the medians as rows of a Markdown table, with the ratio to each peer for rates."""
    ours, *others = (found.get(name, ()) for name in (OURS, DBOS.name, ABSURD.name))
    lines = []
    for name in RATES:
        mine, *rates = (_rate(side, name) for side in (ours, *others))
        cells = ["-" if mine is None else f"{mine:,.0f} /s"]
        for theirs in rates:
            if mine is None or theirs is None:
                cells += ["-", "-"]
            else:
                cells += [f"{theirs:,.0f} /s", f"{mine / theirs:.1f} times"]
        lines.append(_row(engine, name.removesuffix("_per_second").replace("_", " "), cells))
    for name in DELAYS:
        first, *rest = (_delay(side, name) for side in (ours, *others))
        lines.append(_row(engine, name.replace("_", " "), [first, *(cell for peer in rest for cell in (peer, ""))]))
    return lines


def _rate(side: Sequence[Found], name: str) -> float | None:
    rates = [one[name] for one in side if name in one]
    return median(rates) if rates else None


def _delay(side: Sequence[Found], name: str) -> str:
    delays = [one[name] for one in side if name in one]
    if not delays:
        return "-"
    p50, p95 = (median(one[part] for one in delays) for part in ("p50_ms", "p95_ms"))
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms"


def _row(engine: EngineName, verb: str, cells: Sequence[str]) -> str:
    return " ".join(f"| {cell}".rstrip() for cell in (TITLES[engine], verb, *cells)) + " |"


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    engines: list[EngineName] = [options.engine] if options.engine else list(ENGINES)
    ours = Environment([sys.executable, str(CONTESTANTS / "verbs_on_interlock.py")], {})
    wanted = dict.fromkeys(peer for engine in engines for peer in PEERS[engine])
    environments: dict[str, Environment] = {}
    for peer in wanted:
        try:
            environments[peer.name] = installed(peer)
        except NotInstalled as error:
            print(f"bench: {error}", file=sys.stderr)
    facts: dict[str, object] = {**machine.facts(), "load_before": os.getloadavg()[0]}
    lines = ["| engine | verb | Interlock | DBOS | ratio | Absurd | ratio |", "|---|---|---|---|---|---|---|"]
    results: dict[str, object] = {}
    with running_server() if "postgres" in engines else nullcontext() as server, asyncio.Runner() as runner:
        if server is not None:
            facts["postgres"] = runner.run(set_up(server))
        for engine in engines:
            names = [peer.name for peer in PEERS[engine] if peer.name in environments]
            contestants = {OURS: ours} | {name: environments[name] for name in names}
            found = runner.run(compare(engine, server, options, contestants))
            results[engine] = found
            lines += table(engine, found)
        if server is not None:
            runner.run(tidy_up(server))
    facts["load_after"] = os.getloadavg()[0]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "verbs.json").write_text(json.dumps({"machine": facts, "results": results}, indent=2) + "\n")
    print("\n".join(lines))
    print(f"load before {facts['load_before']:.1f}, after {facts['load_after']:.1f}")
    return 0 if len(environments) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
