"""Interlock: on_interlock.py URL bulk|single|concurrent|drain|start|produce JOBS."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time

import uvloop

import interlock
from interlock.worker.loop import Worker

TEXT = "x" * 71
CLIENTS = 64


async def main(url: str, what: str, jobs: int) -> None:
    app, done = interlock.App(url), 0

    @app.task(name="noop")
    async def noop(number: int, text: str) -> None:
        nonlocal done
        done += 1

    @app.task(name="timed")
    async def timed(number: int, text: str) -> None:
        print(number, time.monotonic(), flush=True)

    @app.task(name="warm")
    async def warm() -> None:
        pass

    async def singles(task: interlock.Task[[int, str], None], count: int) -> None:
        for number in range(count):
            await task.enqueue(number, TEXT)

    async with app:
        if what in ("drain", "start"):
            await Worker(app, types=["warm"]).run(drain=True)
            print("ready", flush=True)
        if what == "drain":
            await asyncio.to_thread(sys.stdin.readline)
            await Worker(app, types=["noop"], concurrency=100, prefetch=400).run(drain=True)
            print(json.dumps({"done": done, "ended": time.monotonic()}))
        elif what == "start":
            await Worker(app).run()
        elif what == "produce":
            for number in range(jobs):
                await asyncio.sleep(random.uniform(0.01, 0.03))
                await timed.enqueue(number, TEXT)
                print(number, time.monotonic(), flush=True)
        else:
            await asyncio.gather(*(warm.enqueue() for _ in range(CLIENTS)))
            began = time.perf_counter()
            if what == "bulk":
                for start in range(0, jobs, 1000):
                    numbers = range(start, min(start + 1000, jobs))
                    await noop.enqueue_many({"number": number, "text": TEXT} for number in numbers)
            elif what == "concurrent":
                await asyncio.gather(*(singles(noop, jobs // CLIENTS) for _ in range(CLIENTS)))
                jobs = jobs // CLIENTS * CLIENTS
            else:
                await singles(noop, jobs)
            print(json.dumps({"seconds": time.perf_counter() - began}))


logging.getLogger("interlock").setLevel(logging.ERROR)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
