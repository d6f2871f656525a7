"""Limits: their rules, what is used and available, jobs that wait, hold and release."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Final
from urllib.parse import quote

from interlock.dashboard import plots
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.queue_metrics import MAX_MINUTES
from interlock.domain.limits import MAX_HOLD_SECONDS
from interlock.domain.timestamps import EPOCH
from interlock.errors import Invalid, NotFound
from interlock.wire.limits import LimitRequest, Rate

pages = Pages()

PAGE_SIZE: Final = 25
MAX_WAITING: Final = 20
MAX_HELD: Final = 200  # holds of keys that are counted on the list
MAX_HOLD_MINUTES: Final = MAX_HOLD_SECONDS // 60
FIELD_NAMES: Final = {"until": "minutes"}
DEFAULT_PER_SECONDS: Final = 60.0


@pages.get("/limits")
async def limits(request: PageRequest) -> View | PageResponse:
    """List limits by name."""
    found = await request.client.limits.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.limit.name)
    utilization, now = request.client.overview.utilization, request.now
    utilization.record_limits(request.tenant, listed, now)
    used = {one.limit.name: plots.shares(utilization.of(request.tenant, one.limit.name, now)) for one in listed}
    held = Counter(name for name, state in await request.client.overview.held_limits(limit=MAX_HELD) if state.key)
    return show(
        "limits.html", limits=listed, used=used, held=held, max_held=MAX_HELD, minutes=MAX_MINUTES, paging=paging
    )


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
        own_burst={unit: most for unit, most in found.limit.burst.items() if most != found.limit.units[unit]},
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


@pages.post("/limits", roles=["admin"], form_page=limits)
async def create(request: PageRequest) -> View | PageResponse:
    """Create a limit; one with this name is not replaced."""
    name = request.form.one("name")
    if name is None:
        raise Invalid("required: enter a name", pointer="/name")
    with suppress(NotFound):
        await request.client.limits.get(name)
        raise Invalid("a limit with this name exists: edit it on its page", pointer="/name")
    await request.client.limits.set(name, _rules(request))
    return redirect(f"/limits/{quote(name, safe='')}", notice="limit_set")


@pages.post("/limits/{name}", roles=["admin"], form_page=limit)
async def change(request: PageRequest) -> View | PageResponse:
    """Change the rules of a limit."""
    name = (await request.client.limits.get(request.path["name"])).limit.name
    await request.client.limits.set(name, _rules(request))
    return redirect(_path(request), notice="limit_set")


@pages.post("/limits/{name}/delete", roles=["admin"])
async def delete(request: PageRequest) -> View | PageResponse:
    """Delete a limit that no unfinished job names."""
    await request.client.limits.delete(request.path["name"])
    return redirect("/limits", notice="limit_deleted")


def _rules(request: PageRequest) -> LimitRequest:
    """Return the rules in a form."""
    form = request.form
    units, burst, per = form.amounts("rate"), form.amounts("burst"), form.number("per_seconds")
    if not units and (burst or per not in (None, DEFAULT_PER_SECONDS)):
        raise Invalid("required for a burst or a period: enter a rate", pointer="/rate")
    for unit in burst:
        if unit not in units:
            raise Invalid(f"“{unit}” has no rate", pointer="/burst")
    rate = Rate(units=units, per_seconds=DEFAULT_PER_SECONDS if per is None else per, burst=burst or None)
    return LimitRequest(
        concurrency=form.integer("concurrency"),
        rate=rate if units else None,
        keyed=form.one("keyed") is not None,
        fair=form.one("fair") is not None,
        weights=form.amounts("weights", "KEY=WEIGHT") or None,
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
