"""`python -m bench.shards`: two shards beside one database, one that stalls, and a tenant that moves between them."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from statistics import median

import uvloop
from rich.console import Console
from rich.table import Table

from bench.__main__ import running_server
from bench.plan import BenchFailed
from bench.workload import TYPES, payload
from interlock import wire
from interlock.domain.decide import CompleteJob
from interlock.domain.job import NewJob, Receipt
from interlock.domain.policy import ClaimFilter
from interlock.errors import Unavailable
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.add_shard import add_shard
from interlock.storage.shards.factory import POOL, open_sharded_store
from interlock.storage.shards.tenant_move import Moved, Mover
from tests.support.postgres import OWNER, Postgres
from tests.support.shards import SHARDS, Link, resident, wire_to
from tests.support.stores import APP_LOGIN, fresh_database, make_template

BATCH = 100
TARGET = 0.9
# Two tenants for each shard; on one database they are all together.
TENANTS = [resident(shard, f"bench {i}") for i in range(2) for shard in SHARDS]


async def work_through(store: Store, tenants: Sequence[str], jobs: int) -> float:
    """Jobs a second that are enqueued, claimed and completed, each tenant's by a loop of its own."""

    async def one(tenant: str) -> int:
        done = 0
        ask = ClaimFilter("worker", types=frozenset(TYPES), limit=BATCH)
        for start in range(0, jobs, BATCH):
            some = range(start, min(start + BATCH, jobs))
            new = [NewJob(wire.new_id(), TYPES[i % len(TYPES)], payload(i)) for i in some]
            await store.enqueue(tenant, new)
            leased = await store.claim(tenant, ask)
            orders = [CompleteJob(job.id, job.fence, "worker") for job in leased]
            done += sum(isinstance(receipt, Receipt) for receipt in await store.carry_out(tenant, orders))
        return done

    begun = time.perf_counter()
    done = sum(await asyncio.gather(*map(one, tenants)))
    rate = done / (time.perf_counter() - begun)
    if done != len(tenants) * jobs:
        raise BenchFailed(f"{done} jobs were done, not {len(tenants) * jobs}")
    return rate


@asynccontextmanager
async def fresh_shards(server: Postgres) -> AsyncIterator[dict[str, str]]:
    """Two new databases by the names of their shards, dropped afterwards."""
    async with AsyncExitStack() as stack:
        databases = {shard: await stack.enter_async_context(fresh_database(server)) for shard in SHARDS}
        for shard in SHARDS:
            await add_shard({name: server.dsn(database, user=OWNER) for name, database in databases.items()}, shard)
        yield databases


@asynccontextmanager
async def two_shards(server: Postgres, *, wired: bool = False) -> AsyncIterator[tuple[Store, Link]]:
    """A router over two fresh databases, the second of them at the end of a wire, if that is wanted."""
    async with AsyncExitStack() as stack:
        databases = await stack.enter_async_context(fresh_shards(server))
        addresses = {name: server.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
        wire, near = await stack.enter_async_context(wire_to(addresses[SHARDS[1]]))
        router = await open_sharded_store({**addresses, SHARDS[1]: near} if wired else addresses)
        stack.push_async_callback(router.close)
        stack.callback(wire.restore)
        yield router, wire


async def one_database(server: Postgres, jobs: int) -> float:
    async with fresh_database(server) as name:
        # As many connections as both shards have together.
        store = await PostgresStore.open(server.dsn(name, user=APP_LOGIN), size=POOL * len(SHARDS))
        try:
            await work_through(store, TENANTS, BATCH)
            return await work_through(store, TENANTS, jobs)
        finally:
            await store.close()


async def both_shards(server: Postgres, jobs: int) -> float:
    async with two_shards(server) as (router, _):
        await work_through(router, TENANTS, BATCH)
        return await work_through(router, TENANTS, jobs)


async def beside(server: Postgres, jobs: int, *, stalled: bool) -> float:
    """What the tenants of the first shard get done while those of the second ask, in vain if it has stalled."""
    async with two_shards(server, wired=True) as (router, wire):
        here, there = TENANTS[0::2], TENANTS[1::2]
        await work_through(router, TENANTS, BATCH)  # everybody has been met

        async def ask(tenant: str) -> None:
            while True:
                with suppress(Unavailable):
                    await router.claim(tenant, ClaimFilter("worker", limit=1))
                await asyncio.sleep(0.01)

        if stalled:
            wire.stall()
        asking = [asyncio.create_task(ask(tenant)) for tenant in there]
        try:
            return await work_through(router, here, jobs)
        finally:
            wire.restore()
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def moved(server: Postgres, waiting: int) -> tuple[Moved, float, float]:
    """What came along with a tenant that has so many waiting jobs, how long it took, and how long a producer waited."""
    await make_template(server)
    async with fresh_shards(server) as databases:
        superusers = {name: server.dsn(database) for name, database in databases.items()}
        router = await open_sharded_store(
            {name: server.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
        )
        tenant, target = TENANTS[0], SHARDS[1]
        answered: list[float] = []
        try:
            for start in range(0, waiting, 1_000):
                some = range(start, min(start + 1_000, waiting))
                await router.enqueue(tenant, [NewJob(wire.new_id(), TYPES[0], payload(i)) for i in some])

            async def produce() -> None:
                while True:
                    await router.enqueue(tenant, [NewJob(wire.new_id(), TYPES[0], payload(0))])
                    answered.append(time.perf_counter())
                    await asyncio.sleep(0.005)

            producing = asyncio.create_task(produce())
            begun = time.perf_counter()
            done = await Mover(superusers).move(tenant, target)
            took = time.perf_counter() - begun
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
        finally:
            await router.close()
    return done, took, max(later - earlier for earlier, later in pairwise(answered))


async def measure(server: Postgres, rounds: int, jobs: int) -> list[tuple[str, float, float]]:
    """Title, the rate to compare with, and the rate: medians of rounds in which they take turns."""
    await make_template(server)
    one, two, calm, stalled = [], [], [], []
    for _ in range(rounds):
        one.append(await one_database(server, jobs))
        two.append(await both_shards(server, jobs))
        calm.append(await beside(server, jobs, stalled=False))
        stalled.append(await beside(server, jobs, stalled=True))
    return [
        ("two shards, beside one database", median(one), median(two)),
        ("beside a shard that has stalled, beside one that answers", median(calm), median(stalled)),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.shards", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each measurement (default: 3)")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of each of four tenants (default: 10000)")
    parser.add_argument("--move", type=int, metavar="JOBS", help="only move a tenant with so many waiting jobs")
    options = parser.parse_args(arguments)
    with running_server() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.move is not None:
            done, took, pause = runner.run(moved(server, options.move))
            print(f"{done.jobs} jobs moved in {took:.1f} s; a producer waited for {pause:.2f} s at the longest")
            return 0
        found = runner.run(measure(server, options.rounds, options.jobs))
    table = Table("", "jobs/s", "jobs/s", "ratio", "target")
    for title, base, rate in found:
        table.add_row(title, f"{base:,.0f}", f"{rate:,.0f}", f"{rate / base:.2f}", f"{TARGET}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0 if all(rate / base >= TARGET for _, base, rate in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
