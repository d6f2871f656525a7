"""Drain no-op jobs with Procrastinate: on_procrastinate.py DSN JOBS."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import procrastinate
import psycopg
import uvloop

TEXT = "x" * 71
BATCH_SIZE = 1000


async def main(dsn: str, jobs: int) -> None:
    done = 0
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=4, max_size=20))

    @app.task
    async def noop(number: int, text: str) -> None:
        nonlocal done
        done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, jobs, BATCH_SIZE):
            numbers = range(start, min(start + BATCH_SIZE, jobs))
            await noop.batch_defer_async(*({"number": number, "text": TEXT} for number in numbers))
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute("vacuum analyze")
        began = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False)
        seconds = time.perf_counter() - began
    print(json.dumps({"done": done, "seconds": seconds}))


logging.getLogger("procrastinate").setLevel(logging.ERROR)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], int(sys.argv[2])))
