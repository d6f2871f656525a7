"""Tokens: create, list and revoke."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.dashboard.http import DAY, PageRequest, PageResponse, Pages, View, redirect, show
from interlock.domain.principal import ROLES
from interlock.errors import TokenExists
from interlock.wire import TokenRequest

pages = Pages()

PAGE_SIZE: Final = 50
FIELD_NAMES: Final = {"roles": "role", "expires_in_seconds": "expires_in_days"}


@pages.get("/tokens", roles=["admin"])
async def tokens(request: PageRequest) -> View | PageResponse:
    """List tokens."""
    return show("tokens.html", **await _context(request), created=None)


@pages.post("/tokens", roles=["admin"], form_page=tokens, field_names=FIELD_NAMES)
async def create(request: PageRequest) -> View | PageResponse:
    """Create a token; its secret is displayed only in this response."""
    form = request.form
    days = form.number("expires_in_days")
    worker_id = form.one("worker_id")
    wanted = TokenRequest(
        roles=form.all("role"),
        description=form.one("description"),
        worker_id=worker_id,
        types=_names(form.one("types")),
        repositories=_names(form.one("repositories")),
        capabilities=_names(form.one("capabilities")),
        expires_in_seconds=None if days is None else days * DAY,
        key=form.one("key"),
    )
    try:
        created = await request.client.tokens.create(wanted)
    except TokenExists:  # the browser submitted the same form again
        return redirect("/tokens", notice="token_exists")
    return show("tokens.html", **await _context(request), created=created)


@pages.post("/tokens/{id}/revoke", roles=["admin"])
async def revoke(request: PageRequest) -> View | PageResponse:
    """Revoke a token."""
    await request.client.tokens.revoke(request.path["id"])
    return redirect("/tokens", notice="token_revoked")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else text.split()


async def _context(request: PageRequest) -> dict[str, Any]:
    found = await request.client.tokens.list(before=request.query.one("before"), limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, before=lambda one: one.id)
    sessions = await request.client.engine.sessions.list(request.who)
    return {"tokens": listed, "paging": paging, "roles": sorted(ROLES), "key": wire.new_id(), "sessions": sessions}
