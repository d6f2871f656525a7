"""`python -m bench.codeq`: the six published load scenarios of codeQ, through the codeQ adapter.

Parameters are those of its page of performance baselines: arrivals at a constant rate, whether or not the server keeps
up, and workers that claim, submit a result, and pause after an empty claim.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import uvloop
from rich.console import Console

from bench import machine
from bench.__main__ import OUT, running_server, set_up, tidy_up
from bench.http import served
from bench.load import Connection, LoadFailed
from bench.plan import ENGINES, TITLES, BenchFailed, EngineName
from tests.support.postgres import Postgres, PostgresFailed, PostgresMissing

COMMAND: Final = "GENERATE_MASTER"
_CLAIM: Final = b'{"commands":["GENERATE_MASTER"],"leaseSeconds":60,"waitSeconds":0}'
_RESULT: Final = b'{"status":"COMPLETED","result":{"ok":true,"scenario":"bench"}}'
EMPTY_PAUSE_SECONDS: Final = 0.05


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one scenario, and the p95 that codeQ publishes for it."""

    name: str
    published_p95_ms: float
    rate: int = 0
    seconds: float = 30.0
    produce_seconds: float = 30.0
    workers: int = 0
    producers: int
    tasks: int = 0
    mixed: bool = False
    delayed: bool = False
    pause: float = EMPTY_PAUSE_SECONDS


SCENARIOS: Final = (
    Scenario(name="sustained", published_p95_ms=11, rate=200, workers=50, producers=40),
    Scenario(name="burst", published_p95_ms=33, rate=500, produce_seconds=10, workers=100, producers=100),
    Scenario(name="many workers", published_p95_ms=23, rate=400, workers=80, producers=100),
    Scenario(name="prefill", published_p95_ms=33, producers=50, tasks=10_000),
    Scenario(name="mixed priorities", published_p95_ms=39, rate=500, workers=100, producers=100, mixed=True),
    Scenario(name="delayed", published_p95_ms=15, rate=200, workers=100, producers=100, delayed=True, pause=0.1),
)


class Order(msgspec.Struct, frozen=True):
    """What the process of the load is told."""

    port: int
    scenario: Scenario


class Outcome(msgspec.Struct, frozen=True):
    """What came of a run; an arrival is missed if every producer is still waiting for a response."""

    requests: int
    created: int
    completed: int
    missed: int
    seconds: float
    p50: float
    p95: float
    p99: float


class _Task(msgspec.Struct):
    id: str


_read: Final = msgspec.json.Decoder(_Task).decode


class Load:
    """The producers and workers of one run."""

    def __init__(self, scenario: Scenario, connections: Sequence[Connection]) -> None:
        self._what, self._connections = scenario, connections
        self._free = list(connections[scenario.workers :])
        self._creating: set[asyncio.Task[None]] = set()
        self.created = self.completed = self.missed = 0

    async def run(self) -> None:
        what = self._what
        end = time.perf_counter() + what.seconds
        if what.tasks:
            await asyncio.gather(*(self._fill(connection) for connection in self._free))
            return
        working = (self._work(connection, end) for connection in self._connections[: what.workers])
        await asyncio.gather(self._arrive(), *working)

    async def _fill(self, connection: Connection) -> None:
        while self.created < self._what.tasks:
            self.created += 1
            await connection.post(b"/v1/codeq/tasks", self._task())

    async def _arrive(self) -> None:
        began = time.perf_counter()
        for number in range(int(self._what.rate * self._what.produce_seconds)):
            await asyncio.sleep(max(0.0, began + number / self._what.rate - time.perf_counter()))
            if not self._free:
                self.missed += 1
                continue
            creating = asyncio.create_task(self._create(self._free.pop()))
            self._creating.add(creating)
            creating.add_done_callback(self._creating.discard)
        await asyncio.gather(*self._creating)

    async def _create(self, connection: Connection) -> None:
        await connection.post(b"/v1/codeq/tasks", self._task())
        self._free.append(connection)
        self.created += 1

    def _task(self) -> bytes:
        task: dict[str, object] = {"command": COMMAND, "payload": {"source": "bench", "iter": self.created}}
        task["priority"] = random.choices((10, 5, 0), (50, 30, 20))[0] if self._what.mixed else 0
        if self._what.delayed and random.random() < 0.5:
            task["delaySeconds"] = random.randint(1, 5)
        return msgspec.json.encode(task)

    async def _work(self, connection: Connection, end: float) -> None:
        while time.perf_counter() < end:
            claimed = await connection.post(b"/v1/codeq/tasks/claim", _CLAIM)
            if not claimed:
                await asyncio.sleep(self._what.pause)
                continue
            await connection.post(b"/v1/codeq/tasks/%b/result" % _read(claimed).id.encode(), _RESULT)
            self.completed += 1


