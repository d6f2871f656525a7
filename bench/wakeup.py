"""`python -m bench.wakeup`: how soon a worker starts a job that another process adds to its SQLite file, and idling."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import uvloop

from interlock import App, Worker

TYPE = "noop"
APART_SECONDS = (0.01, 0.05)


async def produce(url: str, jobs: int) -> None:
    """The other process: enqueue one job after another, and print when each was committed."""
    async with App(url) as app:
        task = app.task(name=TYPE)(_nothing)
        for number in range(jobs):
            await asyncio.sleep(random.uniform(*APART_SECONDS))
            await task.enqueue(number)
            print(number, time.monotonic(), flush=True)


async def _nothing(number: int) -> None:
    pass


async def measure(jobs: int, idle_seconds: float) -> str:
    with TemporaryDirectory(prefix="interlock-bench-") as directory:
        url = f"sqlite:///{Path(directory) / 'bench.db'}"
        began: dict[int, float] = {}
        app = App(url)

        @app.task(name=TYPE)
        async def noop(number: int) -> None:
            began[number] = time.monotonic()

        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        await asyncio.sleep(1.0)  # what starting costs is not idling
        before, since = time.process_time(), time.monotonic()
        await asyncio.sleep(idle_seconds)
        idle = (time.process_time() - before) / (time.monotonic() - since) * 100 if idle_seconds else 0.0
        words = [sys.executable, "-m", "bench.wakeup", "--produce", url, "--jobs", str(jobs)]
        producer = await asyncio.create_subprocess_exec(*words, stdout=PIPE)
        printed, _ = await producer.communicate()
        committed = {int(number): float(at) for number, at in map(str.split, printed.decode().splitlines())}
        while len(began) < jobs:  # noqa: ASYNC110 - the last handlers may start after the producer has ended
            await asyncio.sleep(0.01)
        worker.stop()
        await working
        await app.close()
    taken = [(began[number] - at) * 1000 for number, at in committed.items()]
    p50, p95 = median(taken), quantiles(taken, n=20)[-1]
    return f"{len(taken)} starts: p50 {p50:.2f} ms, p95 {p95:.2f} ms; idle worker: {idle:.2f} % of a core"


def main() -> None:
    top = argparse.ArgumentParser(prog="python -m bench.wakeup", description=__doc__)
    top.add_argument("--jobs", type=int, default=500, metavar="N", help="jobs to start (default: 500)")
    top.add_argument("--idle-seconds", type=float, default=30.0, metavar="S", help="time to idle (default: 30)")
    top.add_argument("--produce", metavar="URL", help=argparse.SUPPRESS)
    options = top.parse_args()
    if options.produce:
        uvloop.run(produce(options.produce, options.jobs))
    else:
        print(uvloop.run(measure(options.jobs, options.idle_seconds)))


if __name__ == "__main__":
    main()
