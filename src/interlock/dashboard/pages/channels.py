"""Notification channels: their destinations and filters, set, test and delete."""

from __future__ import annotations

from typing import Any, Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.domain.approval import RISKS
from interlock.domain.channel import DEFAULT_EVENTS, DEFAULT_INTERVAL_SECONDS, EVENTS, Kind, Tls
from interlock.wire.channels import channel_request

pages = Pages()

PAGE_SIZE: Final = 25
FIELD_NAMES: Final = {"events": "event"}


@pages.get("/channels", roles=["admin"])
async def channels(request: PageRequest) -> View | PageResponse:
    """List notification channels by name."""
    return show("channels.html", **await _context(request))


@pages.post("/channels", roles=["admin"], form_page=channels, field_names=FIELD_NAMES)
async def set_channel(request: PageRequest) -> View | PageResponse:
    """Create or replace a notification channel."""
    form = request.form
    kind = form.one("kind") or ""
    port, interval = form.number("port"), form.number("min_interval_seconds")
    texts = ("url", "secret", "host", "username", "from", "min_risk")
    wanted: dict[str, Any] = {name: form.one(name) for name in texts} | {
        "kind": kind,
        "tls": form.one("tls") if kind == Kind.EMAIL else None,  # a select always has a value
        "port": None if port is None else int(port),
        "password": form.raw("password") or None,
        "to": (form.one("to") or "").replace(",", " ").split(),
        "events": form.all("event"),
        "types": (form.one("types") or "").split() or None,
        "tags": (form.one("tags") or "").split() or None,
        "min_interval_seconds": DEFAULT_INTERVAL_SECONDS if interval is None else interval,
    }
    await request.client.channels.set(form.one("name") or "", channel_request(wanted))
    return redirect("/channels", notice="channel_set")


@pages.post("/channels/{name}/test", roles=["admin"])
async def test_channel(request: PageRequest) -> View | PageResponse:
    """Send a test message; its result is displayed in this response."""
    name = request.path["name"]
    tested = await request.client.channels.test(name)
    return show("channels.html", **await _context(request) | {"tested": tested, "tested_name": name})


@pages.post("/channels/{name}/delete", roles=["admin"])
async def delete_channel(request: PageRequest) -> View | PageResponse:
    """Delete a notification channel."""
    await request.client.channels.delete(request.path["name"])
    return redirect("/channels", notice="channel_deleted")


async def _context(request: PageRequest) -> dict[str, Any]:
    found = await request.client.channels.list(after=request.query.one("after") or "", limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, after=lambda one: one.name)
    return {
        "channels": listed,
        "paging": paging,
        "kinds": list(Kind),
        "modes": list(Tls),
        "risks": RISKS,
        "events": EVENTS,
        "default_events": DEFAULT_EVENTS,
        "tested": None,
        "tested_name": "",
    }
