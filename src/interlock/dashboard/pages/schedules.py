"""Schedules: next ticks, last jobs, pause, resume and run."""

from __future__ import annotations

from typing import Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.overview import known_jobs

pages = Pages()

PAGE_SIZE: Final = 25


@pages.get("/schedules")
async def schedules(request: PageRequest) -> View | PageResponse:
    """List schedules by name."""
    found = await request.client.schedules.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.name)
    jobs = await known_jobs(request, [one.last_job_id for one in listed if one.last_job_id is not None])
    return show("schedules.html", schedules=listed, jobs=jobs, paging=paging, here_query=request.query.here)


@pages.post("/schedules/{name}/pause", roles=["operate"])
async def pause(request: PageRequest) -> View | PageResponse:
    """Pause a schedule."""
    await request.client.schedules.pause(request.path["name"])
    return redirect(_list_path(request), notice="schedule_paused")


@pages.post("/schedules/{name}/resume", roles=["operate"])
async def resume(request: PageRequest) -> View | PageResponse:
    """Resume a paused schedule."""
    await request.client.schedules.resume(request.path["name"])
    return redirect(_list_path(request), notice="schedule_resumed")


@pages.post("/schedules/{name}/run", roles=["operate"])
async def run(request: PageRequest) -> View | PageResponse:
    """Enqueue the job of a schedule now."""
    job = await request.client.schedules.run(request.path["name"])
    return redirect(f"/jobs/{job.id}", notice="schedule_run")


def _list_path(request: PageRequest) -> str:
    here = request.query.here
    return f"/schedules?{here}" if here else "/schedules"