async def load(order: Order) -> Outcome:
    """Put the load of a scenario on a server."""
    what, loop = order.scenario, asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", order.port))[1]
        for _ in range(what.workers + what.producers)
    ]
    running = Load(what, connections)
    began = time.perf_counter()
    await running.run()
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    taken = sorted((ended - begun) * 1000 for one in connections for begun, ended in one.calls)
    p50, p95, p99 = (taken[int(len(taken) * share)] for share in (0.5, 0.95, 0.99))
    return Outcome(len(taken), running.created, running.completed, running.missed, seconds, p50, p95, p99)


def loaded(order: Order) -> Outcome:
    """The load in a process of its own."""
    command = [sys.executable, "-m", "bench.codeq", "--load"]
    ended = subprocess.run(command, input=msgspec.json.encode(order), capture_output=True, cwd=OUT.parents[1])
    if ended.returncode:
        raise BenchFailed(f"the load failed: {ended.stderr.decode()[-2000:]}")
    return msgspec.json.decode(ended.stdout, type=Outcome)


class Options(argparse.Namespace):
    engine: EngineName | None
    rounds: int
    only: str
    quick: bool
    load: bool
    out: Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench.codeq", description=__doc__)
    top.add_argument("--engine", choices=ENGINES, help="only this engine (default: both)")
    top.add_argument("--rounds", type=int, default=1, metavar="N", help="runs of each scenario (default: 1)")
    top.add_argument("--only", default="", metavar="TEXT", help="only scenarios whose name contains this")
    top.add_argument("--quick", action="store_true", help="two seconds of each, to see whether all works")
    top.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    top.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where results go (default: bench/out)")
    return top


def shortened(scenario: Scenario) -> Scenario:
    return msgspec.structs.replace(scenario, seconds=2, produce_seconds=2, tasks=scenario.tasks // 20)


async def measure(
    options: Options, server: Postgres | None, aside: Console
) -> dict[EngineName, dict[str, list[Outcome]]]:
    found: dict[EngineName, dict[str, list[Outcome]]] = {}
    for engine in [options.engine] if options.engine else ENGINES:
        of_engine = found[engine] = {}
        for scenario in (one for one in SCENARIOS if options.only in one.name):
            for number in range(1, options.rounds + 1):
                async with served(engine, server, {"INTERLOCK_FACES": "codeq"}) as port:
                    order = Order(port, shortened(scenario) if options.quick else scenario)
                    outcome = await asyncio.to_thread(loaded, order)
                of_engine.setdefault(scenario.name, []).append(outcome)
                times = f"p50 {outcome.p50:.1f}   p95 {outcome.p95:.1f}   p99 {outcome.p99:.1f} ms"
                counts = f"{outcome.created:,} created, {outcome.completed:,} completed, {outcome.missed:,} missed"
                rate = f"{outcome.requests / outcome.seconds:>6,.0f} requests/s"
                line = f"round {number}  {TITLES[engine]:<10}  {scenario.name:<17} {rate}   {times}   {counts}"
                aside.print(line, highlight=False)
    return found


def markdown(found: dict[EngineName, dict[str, list[Outcome]]]) -> list[str]:
    lines = ["| scenario | codeQ, published p95 | " + " | ".join(f"{TITLES[engine]} p95" for engine in found) + " |"]
    lines.append("|---" * (2 + len(found)) + "|")
    for scenario in SCENARIOS:
        cells = [median(one.p95 for one in of[scenario.name]) for of in found.values() if scenario.name in of]
        if cells:
            values = " | ".join(f"{value:.1f} ms" for value in cells)
            lines.append(f"| {scenario.name} | {scenario.published_p95_ms:g} ms | {values} |")
    return lines


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments, namespace=Options())
    if options.load:
        order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
        try:
            sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(load(order))))
        except LoadFailed as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    aside = Console(stderr=True, width=None if sys.stdout.isatty() else 180)
    here: dict[str, object] = {**machine.facts()}
    try:
        with nullcontext() if options.engine == "sqlite" else running_server() as server:
            if server is not None:
                here["postgres"] = asyncio.run(set_up(server))
            found = asyncio.run(measure(options, server, aside))
            if server is not None:
                asyncio.run(tidy_up(server))
    except (BenchFailed, PostgresMissing, PostgresFailed) as error:
        aside.print(f"bench: {error}", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    lines = markdown(found)
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "codeq.md").write_text("\n".join(lines) + "\n")
    results = {TITLES[engine]: msgspec.to_builtins(of) for engine, of in found.items()}
    (options.out / "codeq.json").write_text(json.dumps({"machine": here, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
