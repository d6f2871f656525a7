"""Enqueue the demo jobs, once per database: their idempotency keys make a repeated call return the same jobs."""

from __future__ import annotations

import asyncio
import sys

from interlock.demo import tasks


async def play(database: str, tenant: str) -> None:
    """Enqueue the demo jobs; on return, the first worker of the report has been killed."""
    report = await tasks.report.options(idempotency_key="demo-report").enqueue(topic="tides")
    if not report.replayed:
        await lose_a_worker(database, tenant)
    await tasks.plan.options(idempotency_key="demo-plan").enqueue(topic="tides")
    await tasks.publish.options(idempotency_key="demo-publish").enqueue(title="What moves the sea")
    await tasks.summarize.options(idempotency_key="demo-summarize").enqueue(topic="tides")
    await tasks.import_feed.options(idempotency_key="demo-import").enqueue(url="https://feed.example/tides")


async def lose_a_worker(database: str, tenant: str) -> None:
    """Start the report in a separate process that kills itself, as in a power cut."""
    doomed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "interlock.demo.crashing_worker", database, tenant),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach only this process
    )
    try:
        await doomed.wait()
    finally:
        if doomed.returncode is None:
            doomed.kill()
            await doomed.wait()
