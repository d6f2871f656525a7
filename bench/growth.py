"""`python -m bench.growth [sqlite|postgres]`: claim + complete in a queue that has grown, beside an empty one."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from bench.__main__ import SERVER
from bench.plan import ENGINES, BenchFailed
from bench.workload import LOAD_BATCH_SIZE, TENANT, TYPES, payload
from interlock import wire
from interlock.domain.decide import CompleteJob
from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.postgres import Postgres, PostgresServer
from tests.support.stores import APP_LOGIN, fresh_database, make_template

BATCH = 100
BATCH_SIZE = 500_000
ASK = ClaimFilter("worker-0", types=frozenset(TYPES), limit=BATCH)


class Options(argparse.Namespace):
    engine: str | None
    rounds: int
    batches: int
    scale: float
    only: str


class Grown(NamedTuple):
    """A queue that has grown in one way, and the share of the empty queue's rate it must keep."""

    title: str
    size: int  # on PostgreSQL; a tenth of it on SQLite
    target: float
    grow: Callable[[Place, int], Awaitable[None]]
    ask: ClaimFilter = ASK._replace(repositories=frozenset({"acme/open"}))


class Place(NamedTuple):
    store: Store
    admin: str | None  # where a superuser of PostgreSQL connects


def jobs(count: int, **fields: object) -> list[NewJob]:
    return [NewJob(wire.new_id(), TYPES[i % 5], payload(i))._replace(**fields) for i in range(count)]  # type: ignore[arg-type]


async def enqueue(store: Store, count: int, **fields: object) -> None:
    for start in range(0, count, LOAD_BATCH_SIZE):
        await store.enqueue(TENANT, jobs(min(LOAD_BATCH_SIZE, count - start), **fields))


async def waiting(place: Place, count: int) -> None:
    await enqueue(place.store, count)


async def finished(place: Place, count: int) -> None:
    """Ended jobs; on PostgreSQL behind the verbs' back and without history: the millions only have to be there."""
    if place.admin is None:
        for start in range(0, count, LOAD_BATCH_SIZE):
            await enqueue(place.store, min(LOAD_BATCH_SIZE, count - start))
            while leased := await place.store.claim(TENANT, ASK):
                await place.store.carry_out(TENANT, [CompleteJob(j.id, j.fence, "worker-0") for j in leased])
        return
    await enqueue(place.store, 1)
    connection = await asyncpg.connect(place.admin)
    try:
        await connection.execute("set session_replication_role = replica")
        # What has ended never changes: room for changes beside it would only fill the disk.
        room = await connection.fetchval(
            "select option_value from pg_class, pg_options_to_table(reloptions) "
            "where oid = 'interlock.job'::regclass and option_name = 'fillfactor'"
        )
        await connection.execute("alter table interlock.job set (fillfactor = 100)")
        add = await connection.prepare(
            """insert into interlock.job (tenant, id, type, status, priority, eligibility_key, base, run_at, attempt,
                 max_attempts, fence, version, releases, created_at, updated_at, started_at, run_started_at,
                 finished_at, previous, verb, actor, created_by, requires, tags, payload, head)
               select j.tenant, ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, j.type, 'succeeded', 0,
                 j.eligibility_key, j.base, j.run_at, 1, 3, 1, 3, 0,
                 j.created_at, j.updated_at, j.updated_at, j.updated_at,
                 j.updated_at, 'running', 'complete', 'worker:w', j.created_by, '{}', '{}', j.payload, j.head
               from (select * from interlock.job where tenant = $1 limit 1) j,
                 generate_series($2::bigint, $3::bigint) n"""
        )
        for start in range(0, count, BATCH_SIZE):  # ids rise with time, as those of real jobs do
            await add.fetch(TENANT, start + 1, min(start + BATCH_SIZE, count), timeout=1800)
        await connection.execute(f"alter table interlock.job set (fillfactor = {room or 100})")
    finally:
        await connection.close()


async def one_agent(place: Place, count: int) -> None:
    await place.store.registry.set_agent(TENANT, Agent("bot", "busy", max_concurrency=1))
    await enqueue(place.store, 1, agent_kind="bot", agent_id="busy", type="elsewhere")
    await place.store.claim(TENANT, ClaimFilter("holder", types=frozenset({"elsewhere"}), lease_seconds=3600))
    await enqueue(place.store, count, agent_kind="bot", agent_id="busy")


async def tomorrow(place: Place, count: int) -> None:
    await enqueue(place.store, count, delay_seconds=86_400.0)


