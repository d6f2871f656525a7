"""Queues: job counts by location, pause and resume."""

from __future__ import annotations

import asyncio
from typing import Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.overview import with_plots
from interlock.dashboard.queue_metrics import plotted_minutes

pages = Pages()

PAGE_SIZE: Final = 25


@pages.get("/queues")
async def queues(request: PageRequest) -> View | PageResponse:
    """List queues by type."""
    reads, after = request.engine.queries, request.query.one("after") or ""
    found, minutes = await asyncio.gather(
        reads.queues(request.tenant, after=after, limit=PAGE_SIZE + 1), reads.minutes(request.tenant)
    )
    listed = found[:PAGE_SIZE]
    paging = request.query.paging("after", next={"after": listed[-1].type} if len(found) > PAGE_SIZE else None)
    return show(
        "queues.html",
        queues=with_plots(request, listed, minutes),
        minutes=plotted_minutes(minutes, request.now),
        paging=paging,
        here_query=_here(request),
    )


@pages.post("/queues/{type}/pause", roles=["operate"], form_page=queues)
async def pause(request: PageRequest) -> View | PageResponse:
    """Stop leasing jobs of a type."""
    await request.engine.jobs.pause(request.who, request.path["type"], reason=request.form.one("reason"))
    return redirect(_list_path(request), notice="paused")


@pages.post("/queues/{type}/resume", roles=["operate"])
async def resume(request: PageRequest) -> View | PageResponse:
    """Lease jobs of a type again."""
    await request.engine.jobs.resume(request.who, request.path["type"])
    return redirect(_list_path(request), notice="resumed")


def _here(request: PageRequest) -> str:
    return request.query.encoded(without=("notice", "n"))


def _list_path(request: PageRequest) -> str:
    here = _here(request)
    return f"/queues?{here}" if here else "/queues"
