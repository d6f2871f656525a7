"""The same verbs of Absurd, where it has them, timed in one process: verbs_on_absurd.py URL SIZE SLEEPING."""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median, quantiles
from typing import Any

from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL
from psycopg import AsyncConnection

JOBS = 50
WORKERS = 10  # each has one connection, which its tasks share
WAKES = 40
QUEUE = "default"
LINE = "x" * 40

late: list[float] = []


def lateness(seconds: list[float]) -> dict[str, float]:
    return {"p50_ms": median(seconds) * 1000, "p95_ms": quantiles(seconds, n=20)[-1] * 1000}


async def steps(params: dict[str, Any], ctx: AsyncTaskContext) -> None:
    for number in range(params["count"]):
        await ctx.step("step", lambda number=number: negate(number))


async def negate(number: int) -> int:
    return -number


async def receive(params: dict[str, Any], ctx: AsyncTaskContext) -> None:
    for number in range(params["count"]):
        await ctx.await_event(f"note {number}")  # an event has one payload: the first one


async def doze(params: dict[str, Any], ctx: AsyncTaskContext) -> None:
    await ctx.sleep_for("doze", params["seconds"])
    late.append(time.time() - params["due"])


async def finished(client: AsyncAbsurd, ids: list[str]) -> None:
    for id in ids:
        await client.await_task_result(id)


async def wakes(client: AsyncAbsurd) -> dict[str, float]:
    late.clear()
    spawned = []
    for number in range(WAKES):
        seconds = 1.0 + number / 20
        params = {"seconds": seconds, "due": time.time() + seconds}
        spawned.append((await client.spawn("doze", params))["task_id"])
    await finished(client, spawned)
    return lateness(late)


async def main(url: str, size: int, sleeping: int) -> None:
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)  # as `absurdctl init` does
    client, *workers = (AsyncAbsurd(url, QUEUE) for _ in range(1 + WORKERS))
    for one in (client, *workers):
        for task in (steps, receive, doze):
            one.register_task(task.__name__)(task)
    await client.create_queue()
    working = [asyncio.create_task(one.start_worker(concurrency=JOBS // WORKERS)) for one in workers]
    found: dict[str, object] = {}

    began = time.perf_counter()
    await finished(client, [(await client.spawn("steps", {"count": size // JOBS}))["task_id"] for _ in range(JOBS)])
    found["steps_per_second"] = size / (time.perf_counter() - began)

    began = time.perf_counter()
    for number in range(size):
        await client.emit_event(f"note {number}", f"{number} {LINE}")
    found["sends_per_second"] = size / (time.perf_counter() - began)
    began = time.perf_counter()
    await finished(client, [(await client.spawn("receive", {"count": size}))["task_id"]])
    found["receives_per_second"] = size / (time.perf_counter() - began)

    found["wake_lateness"] = await wakes(client)
    if sleeping:
        began = time.perf_counter()
        params = json.dumps({"seconds": 36_000.0, "due": 0})
        async with await AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(
                "select absurd.spawn_task(%s, 'doze', %s) from generate_series(1, %s)", (QUEUE, params, sleeping)
            )
            awake = f"select from absurd.t_{QUEUE} where state in ('pending', 'running') limit 1"
            while (await connection.execute(awake)).rowcount:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.2)
        found["sleeps_begun_per_second"] = sleeping / (time.perf_counter() - began)
        found["wake_lateness_beside_sleepers"] = await wakes(client)
        found["sleeping"] = sleeping
    for one in workers:
        one.stop_worker()
    await asyncio.gather(*working)
    for one in (client, *workers):
        await one.close()
    print(json.dumps(found), flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
