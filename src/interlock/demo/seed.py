"""Enqueue the demo jobs, anew at every start."""

from __future__ import annotations

import asyncio
import sys

from interlock.demo import tasks
from interlock.domain.budget import Per
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest, Rate


async def play(database: str, tenant: str) -> None:
    """Enqueue the demo jobs; on return, the first worker of the report has been killed."""
    client = await tasks.app._client()
    await client.limits.set(
        "model", LimitRequest(concurrency=2, rate=Rate(units={"tokens": 800, "usd": 1}, per_seconds=5))
    )
    await client.budgets.set("demo", BudgetRequest(amount={"usd": 1}, per=Per.DAY))
    await tasks.app.schedules.set("digest", "digest", every=60)
    await tasks.report.enqueue(topic="tides")
    await lose_a_worker(database, tenant)
    await tasks.plan.enqueue(topic="tides")
    await tasks.publish.enqueue(title="What moves the sea")
    await tasks.interview.enqueue()
    await tasks.embed.enqueue_many([{"part": part} for part in ("causes", "history", "coasts", "moon")])
    narrator = await tasks.narrate.enqueue(topic="tides")
    await narrator.send("tone", "calm and slow")
    await tasks.order.enqueue(copies=2)
    await tasks.summarize.enqueue(topic="tides")
    await tasks.import_feed.enqueue(url="https://feed.example/tides")


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
