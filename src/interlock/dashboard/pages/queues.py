"""Queues: where the jobs of each type are, and the brake."""

from __future__ import annotations

import asyncio

from interlock.dashboard.hour import how_many
from interlock.dashboard.pages.overview import drawn
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show

pages = Pages()


@pages.get("/queues")
async def queues(ask: Ask) -> View | Reply:
    """List the queues."""
    reads = ask.engine.reads
    found, minutes = await asyncio.gather(reads.queues(ask.tenant), reads.minutes(ask.tenant))
    return show("queues.html", queues=drawn(ask, found, minutes), minutes=how_many(minutes, ask.now))


@pages.post("/queues/{type}/pause", roles=["operate"])
async def pause(ask: Ask) -> View | Reply:
    """Hand out no more jobs of a type."""
    await ask.engine.jobs.pause(ask.who, ask.path["type"], reason=ask.form.one("reason"))
    return go("/queues", said="paused")


@pages.post("/queues/{type}/resume", roles=["operate"])
async def resume(ask: Ask) -> View | Reply:
    """Hand them out again."""
    await ask.engine.jobs.resume(ask.who, ask.path["type"])
    return go("/queues", said="resumed")
