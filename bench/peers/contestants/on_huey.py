"""Drain no-op jobs with Huey's SQLite worker, fsync on: on_huey.py FILE JOBS."""
# mypy: ignore-errors

from __future__ import annotations

import json
import logging
import sys
import threading
import time

from huey import SqliteHuey

TEXT = "x" * 71


def main(path: str, jobs: int) -> None:
    done, all_done = 0, threading.Event()
    huey = SqliteHuey(filename=path, fsync=True, results=False)

    @huey.task()
    def noop(number: int, text: str) -> None:
        nonlocal done
        done += 1
        if done == jobs:
            all_done.set()

    for number in range(jobs):
        noop(number, TEXT)
    consumer = huey.create_consumer(workers=1, initial_delay=0.001, periodic=False)
    began = time.perf_counter()
    consumer.start()
    all_done.wait()
    seconds = time.perf_counter() - began
    consumer.stop(graceful=True)
    print(json.dumps({"done": done, "seconds": seconds}))


logging.getLogger("huey").setLevel(logging.ERROR)
main(sys.argv[1], int(sys.argv[2]))