async def for_nobody(place: Place, count: int) -> None:
    """A quarter each that needs a capability, another repository, an affinity key nobody names, and a paused type."""
    await enqueue(place.store, count // 4, requires=("unobtainium",))
    await enqueue(place.store, count // 4, repository="acme/secret")
    await enqueue(place.store, count // 4, affinity_key="elsewhere")
    await place.store.registry.pause(TENANT, "paused", actor="user:bench", reason=None)
    await enqueue(place.store, count // 4, type="paused")


async def apart(place: Place, count: int) -> None:
    """Half with a repository and a key of its own each, half with a capability of its own each."""
    for start in range(0, count // 2, LOAD_BATCH_SIZE):
        some = list(enumerate(jobs(min(LOAD_BATCH_SIZE, count // 2 - start)), start))
        away = [job._replace(repository=f"acme/{i}", affinity_key=f"key-{i}") for i, job in some]
        await place.store.enqueue(TENANT, away)
        again = jobs(len(some))
        await place.store.enqueue(
            TENANT, [job._replace(requires=(f"skill-{i}",)) for (i, _), job in zip(some, again, strict=True)]
        )


GROWN: Sequence[Grown] = (
    Grown("1M queued", 1_000_000, 0.85, waiting),
    Grown("10M finished", 10_000_000, 0.85, finished),
    Grown("one agent with 100k queued at the head", 100_000, 0.85, one_agent),
    Grown("100k due tomorrow", 100_000, 0.85, tomorrow),
    Grown("100k that nobody may claim in front", 100_000, 0.75, for_nobody),
    Grown("100k that nobody may claim, each for another worker", 100_000, 0.75, apart,
          ASK._replace(repositories=frozenset({"acme/open"}), affinity_keys=None)),
)  # fmt: skip


async def drain(place: Place, ask: ClaimFilter, batches: int) -> float:
    """Seconds for so many batches."""
    began = time.perf_counter()
    for _ in range(batches):
        leased = await place.store.claim(TENANT, ask)
        if len(leased) != BATCH:
            raise BenchFailed(f"{len(leased)} jobs were granted, not {BATCH}")
        await place.store.carry_out(TENANT, [CompleteJob(j.id, j.fence, "worker-0") for j in leased])
    return time.perf_counter() - began


async def compare(engine: str, grown: Grown, size: int, options: Options, server: Postgres | None) -> list[float]:
    """The rate of the grown queue over that of an empty one, working in turns, round by round."""
    shares = []
    async with opened(engine, server) as empty, opened(engine, server) as full:
        await grown.grow(full, size)
        for _ in range(options.rounds):
            for place in (empty, full):
                await enqueue(place.store, (options.batches // 4 * 4 + 5) * BATCH)
                if place.admin is not None:
                    await vacuum(place.admin)
                await drain(place, grown.ask, 5)
            spent = {id(empty): 0.0, id(full): 0.0}
            for _ in range(4):
                for place in (empty, full):
                    spent[id(place)] += await drain(place, grown.ask, options.batches // 4)
            shares.append(spent[id(empty)] / spent[id(full)])
    return shares


async def vacuum(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("vacuum analyze", timeout=1800)
    finally:
        await connection.close()


@asynccontextmanager
async def opened(engine: str, server: Postgres | None) -> AsyncIterator[Place]:
    if server is None:
        with TemporaryDirectory(prefix="interlock-growth-") as directory:
            store: Store = await SQLiteStore.open(str(Path(directory) / "interlock.db"))
            try:
                yield Place(store, None)
            finally:
                await store.close()
        return
    async with fresh_database(server) as name:
        store = await PostgresStore.open(server.dsn(name, user=APP_LOGIN), size=1)
        try:
            yield Place(store, server.dsn(name))
        finally:
            await store.close()


async def measure(engine: str, options: Options, server: Postgres | None, screen: Console) -> bool:
    if server is not None:
        await make_template(server)
    table = Table("growth", "rounds", "share of the empty queue's rate", "target", title=engine)
    met = True
    for grown in GROWN:
        if options.only not in grown.title:
            continue
        size = round(grown.size * options.scale / (1 if server is not None else 10))
        shares = await compare(engine, grown, size, options, server)
        screen.print(f"{engine}: {grown.title} ({size:,}): {', '.join(f'{s:.2f}' for s in shares)}", highlight=False)
        met = met and median(shares) >= grown.target
        table.add_row(f"{grown.title} ({size:,})", str(len(shares)), f"{median(shares):.2f}", f"{grown.target}")
    screen.print(table)
    return met


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("engine", nargs="?", choices=ENGINES, help="only this engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=100, help="batches of 100 that are timed on each side")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the growth, to see whether all works")
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
