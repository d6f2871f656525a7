"""Schedules: their rules, next ticks and last jobs; pause, resume and run."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final
from urllib.parse import quote

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.json_tree import tree
from interlock.dashboard.pages.overview import known_jobs
from interlock.domain.job import Filter
from interlock.domain.schedule import Schedule, zone
from interlock.domain.timestamps import EPOCH

pages = Pages()

PAGE_SIZE: Final = 25
NEXT_TICKS: Final = 5
MAX_JOBS: Final = 10
MAX_JOBS_READ: Final = 200  # newest jobs of the type, to find those of the schedule
HEADER: Final = "schedule"


@pages.get("/schedules")
async def schedules(request: PageRequest) -> View | PageResponse:
    """List schedules by name."""
    found = await request.client.schedules.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.name)
    jobs = await known_jobs(request, [one.last_job_id for one in listed if one.last_job_id is not None])
    return show("schedules.html", schedules=listed, jobs=jobs, paging=paging, here_query=request.query.here)


@pages.get("/schedules/{name}")
async def schedule(request: PageRequest) -> View | PageResponse:
    """Show one schedule."""
    client = request.client
    found = await client.schedules.get(request.path["name"])
    newest = await client.jobs.list(Filter(type=found.type, limit=MAX_JOBS_READ))
    ticks = [] if found.paused_at else await client.schedules.preview(found.name, NEXT_TICKS)
    jobs = [one for one in newest if json.loads(one.headers or "{}").get(HEADER) == found.name]
    return show(
        "schedule.html",
        schedule=found,
        job=tree(found.job),
        ticks=[(at, _wall_time(at, found)) for at in ticks],
        jobs=jobs[:MAX_JOBS],
        jobs_read=MAX_JOBS_READ if len(newest) == MAX_JOBS_READ else None,
    )


def _wall_time(at: int, schedule: Schedule) -> str:
    """Return a tick as the clocks of the schedule's time zone show it; empty for UTC."""
    if schedule.timezone == "UTC":
        return ""
    local = (EPOCH + timedelta(microseconds=at)).astimezone(zone(schedule.timezone))
    return f"{local:%Y-%m-%d %H:%M:%S} {schedule.timezone}"


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
    if request.form.one("from") == "page":
        return f"/schedules/{quote(request.path['name'], safe='')}"
    here = request.query.here
    return f"/schedules?{here}" if here else "/schedules"
