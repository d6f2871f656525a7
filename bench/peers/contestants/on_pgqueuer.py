"""Drain no-op jobs with PgQueuer: on_pgqueuer.py DSN JOBS."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

TEXT = "x" * 71
BATCH_SIZE = 1000


async def main(dsn: str, jobs: int) -> None:
    done = 0
    async with asyncpg.create_pool(dsn, min_size=4, max_size=8) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        for start in range(0, jobs, BATCH_SIZE):
            numbers = range(start, min(start + BATCH_SIZE, jobs))
            bodies = [json.dumps({"number": number, "text": TEXT}).encode() for number in numbers]
            await queries.enqueue(["noop"] * len(bodies), bodies, [0] * len(bodies))
        await pool.execute("vacuum analyze")
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job) -> None:
            nonlocal done
            done += 1

        began = time.perf_counter()
        await worker.qm.run(batch_size=100, mode=QueueExecutionMode.drain)
        seconds = time.perf_counter() - began
        left = await pool.fetchval("select count(*) from pgqueuer")
    print(json.dumps({"done": done - left, "seconds": seconds}))


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], int(sys.argv[2])))
