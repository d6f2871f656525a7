"""Jobs under a rate, drained by a worker of Interlock: limits_on_interlock.py URL JOBS RATE."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import uvloop

import interlock

WORKERS = 100
ROOM = 1_000_000


async def main(url: str, jobs: int, rate: int) -> None:
    app = interlock.App(url)
    wide = app.limit("wide", rate={"starts": ROOM}, per=1)
    tight = app.limit("tight", rate={"starts": rate}, per=1)

    times: list[float] = []

    @app.task
    async def free() -> None:
        times.append(time.perf_counter())

    @app.task(limits=[wide])
    async def with_room() -> None:
        times.append(time.perf_counter())

    @app.task(limits=[tight])
    async def scarce() -> None:
        times.append(time.perf_counter())

    async def run(task: interlock.Task[[], None], count: int) -> tuple[float, float]:
        """Return the seconds until all jobs are completed, and those from the first start to the last."""
        times.clear()
        await task.enqueue_many([{}] * count)
        worker = interlock.Worker(app, types=[task.name], concurrency=WORKERS, prefetch=4 * WORKERS)
        began = time.perf_counter()
        working = asyncio.create_task(worker.run())
        while len(times) < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        worker.stop()
        await working
        return time.perf_counter() - began, times[-1] - times[0]

    async with app:
        await app.register()
        await run(free, 100)
        found = {
            "without_per_second": jobs / (await run(free, jobs))[0],
            "with_room_per_second": jobs / (await run(with_room, jobs))[0],
            # The first `rate` jobs start at once, from the burst.
            "share_of_rate": 4 / (await run(scarce, 5 * rate))[1],
        }
    print(json.dumps(found))


logging.getLogger("interlock").setLevel(logging.ERROR)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
