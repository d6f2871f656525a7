"""Tokens: made, shown once, revoked."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.dashboard.web import DAY, Ask, Pages, Reply, View, go, show
from interlock.domain.principal import ROLES
from interlock.errors import TokenExists
from interlock.wire import TokenRequest

pages = Pages()

AT_ONCE: Final = 50


@pages.get("/tokens", roles=["admin"])
async def tokens(ask: Ask) -> View | Reply:
    """List tokens."""
    return show("tokens.html", **await _shown(ask), minted=None)


@pages.post("/tokens", roles=["admin"])
async def create(ask: Ask) -> View | Reply:
    """Make a token; its text is shown in this answer and never again."""
    form = ask.form
    days = form.number("expires_in_days")
    worker_id = form.one("worker_id")
    request = TokenRequest(
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
        minted = await ask.engine.tokens.create(ask.who, request)
    except TokenExists:  # the same form again, as a page that is loaded anew sends it
        return go("/tokens", said="token_made_before")
    return show("tokens.html", **await _shown(ask), minted=minted)


@pages.post("/tokens/{id}/revoke", roles=["admin"])
async def revoke(ask: Ask) -> View | Reply:
    """End a token for good."""
    await ask.engine.tokens.revoke(ask.who, ask.path["id"])
    return go("/tokens", said="token_revoked")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else text.split()


async def _shown(ask: Ask) -> dict[str, Any]:
    found = await ask.engine.tokens.list(ask.who, before=ask.query.one("before"), limit=AT_ONCE + 1)
    next = {"before": found[AT_ONCE - 1].id} if len(found) > AT_ONCE else None
    turns = ask.query.turns("before", next=next)
    return {"tokens": found[:AT_ONCE], "turns": turns, "roles": sorted(ROLES), "key": wire.new_id()}
