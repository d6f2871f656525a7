"""Drain no-op jobs with Interlock's worker, on PostgreSQL or SQLite: on_interlock.py URL JOBS."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import asyncpg
import uvloop

import interlock
from interlock.worker.loop import Worker

TEXT = "x" * 71


async def main(url: str, jobs: int) -> None:
    app, done = interlock.App(url), 0

    @app.task
    async def noop(number: int, text: str) -> None:
        nonlocal done
        done += 1

    async with app:
        await noop.enqueue_many({"number": number, "text": TEXT} for number in range(jobs))
        if url.startswith("postgresql"):
            await _vacuum(url)
        began = time.perf_counter()
        await Worker(app, concurrency=100, prefetch=400).run(drain=True)
        seconds = time.perf_counter() - began
    print(json.dumps({"done": done, "seconds": seconds}))


async def _vacuum(dsn: str) -> None:
    """As all contestants on PostgreSQL do: plans made for empty tables would tell of something else."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()


logging.getLogger("interlock").setLevel(logging.ERROR)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], int(sys.argv[2])))
