"""Procrastinate: on_procrastinate.py DSN bulk|single|drain|start|produce JOBS."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time

import procrastinate
import psycopg
import uvloop

TEXT = "x" * 71
BATCH_SIZE = 1000


async def main(dsn: str, what: str, jobs: int) -> None:
    done = 0
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=4, max_size=20))

    @app.task
    async def noop(number: int, text: str) -> None:
        nonlocal done
        done += 1

    @app.task
    async def timed(number: int, text: str) -> None:
        print(number, time.monotonic(), flush=True)

    async with app.open_async():
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            found = await connection.execute("select to_regclass('procrastinate_jobs') is not null")
            if not (await found.fetchone())[0]:
                await app.schema_manager.apply_schema_async()
        if what in ("drain", "start"):
            print("ready", flush=True)
        if what == "drain":
            await asyncio.to_thread(sys.stdin.readline)
            await app.run_worker_async(wait=False, concurrency=100, install_signal_handlers=False)
            print(json.dumps({"done": done, "ended": time.monotonic()}))
        elif what == "start":
            await app.run_worker_async(install_signal_handlers=False)
        elif what == "produce":
            for number in range(jobs):
                await asyncio.sleep(random.uniform(0.01, 0.03))
                await timed.defer_async(number=number, text=TEXT)
                print(number, time.monotonic(), flush=True)
        else:
            began = time.perf_counter()
            if what == "bulk":
                for start in range(0, jobs, BATCH_SIZE):
                    numbers = range(start, min(start + BATCH_SIZE, jobs))
                    await noop.batch_defer_async(*({"number": number, "text": TEXT} for number in numbers))
            else:
                for number in range(jobs):
                    await noop.defer_async(number=number, text=TEXT)
            print(json.dumps({"seconds": time.perf_counter() - began}))


logging.getLogger("procrastinate").setLevel(logging.ERROR)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
