"""PgQueuer: on_pgqueuer.py DSN bulk|single|drain|start|produce JOBS."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import random
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


def body(number: int) -> bytes:
    return json.dumps({"number": number, "text": TEXT}).encode()


async def main(dsn: str, what: str, jobs: int) -> None:
    done = 0
    async with asyncpg.create_pool(dsn, min_size=4, max_size=8) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        if await pool.fetchval("select to_regclass('pgqueuer')") is None:
            await queries.install()
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job) -> None:
            nonlocal done
            done += 1

        @worker.entrypoint("timed")
        async def timed(job) -> None:
            print(json.loads(job.payload)["number"], time.monotonic(), flush=True)

        if what in ("drain", "start"):
            print("ready", flush=True)
        if what == "drain":
            await asyncio.to_thread(sys.stdin.readline)
            await worker.qm.run(batch_size=100, mode=QueueExecutionMode.drain)
            print(json.dumps({"done": done, "ended": time.monotonic()}))
        elif what == "start":
            await worker.qm.run()
        elif what == "produce":
            for number in range(jobs):
                await asyncio.sleep(random.uniform(0.01, 0.03))
                await queries.enqueue("timed", body(number), 0)
                print(number, time.monotonic(), flush=True)
        else:
            began = time.perf_counter()
            if what == "bulk":
                for start in range(0, jobs, BATCH_SIZE):
                    bodies = [body(number) for number in range(start, min(start + BATCH_SIZE, jobs))]
                    await queries.enqueue(["noop"] * len(bodies), bodies, [0] * len(bodies))
            else:
                for number in range(jobs):
                    await queries.enqueue("noop", body(number), 0)
            print(json.dumps({"seconds": time.perf_counter() - began}))


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
