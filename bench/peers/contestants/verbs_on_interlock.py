"""Durable verbs of Interlock, timed in one process: verbs_on_interlock.py URL SIZE SLEEPING."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from datetime import timedelta
from statistics import median, quantiles

import uvloop

import interlock

JOBS = 50  # that run their steps concurrently
WAKES = 40
LINE = "x" * 40


def lateness(seconds: list[float]) -> dict[str, float]:
    return {"p50_ms": median(seconds) * 1000, "p95_ms": quantiles(seconds, n=20)[-1] * 1000}


async def main(url: str, size: int, sleeping: int) -> None:
    app = interlock.App(url)
    found: dict[str, object] = {}
    late: list[float] = []
    written: dict[int, float] = {}

    @app.task
    async def steps(ctx: interlock.Context, count: int) -> None:
        for number in range(count):
            await ctx.step("step", abs, -number)

    @app.task
    async def receive(ctx: interlock.Context, count: int) -> None:
        for _ in range(count):
            await ctx.receive("note", schema=str)

    @app.task
    async def stream(ctx: interlock.Context, count: int, apart: float) -> None:
        for number in range(count):
            if apart:
                await asyncio.sleep(apart)
            written[number] = time.perf_counter()
            ctx.stream("tokens").write(f"{number} {LINE}\n")
            if apart or number % 100 == 99:
                await ctx.stream("tokens").flush()

    @app.task
    async def doze(ctx: interlock.Context, seconds: float) -> None:
        due = time.time() + seconds
        if (began := ctx.checkpoint) is None:
            await ctx.save_checkpoint(due)
        await ctx.sleep(seconds)
        late.append(time.time() - (began or due))

    async with app:
        worker = interlock.Worker(app, concurrency=JOBS, prefetch=JOBS * 4)
        working = asyncio.create_task(worker.run())

        began = time.perf_counter()
        handles = await steps.enqueue_many([{"count": size // JOBS}] * JOBS)
        await asyncio.gather(*(handle.result() for handle in handles))
        found["steps_per_second"] = size / (time.perf_counter() - began)

        handle = await receive.options(delay=timedelta(hours=1)).enqueue(size)
        began = time.perf_counter()
        for number in range(size):
            await handle.send("note", f"{number} {LINE}")
        found["sends_per_second"] = size / (time.perf_counter() - began)
        began = time.perf_counter()
        await app.jobs.run_now(handle.id)
        await handle.result()
        found["receives_per_second"] = size / (time.perf_counter() - began)

        began = time.perf_counter()
        await (await stream.enqueue(size, 0)).result()
        found["chunks_per_second"] = size / (time.perf_counter() - began)
        handle = await stream.enqueue(100, 0.02)
        taken = []
        async for chunk in handle.stream("tokens"):
            now = time.perf_counter()
            taken += [now - written[int(line.partition(" ")[0])] for line in chunk.text.splitlines()]
        found["stream_latency"] = lateness(taken)

        found["wake_lateness"] = await wakes(doze, late)
        if sleeping:
            began = time.perf_counter()
            made = await doze.enqueue_many({"seconds": 36_000.0} for _ in range(sleeping))
            while (state := await app.queues.get("doze")).ready or state.in_progress:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.2)
            found["sleeps_begun_per_second"] = len(made) / (time.perf_counter() - began)
            found["wake_lateness_beside_sleepers"] = await wakes(doze, late)
            found["sleeping"] = len(made)
        worker.stop()
        await working
    print(json.dumps(found))


async def wakes(doze: interlock.Task[[float], None], late: list[float]) -> dict[str, float]:
    late.clear()
    handles = await doze.enqueue_many([{"seconds": 1.0 + number / 20} for number in range(WAKES)])
    await asyncio.gather(*(handle.result() for handle in handles))
    return lateness(late)


logging.getLogger("interlock").setLevel(logging.ERROR)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
