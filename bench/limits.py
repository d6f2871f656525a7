"""`python -m bench.limits [sqlite|postgres]`: jobs that name limits, beside the same jobs without, in turns.

On PostgreSQL also beside queues of DBOS, which have a rate limiter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.__main__ import SERVER
from bench.growth import BATCH, Place, drain, jobs, opened, vacuum
from bench.peers.environments import CONTESTANTS, Environment, NotInstalled, installed
from bench.plan import ENGINES
from bench.verbs import DBOS, Found, measured
from bench.workload import LOAD_BATCH_SIZE, TENANT, TYPES
from interlock.domain import limits
from interlock.domain.limits import Limit
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Terms
from interlock.storage.postgres.store import PostgresStore
from tests.support.postgres import Postgres, PostgresServer
from tests.support.stores import make_template

ASK: Final = ClaimFilter("worker-0", types=frozenset(TYPES), limit=BATCH)
ACTOR: Final = "user:bench"
HEAD: Final = 100_000
PEER_JOBS: Final = 5_000
RATE: Final = 50  # per second, for the peer
_numbers = count()

Uses = Callable[[], str | None]


class Options(argparse.Namespace):
    engine: str | None
    rounds: int
    batches: int
    scale: float
    only: str


class Case(NamedTuple):
    """Jobs with limits, and the shares of the rates without limits that they must keep."""

    title: str
    claim: float
    enqueue: float
    rules: Sequence[Limit]
    uses: Uses
    before: Callable[[Place, int, bool], Awaitable[None]] | None = None  # the last argument: with limits
    most_cpu: float | None = None
    claim_on_sqlite: float | None = None


class Ratios(NamedTuple):
    """Rates with limits over those without, and the processor time of a job the same way."""

    claim: float
    enqueue: float
    cpu: float


def named(*uses: tuple[str, str | None, dict[str, float]]) -> str:
    return json.dumps([{"name": name, "key": key, "cost": cost} for name, key, cost in uses])


def of_keys(keys: int) -> Uses:
    return lambda: named(("customer", f"k{next(_numbers) % keys}", {}))


def ten_each() -> str:
    return named(("customer", f"k{next(_numbers) // 10}", {}))


async def of_many_keys(place: Place, number: int, limited: bool) -> None:
    """Jobs of many keys, ten each, that a claim has looked at."""
    await enqueue(place, number * 10, ten_each if limited else without)
    await drain(place, ASK, 5)


def without() -> None:
    return None


async def enqueue(place: Place, number: int, uses: Uses) -> None:
    terms = Terms((await place.store.registry.read(TENANT)).version)
    for start in range(0, number, LOAD_BATCH_SIZE):
        some = jobs(min(LOAD_BATCH_SIZE, number - start))
        await place.store.enqueue(TENANT, [job._replace(limits=uses()) for job in some], terms=terms)


async def held(place: Place, number: int, limited: bool, key: str = "") -> None:
    """Jobs of a limit that is on hold, in front of all others; the same rows without limits in the other place."""
    if limited:
        now = await place.store.now()
        await place.store.limits.hold(TENANT, "held", key=key, until=now + 86_400_000_000, actor=ACTOR, reason=None)
    await enqueue(place, number, (lambda: named(("held", key or None, {}))) if limited else without)


ROOM: Final = 1_000_000
SLOTS = Limit("slots", ROOM)
TOKENS = Limit("tokens", units={"tokens": 1e12}, per_seconds=1.0)
CUSTOMER = Limit("customer", 1, keyed=True)

CASES: Sequence[Case] = (
    Case("none used", 0.95, 0.95, (SLOTS,), without),
    Case("one concurrency limit with room", 0.75, 0.75, (SLOTS,), lambda: named(("slots", None, {})), most_cpu=1.3),
    Case("one rate with room", 0.75, 0.75, (TOKENS,), lambda: named(("tokens", None, {"tokens": 1.0})), most_cpu=1.3),
    Case(
        "two limits with room", 0.70, 0.70, (SLOTS, TOKENS),
        lambda: named(("slots", None, {}), ("tokens", None, {"tokens": 1.0})),
    ),
    Case("100k exhausted at the head", 0.90, 0.90, (Limit("held", 1),), without, held),
    Case(
        "100k exhausted at the head, of one key", 0.90, 0.90, (Limit("held", 1, keyed=True),), without,
        partial(held, key="k"),
    ),
    Case("100k keys with 10 jobs each", 0.50, 0.60, (CUSTOMER,), ten_each, of_many_keys, claim_on_sqlite=0.40),
    Case(
        "fair share of 100 keys", 0.95, 0.60, (Limit("customer", ROOM, keyed=True, fair=True),), of_keys(100)
    ),
)  # fmt: skip


async def compare(engine: str, case: Case, options: Options, server: Postgres | None) -> list[Ratios]:
    """Work on the same jobs with and without limits in turns, round by round; CPU is that of claim + complete."""
    found = []
    async with opened(engine, server) as plain, opened(engine, server) as limited:
        for rule in case.rules:
            await limited.store.limits.set(TENANT, limits.check(rule), actor=ACTOR)
        if case.before is not None:
            for place in (plain, limited):
                await case.before(place, round(HEAD * options.scale), place is limited)
        used = {id(place): await processor(place) for place in (plain, limited)}
        for _ in range(options.rounds):
            took, added, cpu = (
                defaultdict[int, float](float),
                defaultdict[int, float](float),
                defaultdict[int, float](float),
            )
            for place, uses in ((plain, without), (limited, case.uses)):
                began = time.perf_counter()
                await enqueue(place, (options.batches // 4 * 4 + 5) * BATCH, uses)
                added[id(place)] = time.perf_counter() - began
                if place.admin is not None:
                    await vacuum(place.admin)
                await drain(place, ASK, 5)
            for _ in range(4):
                for place in (plain, limited):
                    before = used[id(place)]()
                    took[id(place)] += await drain(place, ASK, options.batches // 4)
                    cpu[id(place)] += used[id(place)]() - before
            one, other = id(plain), id(limited)
            found.append(Ratios(took[one] / took[other], added[one] / added[other], cpu[other] / cpu[one]))
    return found


async def beside_dbos(options: Options, server: Postgres, screen: Console) -> None:
    """Run the same jobs with the rate limiter of a DBOS queue, in turns, each on a fresh database."""
    peers = {"Interlock": Environment([sys.executable, str(CONTESTANTS / "limits_on_interlock.py")], {})}
    try:
        peers["DBOS"] = installed(DBOS._replace(script="limits_on_dbos.py"))
    except NotInstalled as error:
        screen.print(f"no ratio to DBOS: {error}")
        return
    found: dict[str, list[Found]] = {name: [] for name in peers}
    for _ in range(options.rounds):
        for name, environment in peers.items():
            found[name].append(await measured(environment, "postgres", server, round(PEER_JOBS * options.scale), RATE))
    table = Table("postgres, a worker with 100 concurrent jobs", *peers, "ratio")
    for what, unit in (("without_per_second", "/s"), ("with_room_per_second", "/s"), ("share_of_rate", "")):
        ours, theirs = (median(one[what] for one in runs) for runs in found.values())
        figures = (f"{number:,.0f} {unit}" if unit else f"{number:.2f}" for number in (ours, theirs))
        table.add_row(what.replace("_", " "), *figures, f"{ours / theirs:.2f}")
    screen.print(table)


async def processor(place: Place) -> Callable[[], float]:
    """Return a clock of the processor time that a place uses: that of this process, and of its one server process."""
    if not isinstance(place.store, PostgresStore):
        return time.process_time
    ((server,),) = await place.store._fetch("select pg_backend_pid()")
    return lambda: time.process_time() + int(Path(f"/proc/{server}/schedstat").read_text().split()[0]) / 1e9


async def measure(engine: str, options: Options, server: Postgres | None, screen: Console) -> bool:
    if server is not None:
        await make_template(server)
    columns = ("limits", "claim + complete", "target", "CPU", "at most", "enqueue", "target")
    table = Table(*columns, title=engine)
    met = True
    for case in CASES:
        if options.only not in case.title:
            continue
        found = await compare(engine, case, options, server)
        claim, enqueued, cpu = (median(ratios) for ratios in zip(*found, strict=True))
        target = case.claim if engine != "sqlite" else case.claim_on_sqlite or case.claim
        line = f"{engine}: {case.title}: {claim:.2f}, CPU {cpu:.2f}, enqueue {enqueued:.2f}"
        screen.print(line, highlight=False)
        met = met and claim >= target and enqueued >= case.enqueue and cpu <= (case.most_cpu or inf)
        most = "" if case.most_cpu is None else f"{case.most_cpu}"
        table.add_row(case.title, f"{claim:.2f}", f"{target}", f"{cpu:.2f}", most, f"{enqueued:.2f}", f"{case.enqueue}")
    screen.print(table)
    return met


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("engine", nargs="?", choices=ENGINES, help="only this engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=100, help="batches of 100 that are timed on each side")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the jobs in front, to see whether all works")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their title, or `dbos`")
    options = parser.parse_args(arguments, namespace=Options())
    screen = Console(width=None if sys.stdout.isatty() else 140)
    screen.print(", ".join(f"{name} {value}" for name, value in machine.facts().items()), highlight=False)
    met = True
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for engine in [options.engine] if options.engine else ENGINES:
            if engine == "sqlite":
                met &= runner.run(measure(engine, options, None, screen))
            else:
                with PostgresServer(settings=SERVER) as server:
                    met &= runner.run(measure(engine, options, server, screen))
                    if options.only in "dbos":
                        runner.run(beside_dbos(options, server, screen))
    screen.print(f"load at the end {os.getloadavg()[0]:.1f}", highlight=False)
    screen.print("every target is met" if met else "not every target is met")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
