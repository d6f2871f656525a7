"""Workers: what they accept, when they last polled, and their running jobs."""

from __future__ import annotations

from typing import Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, show
from interlock.dashboard.pages.overview import known_jobs

pages = Pages()

PAGE_SIZE: Final = 50


@pages.get("/workers")
async def workers(request: PageRequest) -> View | PageResponse:
    """List workers by name."""
    found = await request.client.workers.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.name)
    jobs = await known_jobs(request, [id for worker in listed for id in worker.job_ids[:5]])
    return show("workers.html", workers=listed, jobs=jobs, paging=paging)
