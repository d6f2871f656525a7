"""Pages of lists: how many, from where, and the sealed cursor to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta

from interlock.api.cursors import Place
from interlock.api.routes import Request, RequestContext, Response, respond

MAX_LENGTH = 200
Limit = Annotated[int, Meta(ge=1, le=MAX_LENGTH)]


class Page(Request, frozen=True, kw_only=True):
    """Which part of a list."""

    limit: Limit = 50
    cursor: str | None = None


class Paged(Protocol):
    """A query for one page of a list."""

    @property
    def cursor(self) -> str | None: ...


def cursor_position(call: RequestContext[Any, Paged], what: str) -> Place | None:
    """Where the last page ended; the cursor of another list or tenant is refused."""
    return call.service.cursors.open(call.who.tenant, what, call.query.cursor)


def page(call: RequestContext[Any, Paged], what: str, items: Sequence[Any], *, more: bool, end: Place) -> Response:
    """Items and, if there may be more, the cursor of the next page."""
    cursor = call.service.cursors.signing_key(call.who.tenant, what, end) if more and items else None
    return respond({"items": items, "next_cursor": cursor})
