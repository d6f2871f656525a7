"""The same verbs of DBOS, where it has them, timed in one process: verbs_on_dbos.py URL SIZE SLEEPING."""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from statistics import median, quantiles

from dbos import DBOS

JOBS = 50
WAKES = 40
LINE = "x" * 40

late: list[float] = []
written: dict[int, float] = {}


def lateness(seconds: list[float]) -> dict[str, float]:
    return {"p50_ms": median(seconds) * 1000, "p95_ms": quantiles(seconds, n=20)[-1] * 1000}


@DBOS.step()
async def negate(number: int) -> int:
    return -number


@DBOS.workflow()
async def steps(count: int) -> None:
    for number in range(count):
        await negate(number)


@DBOS.workflow()
async def receive(count: int) -> None:
    await DBOS.recv_async("begin", timeout_seconds=600)
    for _ in range(count):
        await DBOS.recv_async("note", timeout_seconds=600)


@DBOS.workflow()
async def stream(count: int, apart: float) -> None:
    for number in range(count):
        if apart:
            await asyncio.sleep(apart)
        written[number] = time.perf_counter()
        await DBOS.write_stream_async("tokens", f"{number} {LINE}\n")


@DBOS.workflow()
async def doze(seconds: float) -> None:
    due = time.time() + seconds
    await DBOS.sleep_async(seconds)
    late.append(time.time() - due)


async def main(size: int) -> None:
    found: dict[str, object] = {}
    began = time.perf_counter()
    handles = await asyncio.gather(*(DBOS.start_workflow_async(steps, size // JOBS) for _ in range(JOBS)))
    await asyncio.gather(*(handle.get_result() for handle in handles))
    found["steps_per_second"] = size / (time.perf_counter() - began)

    handle = await DBOS.start_workflow_async(receive, size)
    began = time.perf_counter()
    for number in range(size):
        await DBOS.send_async(handle.workflow_id, f"{number} {LINE}", topic="note")
    found["sends_per_second"] = size / (time.perf_counter() - began)
    began = time.perf_counter()
    await DBOS.send_async(handle.workflow_id, "now", topic="begin")
    await handle.get_result()
    found["receives_per_second"] = size / (time.perf_counter() - began)

    began = time.perf_counter()
    await (await DBOS.start_workflow_async(stream, size, 0)).get_result()
    found["chunks_per_second"] = size / (time.perf_counter() - began)
    handle = await DBOS.start_workflow_async(stream, 100, 0.02)
    taken = []
    async for text in DBOS.read_stream_async(handle.workflow_id, "tokens"):
        taken.append(time.perf_counter() - written[int(text.partition(" ")[0])])
    found["stream_latency"] = lateness(taken)

    handles = await asyncio.gather(*(DBOS.start_workflow_async(doze, 1.0 + number / 20) for number in range(WAKES)))
    await asyncio.gather(*(handle.get_result() for handle in handles))
    found["wake_lateness"] = lateness(late)
    print(json.dumps(found), flush=True)


logging.disable(logging.WARNING)
DBOS(config={"name": "bench", "system_database_url": sys.argv[1], "run_admin_server": False, "log_level": "ERROR"})
DBOS.launch()
asyncio.run(main(int(sys.argv[2])))
DBOS.destroy()
