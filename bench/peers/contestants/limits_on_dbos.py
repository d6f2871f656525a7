"""The same workflows on queues of DBOS with a limiter: limits_on_dbos.py URL JOBS RATE."""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from typing import Any

from dbos import DBOS

WORKERS = 100
ROOM = 1_000_000
POLL_SECONDS = 0.05


class Drain:
    """Counts workflows, and times them from the first start to the last end."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.began = 0.0
        self.seconds = 0.0
        self.is_over = threading.Event()

    def one_more(self) -> None:
        self.began = self.began or time.perf_counter()
        self.left -= 1
        if not self.left:
            self.seconds = time.perf_counter() - self.began
            self.is_over.set()


drain = Drain(0)


@DBOS.workflow()
async def nothing() -> None:
    drain.one_more()


async def seconds(queue: str, count: int) -> float:
    global drain
    drain = Drain(count)
    for _ in range(count):
        await DBOS.enqueue_workflow_async(queue, nothing)
    await DBOS.register_queue_async(queue, **QUEUES[queue])  # its worker starts now
    await asyncio.to_thread(drain.is_over.wait)
    return drain.seconds


async def main(jobs: int, rate: int) -> None:
    QUEUES["tight"]["limiter"] = {"limit": rate, "period": 1.0}
    await seconds("warm", 100)
    found = {
        "without_per_second": jobs / await seconds("free", jobs),
        "with_room_per_second": jobs / await seconds("wide", jobs),
        # The first `rate` jobs start at once.
        "share_of_rate": 4 / await seconds("tight", 5 * rate),
    }
    print(json.dumps(found), flush=True)


EACH: dict[str, Any] = {"worker_concurrency": WORKERS, "polling_interval_sec": POLL_SECONDS}
QUEUES: dict[str, dict[str, Any]] = {
    "warm": dict(EACH),
    "free": dict(EACH),
    "wide": {**EACH, "limiter": {"limit": ROOM, "period": 1.0}},
    "tight": dict(EACH),
}
logging.disable(logging.WARNING)
DBOS(config={"name": "bench", "system_database_url": sys.argv[1], "run_admin_server": False, "log_level": "ERROR"})
DBOS.launch()
asyncio.run(main(int(sys.argv[2]), int(sys.argv[3])))
DBOS.destroy()
