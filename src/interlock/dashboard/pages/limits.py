"""Limits: their rules, what is used and available, jobs that wait, hold and release."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from urllib.parse import quote

from interlock.dashboard import plots
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.queue_metrics import MAX_MINUTES
from interlock.domain.limits import MAX_HOLD_SECONDS
from interlock.domain.timestamps import EPOCH
from interlock.errors import Invalid

pages = Pages()

PAGE_SIZE: Final = 25
MAX_WAITING: Final = 20
MAX_HOLD_MINUTES: Final = MAX_HOLD_SECONDS // 60
FIELD_NAMES: Final = {"until": "minutes"}


@pages.get("/limits")
async def limits(request: PageRequest) -> View | PageResponse:
    """List limits by name."""
    found = await request.client.limits.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.limit.name)
    utilization, now = request.client.overview.utilization, request.now
    utilization.record_limits(request.tenant, listed, now)
    used = {one.limit.name: plots.shares(utilization.of(request.tenant, one.limit.name, now)) for one in listed}
    return show("limits.html", limits=listed, used=used, minutes=MAX_MINUTES, paging=paging)


@pages.get("/limits/{name}")
async def limit(request: PageRequest) -> View | PageResponse:
    """Show one limit and the state of its keys."""
    found = await request.client.limits.get(request.path["name"])
    states = [found.state]
    if found.limit.keyed:
        after = request.query.one("after") or ""
        states = await request.client.limits.keys(found.limit.name, after=after, limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(states, PAGE_SIZE, after=lambda one: one.key)
    utilization, tenant, key = request.client.overview.utilization, request.tenant, request.query.one("key")
    for state in listed:
        utilization.record_bucket(tenant, found.limit, state, request.now)
    due = await request.client.overview.due_under(found.limit.name, key=key, limit=MAX_WAITING)
    return show(
        "limit.html",
        found=found,
        used={one.key: plots.shares(utilization.of(tenant, found.limit.name, request.now, one.key)) for one in listed},
        minutes=MAX_MINUTES,
        waiting=list((await known_jobs(request, due)).values()),
        max_waiting=MAX_WAITING,
        key=key,
        states=listed,
        paging=paging,
        max_hold_minutes=MAX_HOLD_MINUTES,
        here_query=request.query.here,
    )


@pages.post("/limits/{name}/hold", roles=["operate"], form_page=limit, field_names=FIELD_NAMES)
async def hold(request: PageRequest) -> View | PageResponse:
    """Lease no job that names the limit for some minutes."""
    form, minutes = request.form, request.form.number("minutes")
    if minutes is None or not 0 < minutes <= MAX_HOLD_MINUTES:
        raise Invalid(f"expected more than 0 and at most {MAX_HOLD_MINUTES} minutes", pointer="/minutes")
    until = EPOCH + timedelta(microseconds=request.now, minutes=minutes)
    await request.client.limits.hold(request.path["name"], until, key=form.one("key"), reason=form.one("reason"))
    return redirect(_path(request), notice="limit_held")


@pages.post("/limits/{name}/release", roles=["operate"])
async def release(request: PageRequest) -> View | PageResponse:
    """End a hold."""
    await request.client.limits.release(request.path["name"], key=request.form.one("key"))
    return redirect(_path(request), notice="limit_released")


def _path(request: PageRequest) -> str:
    here, path = request.query.here, f"/limits/{quote(request.path['name'], safe='')}"
    return f"{path}?{here}" if here else path
