"""Queues: job counts by location, pause and resume."""

from __future__ import annotations

import asyncio
from typing import Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.overview import with_plots
from interlock.dashboard.queue_metrics import plotted_minutes
from interlock.domain.registry import RATE_MINUTES

pages = Pages()

PAGE_SIZE: Final = 25


@pages.get("/queues")
async def queues(request: PageRequest) -> View | PageResponse:
    """List queues by type."""
    client, after = request.client, request.query.one("after") or ""
    found, minutes = await asyncio.gather(
        client.queues.list(after=after, limit=PAGE_SIZE + 1), client.overview.minutes()
    )
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.type)
    return show(
        "queues.html",
        queues=with_plots(request, listed, minutes),
        minutes=plotted_minutes(minutes, request.now),
        rate_minutes=RATE_MINUTES,
        paging=paging,
        here_query=request.query.here,
    )


@pages.post("/queues/{type}/pause", roles=["operate"], form_page=queues)
async def pause(request: PageRequest) -> View | PageResponse:
    """Stop leasing jobs of a type."""
    await request.client.queues.pause(request.path["type"], reason=request.form.one("reason"))
    return redirect(_list_path(request), notice="paused")


@pages.post("/queues/{type}/resume", roles=["operate"])
async def resume(request: PageRequest) -> View | PageResponse:
    """Lease jobs of a type again."""
    await request.client.queues.resume(request.path["type"])
    return redirect(_list_path(request), notice="resumed")


def _list_path(request: PageRequest) -> str:
    here = request.query.here
    return f"/queues?{here}" if here else "/queues"
