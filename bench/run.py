"""Runs the plan: a fresh database for every run, bare and ours in turns, everything checked afterwards."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import asyncpg

from bench.bare import BarePostgres, BareSQLite
from bench.ours import Ours
from bench.plan import EngineName, Measurement, Side
from bench.workload import register_agents
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, fresh_database

TURNS = 4
WARM_BATCHES = 4
WARM_BATCH = 50
WARM_SINGLES = 64


class Rates(NamedTuple):
    """Jobs per second of one run of both; bare is None where there is no such thing."""

    bare: float | None
    ours: float


Told = Callable[[int, Measurement, Rates], None]


class Both(NamedTuple):
    """The two sides of one run, bare first, and what tidies their database up after loading."""

    sides: Sequence[Side]
    settle: str | None = None
    dsn: str = ""


async def run(
    engine: EngineName,
    plan: Sequence[Measurement],
    *,
    rounds: int,
    jobs: int,
    server: Postgres | None,
    reported: Told,
) -> dict[str, list[Rates]]:
    """The rates of every round by the key of the measurement."""
    found: dict[str, list[Rates]] = {what.key: [] for what in plan}
    for number in range(1, rounds + 1):
        for what in plan:
            async with _open(engine, what, server) as both:
                rates = await _measure(what, what.jobs(jobs), both)
            found[what.key].append(rates)
            reported(number, what, rates)
    return found


@asynccontextmanager
async def _open(engine: EngineName, what: Measurement, server: Postgres | None) -> AsyncIterator[Both]:
    opened = _open_sqlite(what) if server is None else _open_postgres(what, server)
    async with opened as both:
        yield both


@asynccontextmanager
async def _open_sqlite(what: Measurement) -> AsyncIterator[Both]:
    with TemporaryDirectory(prefix="interlock-bench-") as name:
        store = await SQLiteStore.open(str(Path(name) / "ours.db"))
        await register_agents(store)
        bare = BareSQLite(Path(name) / "bare.db")
        try:
            yield Both([bare, Ours(store)] if what.has_bare else [Ours(store)])
        finally:
            bare.close()
            await store.close()


@asynccontextmanager
async def _open_postgres(what: Measurement, server: Postgres) -> AsyncIterator[Both]:
    async with fresh_database(server) as name:
        store = await PostgresStore.open(server.dsn(name, user=APP_LOGIN), size=what.connections)
        await register_agents(store)
        bare = BarePostgres()
        try:
            await bare.open(server.dsn(name, user=OWNER), what.connections)
            sides: list[Side] = [bare, Ours(store)] if what.has_bare else [Ours(store)]
            yield Both(sides, settle="vacuum analyze", dsn=server.dsn(name))
        finally:
            await bare.close()
            await store.close()


async def _measure(what: Measurement, count: int, both: Both) -> Rates:
    """Both sides take turns, a part of the work each time: what disturbs the machine then disturbs both."""
    for side in both.sides:
        await _make_ready(what, count, side)
    if both.settle is not None:
        await _settle(both)
    if what.drains:
        for side in both.sides:
            await side.drain(min(what.batch, WARM_BATCH), what.connections, WARM_BATCHES * what.connections)
    seconds = [0.0] * len(both.sides)
    done = [0] * len(both.sides)
    gc.collect()
    gc.freeze()  # so that nobody pays for walking over the jobs that lie ready
    try:
        for commit_seq in range(TURNS):
            for i, side in enumerate(both.sides):
                began = time.perf_counter()
                jobs = await _one_turn(what, count, side, commit_seq)
                seconds[i] += time.perf_counter() - began
                done[i] += jobs
    finally:
        gc.unfreeze()
    for side in both.sides:
        await side.check(drained=what.drains)
    rates = [jobs / spent for jobs, spent in zip(done, seconds, strict=True)]
    return Rates(rates[0] if what.has_bare else None, rates[-1])


async def _make_ready(what: Measurement, count: int, side: Side) -> None:
    """Have the jobs at hand, the statements prepared and the plans made."""
    if what.drains:
        warm = WARM_BATCHES * what.connections * min(what.batch, WARM_BATCH)
        await side.load(count + warm)
        return
    warm = WARM_BATCH if what.batch > 1 else WARM_SINGLES
    side.prepare(warm)
    await side.enqueue(what, 0, warm)
    side.prepare(count)


async def _settle(both: Both) -> None:
    connection = await asyncpg.connect(both.dsn)
    try:
        await connection.execute(both.settle or "")
    finally:
        await connection.close()


async def _one_turn(what: Measurement, count: int, side: Side, commit_seq: int) -> int:
    if what.drains:
        tickets = None if commit_seq == TURNS - 1 else count // what.batch // TURNS
        return await side.drain(what.batch, what.connections, tickets)
    batches = count // what.batch
    start, stop = (batches * t // TURNS * what.batch for t in (commit_seq, commit_seq + 1))
    await side.enqueue(what, start, stop)
    return stop - start
