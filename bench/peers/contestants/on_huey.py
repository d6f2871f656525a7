"""Huey's SQLite queue, fsync on; it adds jobs one by one: on_huey.py FILE bulk|single|drain|start|produce JOBS."""
# mypy: ignore-errors

from __future__ import annotations

import json
import logging
import random
import sys
import threading
import time

from huey import SqliteHuey

TEXT = "x" * 71


def main(path: str, what: str, jobs: int) -> None:
    done, all_done = 0, threading.Event()
    huey = SqliteHuey(filename=path, fsync=True, results=False)

    @huey.task()
    def noop(number: int, text: str) -> None:
        nonlocal done
        done += 1
        if done == jobs:
            all_done.set()

    @huey.task()
    def timed(number: int, text: str) -> None:
        print(number, time.monotonic(), flush=True)

    if what in ("bulk", "single"):
        began = time.perf_counter()
        for number in range(jobs):
            noop(number, TEXT)
        print(json.dumps({"seconds": time.perf_counter() - began}))
        return
    if what == "produce":
        for number in range(jobs):
            time.sleep(random.uniform(0.01, 0.03))
            timed(number, TEXT)
            print(number, time.monotonic(), flush=True)
        return
    consumer = huey.create_consumer(
        workers=1, initial_delay=0.001, periodic=False, max_delay=0.005 if what == "start" else 10
    )
    print("ready", flush=True)
    if what == "drain":
        sys.stdin.readline()
    consumer.start()
    all_done.wait()
    ended = time.monotonic()
    consumer.stop(graceful=True)
    print(json.dumps({"done": done, "ended": ended}))


logging.getLogger("huey").setLevel(logging.ERROR)
main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
