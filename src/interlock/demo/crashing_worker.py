"""A worker that dies halfway through a report: `python -m interlock.demo.crashing_worker DATABASE TENANT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Final

from interlock import assemble
from interlock.demo import tasks
from interlock.worker.loop import Worker

LEASE_SECONDS: Final = 4.0  # short, to notice the crash soon; on a busy machine the run must reach the crash first


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def work(database: str, tenant: str) -> None:
    tasks.power_cut = die
    tasks.app._connect_by(lambda: assemble.open_client(database, tenant=tenant))
    async with tasks.app:
        await Worker(tasks.app, name="doomed", types=["report"], lease=LEASE_SECONDS).run(once=True)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
