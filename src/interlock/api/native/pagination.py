"""Pagination of lists by authenticated cursors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta

from interlock.api.cursors import Place
from interlock.api.routes import Request, RequestContext, Response, respond

MAX_LENGTH = 200
Limit = Annotated[int, Meta(ge=1, le=MAX_LENGTH)]


class Page(Request, frozen=True, kw_only=True):
    """Page size and cursor."""

    limit: Limit = 50
    cursor: str | None = None


class Paged(Protocol):
    """A query for one page of a list."""

    @property
    def cursor(self) -> str | None: ...


def cursor_position(call: RequestContext[Any, Paged], what: str) -> Place | None:
    """Return the end of the previous page. A cursor of another list or tenant is rejected."""
    return call.service.cursors.open(call.who.tenant, what, call.query.cursor)


def page(call: RequestContext[Any, Paged], what: str, items: Sequence[Any], *, more: bool, end: Place) -> Response:
    """Return a page of items and, if there may be more, the cursor of the next page."""
    cursor = call.service.cursors.signing_key(call.who.tenant, what, end) if more and items else None
    return respond({"items": items, "next_cursor": cursor})
