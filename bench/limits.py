"""`python -m bench.limits [sqlite|postgres]`: jobs that name limits, beside the same jobs without, in turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from statistics import median
from typing import Final, NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from bench.__main__ import SERVER
from bench.growth import BATCH, Place, drain, jobs, opened, vacuum
from bench.plan import ENGINES
from bench.workload import LOAD_BATCH_SIZE, TENANT, TYPES
from interlock.domain import limits
from interlock.domain.limits import Limit
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Terms
from tests.support.postgres import Postgres, PostgresServer
from tests.support.stores import make_template

ASK: Final = ClaimFilter("worker-0", types=frozenset(TYPES), limit=BATCH)
ACTOR: Final = "user:bench"
HEAD: Final = 100_000
_numbers = count()

Uses = Callable[[], str | None]


class Options(argparse.Namespace):
    engine: str | None
    rounds: int
    batches: int
    scale: float
    only: str


class Case(NamedTuple):
    """Jobs with limits, and the share of the rate without limits that they must keep."""

    title: str
    target: float
    enqueue_target: float
    rules: Sequence[Limit]
    uses: Uses
    before: Callable[[Place, int], Awaitable[None]] | None = None


def named(*uses: tuple[str, str | None, dict[str, float]]) -> str:
    return json.dumps([{"name": name, "key": key, "cost": cost} for name, key, cost in uses])


def of_keys(keys: int) -> Uses:
    return lambda: named(("customer", f"k{next(_numbers) % keys}", {}))


def ten_each() -> str:
    return named(("customer", f"k{next(_numbers) // 10}", {}))


async def of_many_keys(place: Place, number: int) -> None:
    """Jobs of many keys, ten each, that a claim has looked at."""
    await enqueue(place, number * 10, ten_each)
    await drain(place, ASK, 5)


async def enqueue(place: Place, number: int, uses: Uses) -> None:
    terms = Terms((await place.store.registry.read(TENANT)).version)
    for start in range(0, number, LOAD_BATCH_SIZE):
        some = jobs(min(LOAD_BATCH_SIZE, number - start))
        await place.store.enqueue(TENANT, [job._replace(limits=uses()) for job in some], terms=terms)


async def held(place: Place, number: int, key: str) -> None:
    """Jobs of a limit that is on hold, in front of all others."""
    now = await place.store.now()
    await place.store.limits.hold(TENANT, "held", key=key, until=now + 86_400_000_000, actor=ACTOR, reason=None)
    await enqueue(place, number, lambda: named(("held", key or None, {})))


ROOM: Final = 1_000_000
SLOTS = Limit("slots", ROOM)
TOKENS = Limit("tokens", units={"tokens": 1e12}, per_seconds=1.0)
CUSTOMER = Limit("customer", 1, keyed=True)

CASES: Sequence[Case] = (
    Case("none used", 0.95, 0.95, (SLOTS,), lambda: None),
    Case("one concurrency limit with room", 0.75, 0.75, (SLOTS,), lambda: named(("slots", None, {}))),
    Case("one rate with room", 0.75, 0.75, (TOKENS,), lambda: named(("tokens", None, {"tokens": 1.0}))),
    Case(
        "two limits with room", 0.70, 0.70, (SLOTS, TOKENS),
        lambda: named(("slots", None, {}), ("tokens", None, {"tokens": 1.0})),
    ),
    Case(
        "100k exhausted at the head", 0.90, 0.90, (Limit("held", 1),), lambda: None,
        lambda place, size: held(place, size, ""),
    ),
    Case(
        "100k exhausted at the head, of one key", 0.90, 0.90, (Limit("held", 1, keyed=True),), lambda: None,
        lambda place, size: held(place, size, "k"),
    ),
    Case("100k keys with 10 jobs each", 0.40, 0.60, (CUSTOMER,), ten_each, of_many_keys),
    Case(
        "fair share of 100 keys", 0.40, 0.60, (Limit("customer", ROOM, keyed=True, fair=True),), of_keys(100)
    ),
)  # fmt: skip


async def compare(
    engine: str, case: Case, options: Options, server: Postgres | None
) -> tuple[list[float], list[float]]:
    """The rates of claim + complete, and of enqueue, over those of the same jobs without limits, round by round."""
    claims, enqueues = [], []
    async with opened(engine, server) as plain, opened(engine, server) as limited:
        for rule in case.rules:
            await limited.store.limits.set(TENANT, limits.check(rule), actor=ACTOR)
        if case.before is not None:
            await case.before(limited, round(HEAD * options.scale))
        for _ in range(options.rounds):
            spent = {id(plain): 0.0, id(limited): 0.0}
            added = {id(plain): 0.0, id(limited): 0.0}
            for place, uses in ((plain, lambda: None), (limited, case.uses)):
                began = time.perf_counter()
                await enqueue(place, (options.batches // 4 * 4 + 5) * BATCH, uses)
                added[id(place)] = time.perf_counter() - began
                if place.admin is not None:
                    await vacuum(place.admin)
                await drain(place, ASK, 5)
            for _ in range(4):
                for place in (plain, limited):
                    spent[id(place)] += await drain(place, ASK, options.batches // 4)
            claims.append(spent[id(plain)] / spent[id(limited)])
            enqueues.append(added[id(plain)] / added[id(limited)])
    return claims, enqueues


async def measure(engine: str, options: Options, server: Postgres | None, screen: Console) -> bool:
    if server is not None:
        await make_template(server)
    table = Table("limits", "claim + complete", "target", "enqueue", "target", title=engine)
    met = True
    for case in CASES:
        if options.only not in case.title:
            continue
        claims, enqueues = map(median, await compare(engine, case, options, server))
        screen.print(f"{engine}: {case.title}: {claims:.2f}, enqueue {enqueues:.2f}", highlight=False)
        met = met and claims >= case.target and enqueues >= case.enqueue_target
        table.add_row(case.title, f"{claims:.2f}", f"{case.target}", f"{enqueues:.2f}", f"{case.enqueue_target}")
    screen.print(table)
    return met


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("engine", nargs="?", choices=ENGINES, help="only this engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=100, help="batches of 100 that are timed on each side")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the jobs in front, to see whether all works")
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args(arguments, namespace=Options())
    screen = Console(width=None if sys.stdout.isatty() else 140)
    met = True
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for engine in [options.engine] if options.engine else ENGINES:
            if engine == "sqlite":
                met &= runner.run(measure(engine, options, None, screen))
            else:
                with PostgresServer(settings=SERVER) as server:
                    met &= runner.run(measure(engine, options, server, screen))
    screen.print("every target is met" if met else "not every target is met")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
