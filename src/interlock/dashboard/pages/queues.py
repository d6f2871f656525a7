"""Queues: where the jobs of each type are, and the brake."""

from __future__ import annotations

from interlock.dashboard import plots
from interlock.dashboard.pages.overview import samples_of
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show

pages = Pages()


@pages.get("/queues")
async def queues(ask: Ask) -> View | Reply:
    """List the queues."""
    found = await ask.engine.reads.queues(ask.tenant)
    samples = samples_of(ask, found)
    rows = [(queue, plots.bar(queue), plots.flow(samples.of(ask.tenant, queue.type))) for queue in found]
    return show("queues.html", queues=rows)


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
