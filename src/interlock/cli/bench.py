"""`interlock bench`: throughput and latency on this machine, on a temporary file or a given database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

from cyclopts import Parameter

from interlock import assemble
from interlock.cli import output
from interlock.cli.runner import COMMON, Common, guard, loop_factory
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.errors import Error
from interlock.sdk.app import App
from interlock.sdk.tasks import Task
from interlock.worker.loop import Worker

STARTS: Final = 100
BATCH_SIZE: Final = 1000
APART_SECONDS: Final = 0.02
MAX_START_SECONDS: Final = 60.0
TEXT: Final = "x" * 71


def bench(
    *,
    jobs: Annotated[int, Parameter(help="number of jobs to enqueue and drain")] = 10_000,
    concurrency: Annotated[int, Parameter(help="jobs that run concurrently")] = 100,
    common: Common = COMMON,
) -> None:
    """Measure enqueueing and draining of empty jobs, and the time until a job starts.

    Uses a new SQLite file in the temporary directory, or a separate tenant of --database. All jobs of the benchmark are
    deleted afterwards.
    """

    async def command() -> dict[str, Any]:
        async with _engine(common) as (engine, who):
            try:
                return await _measure(LocalClient(engine, who), jobs, concurrency)
            finally:
                await _tidy(engine, who)

    logging.getLogger("interlock").setLevel(logging.ERROR)
    found = guard(common, command, loop_factory=loop_factory())
    if common.json:
        output.print_json(found)
        return
    output.facts(
        {
            "enqueue": f"{found['enqueued_per_second']:,.0f} jobs/s",
            "drain": f"{found['drained_per_second']:,.0f} jobs/s by one worker",
            "start": f"{found['start_ms_p50']:.2f} ms after the commit (p95 {found['start_ms_p95']:.2f} ms)",
        }
    )


@contextlib.asynccontextmanager
async def _engine(common: Common) -> AsyncIterator[tuple[Engine, Principal]]:
    """Open an engine and a random tenant name that no other tenant has."""
    who = local(f"bench-{secrets.token_hex(6)}")
    if common.database is not None:
        async with assemble.open_engine(common.database, create=False) as engine:
            yield engine, who
        return
    with TemporaryDirectory(prefix="interlock-bench-") as directory:
        async with assemble.open_engine(f"{assemble.SQLITE}{Path(directory) / 'bench.db'}") as engine:
            yield engine, who


async def _measure(client: LocalClient, jobs: int, concurrency: int) -> dict[str, Any]:
    async def connect() -> Client:
        return client

    app, began = App(connect), asyncio.Queue[float]()

    @app.task
    async def noop(number: int, text: str) -> None:
        pass

    @app.task
    async def start() -> None:
        began.put_nowait(time.perf_counter())

    seconds = await _enqueue(noop, jobs)
    since = time.perf_counter()
    if await Worker(app, concurrency=concurrency, prefetch=concurrency).run(drain=True) != jobs:
        raise Error("not all jobs were run")
    drained = time.perf_counter() - since
    taken = await _starts(app, start, began)
    return {
        "jobs": jobs,
        "enqueued_per_second": jobs / seconds,
        "drained_per_second": jobs / drained,
        "start_ms_p50": median(taken),
        "start_ms_p95": quantiles(taken, n=20)[-1],
    }


async def _enqueue(noop: Task[..., None], jobs: int) -> float:
    since = time.perf_counter()
    with output.progress("added") as report:
        for first in range(0, jobs, BATCH_SIZE):
            numbers = range(first, min(first + BATCH_SIZE, jobs))
            await noop.enqueue_many({"number": number, "text": TEXT} for number in numbers)
            report(numbers.stop)
    return time.perf_counter() - since


async def _starts(app: App, start: Task[..., None], began: asyncio.Queue[float]) -> list[float]:
    """Return the milliseconds from the response of an enqueue to the first line of the task, with an idle worker."""
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    taken = []
    try:
        for _ in range(STARTS):
            await asyncio.sleep(APART_SECONDS)
            await start.enqueue()
            committed = time.perf_counter()
            async with asyncio.timeout(MAX_START_SECONDS):
                taken.append((await began.get() - committed) * 1000)
    finally:
        worker.stop()
        await working
    return taken


async def _tidy(engine: Engine, who: Principal) -> None:
    with output.progress("deleted") as report:
        deleted = 0
        while True:
            done = await engine.retention.prune(who, 0, limit=BATCH_SIZE)
            deleted += done.deleted
            report(deleted)
            if not done.more:
                return
