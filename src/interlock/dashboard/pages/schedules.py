"""Schedules: their rules, next ticks and last jobs; pause, resume and run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from interlock import wire
from interlock.dashboard.http import Fields, PageRequest, PageResponse, Pages, View, one_of, redirect, show
from interlock.dashboard.json_tree import tree
from interlock.dashboard.pages.job_actions import json_field
from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.render import local
from interlock.domain.job import Filter
from interlock.domain.schedule import CatchUp, Overlap, Schedule, zone
from interlock.domain.timestamps import EPOCH
from interlock.errors import Invalid, NotFound
from interlock.wire import JobRequest
from interlock.wire.schedule import ScheduleRequest

pages = Pages()

PAGE_SIZE: Final = 25
NEXT_TICKS: Final = 5
MAX_JOBS: Final = 10
MAX_JOBS_READ: Final = 200  # newest jobs of the type, to find those of the schedule
HEADER: Final = "schedule"
CHOICES: Final[Mapping[str, Any]] = {"overlaps": list(Overlap), "catch_ups": list(CatchUp)}


@pages.get("/schedules")
async def schedules(request: PageRequest) -> View | PageResponse:
    """List schedules by name."""
    found = await request.client.schedules.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.name)
    jobs = await known_jobs(request, [one.last_job_id for one in listed if one.last_job_id is not None])
    return show("schedules.html", schedules=listed, jobs=jobs, paging=paging, here_query=request.query.here, **CHOICES)


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
        job_fields=_job_fields(found.job),
        **CHOICES,
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


@pages.post("/schedules", roles=["operate"], form_page=schedules)
async def create(request: PageRequest) -> View | PageResponse:
    """Create a schedule; one with this name is not replaced."""
    name = request.form.one("name")
    if name is None:
        raise Invalid("required: enter a name", pointer="/name")
    with suppress(NotFound):
        await request.client.schedules.get(name)
        raise Invalid("a schedule with this name exists: edit it on its page", pointer="/name")
    await _set(request, name)
    return redirect(f"/schedules/{quote(name, safe='')}", notice="schedule_set")


@pages.post("/schedules/{name}", roles=["operate"], form_page=schedule)
async def change(request: PageRequest) -> View | PageResponse:
    """Change the times and the job of a schedule; its last tick stays."""
    found = await request.client.schedules.get(request.path["name"])
    await _set(request, found.name, found)
    return redirect(f"/schedules/{quote(found.name, safe='')}", notice="schedule_set")


@pages.post("/schedules/{name}/delete", roles=["operate"])
async def delete(request: PageRequest) -> View | PageResponse:
    """Delete a schedule; its jobs remain."""
    await request.client.schedules.delete(request.path["name"])
    return redirect("/schedules", notice="schedule_deleted")


async def _set(request: PageRequest, name: str, old: Schedule | None = None) -> None:
    """Set a schedule to what a form says."""
    form, jitter = request.form, request.form.number("jitter_seconds")
    wanted = ScheduleRequest(
        job=_job(form),
        cron=form.one("cron"),
        every_seconds=form.number("every_seconds"),
        timezone=form.one("timezone") or "UTC",
        overlap=one_of(Overlap, form.one("overlap") or Overlap.ALLOW, "overlap"),
        catch_up=one_of(CatchUp, form.one("catch_up") or CatchUp.NONE, "catch_up"),
        jitter_seconds=0 if jitter is None else jitter,
        starts_at=_time(form, "starts_at", None if old is None else old.starts_at),
        ends_at=_time(form, "ends_at", None if old is None else old.ends_at),
    )
    try:
        await request.client.schedules.set(name, wanted)
    except Invalid as error:
        raise Invalid("", faults=[one._replace(pointer=_in_form(one.pointer)) for one in error.faults]) from None


def _job(form: Fields) -> JobRequest:
    """Return the job in a form; numbers in it are kept to the letter."""
    if (type := form.one("type")) is None:
        raise Invalid("required: enter a type", pointer="/type")
    members: dict[str, msgspec.Raw] = {}
    if form.one("others") is not None:
        try:
            members = msgspec.json.decode(json_field(form, "others"), type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            raise Invalid('expected a JSON object, such as {"priority": 5}', pointer="/others") from None
    for name in ("type", "payload"):
        if name in members:
            raise Invalid(f"{name}: expected in its own field of the form", pointer="/others")
    payload = "{}" if form.one("payload") is None else json_field(form, "payload")
    members |= {"type": msgspec.Raw(msgspec.json.encode(type)), "payload": msgspec.Raw(payload.encode())}
    try:
        return msgspec.json.decode(msgspec.json.encode(members), type=JobRequest)
    except msgspec.ValidationError as error:
        raise Invalid(str(wire.invalid(error)), pointer="/others") from None


def _job_fields(job: str) -> dict[str, str]:
    """Return the job of a schedule as the fields of a form."""
    members = msgspec.json.decode(job, type=dict[str, msgspec.Raw])
    type, payload = members.pop("type"), members.pop("payload", None)
    return {
        "type": msgspec.json.decode(type, type=str),
        "payload": "{}" if payload is None else bytes(payload).decode(),
        "others": msgspec.json.encode(members).decode() if members else "",
    }


def _time(form: Fields, name: str, kept: int | None) -> datetime | None:
    """Return a time of a form; a field that was not edited keeps the exact value, which it shows to the second."""
    at = kept if form.one(name) == local(kept) else form.timestamp(name)
    return None if at is None else EPOCH + timedelta(microseconds=at)


def _in_form(pointer: str) -> str:
    """Return the pointer of a form field for that of a request member."""
    if not pointer.startswith("/job/"):
        return pointer
    member = pointer.split("/")[2]
    return f"/{member}" if member in ("type", "payload") else "/others"


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
