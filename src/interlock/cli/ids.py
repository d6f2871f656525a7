"""Shortened IDs on the command line: the last 8 or more characters, if they match exactly one item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from interlock import wire
from interlock.client.port import Client
from interlock.domain.approval import ApprovalFilter
from interlock.domain.identifiers import id_end, is_shortened
from interlock.domain.webhook import DeliveryFilter
from interlock.errors import Invalid, NotFound

PAGE: Final = 200
CANDIDATES: Final = 10


async def job(client: Client, text: str, field: str = "id") -> str:
    """Return the complete ID of a job."""
    if not is_shortened(text):
        return wire.job_id(text, field)
    found = await client.jobs.search(text, limit=CANDIDATES + 1)
    return only(text, [one.id for one in found if ends(one.id, text)], "job")


async def approval(client: Client, text: str) -> str:
    filter = ApprovalFilter(limit=PAGE)
    return await _search(
        text, "approval", lambda last: client.approvals.list(filter._replace(before=last and (last.opened_at, last.id)))
    )


async def token(client: Client, text: str) -> str:
    return await _search(text, "token", lambda last: client.tokens.list(before=last and last.id, limit=PAGE))


async def subscription(client: Client, text: str) -> str:
    return await _search(
        text, "subscription", lambda last: client.subscriptions.list(before=last and last.id, limit=PAGE)
    )


async def delivery(client: Client, text: str) -> str:
    filter = DeliveryFilter(limit=PAGE)
    return await _search(
        text, "delivery", lambda last: client.subscriptions.deliveries(filter._replace(before=last and last.id))
    )


async def _search(text: str, what: str, page_after: Callable[[Any], Awaitable[Sequence[Any]]]) -> str:
    """Find the ID with this ending in a list, page by page."""
    if not is_shortened(text):
        return text
    found: list[str] = []
    last: Any = None
    while len(found) <= CANDIDATES and (page := await page_after(last)):
        found += [one.id for one in page if ends(one.id, text)]
        last = page[-1]
    return only(text, found, what)


def ends(id: str, text: str) -> bool:
    """Return whether the ID ends with this text."""
    end = id_end(text)
    return end is not None and id.endswith(end)


def only(text: str, found: Sequence[str], what: str) -> str:
    """Return the only ID found; raise an error for none or several."""
    if not found:
        raise NotFound(text, resource=what)
    if len(found) > 1:
        more = " and more" if len(found) > CANDIDATES else ""
        listed = ", ".join(found[:CANDIDATES])
        raise Invalid(f"{text!r} is the end of several {what} IDs: {listed}{more}; give more characters", pointer="/id")
    return found[0]
