"""Shortened IDs on the command line: the last 8 or more characters name what has that end, if it is one thing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from interlock import wire
from interlock.domain.approval import ApprovalFilter
from interlock.domain.identifiers import id_end, is_shortened
from interlock.domain.principal import Principal
from interlock.domain.webhook import DeliveryFilter
from interlock.engine.engine import Engine
from interlock.errors import Invalid, NotFound

PAGE: Final = 200
CANDIDATES: Final = 10


async def job(engine: Engine, who: Principal, text: str, field: str = "id") -> str:
    """The ID of one job."""
    if not is_shortened(text):
        return wire.job_id(text, field)
    found = await engine.queries.search(who.tenant, text, limit=CANDIDATES + 1)
    return only(text, [one.id for one in found if ends(one.id, text)], "job")


async def jobs(engine: Engine, who: Principal, texts: Iterable[str]) -> list[str]:
    return [await job(engine, who, text) for text in texts]


async def approval(engine: Engine, who: Principal, text: str) -> str:
    async def pages() -> AsyncIterator[Sequence[str]]:
        filter = ApprovalFilter(limit=PAGE)
        while page := await engine.approvals.list(who.tenant, filter):
            yield [one.id for one in page]
            filter = filter._replace(before=(page[-1].opened_at, page[-1].id))

    return await _search(text, pages(), "approval")


async def token(engine: Engine, who: Principal, text: str) -> str:
    async def pages() -> AsyncIterator[Sequence[str]]:
        before: str | None = None
        while page := await engine.tokens.list(who, before=before, limit=PAGE):
            yield [one.id for one in page]
            before = page[-1].id

    return await _search(text, pages(), "token")


async def subscription(engine: Engine, who: Principal, text: str) -> str:
    async def pages() -> AsyncIterator[Sequence[str]]:
        before: str | None = None
        while page := await engine.webhooks.subscriptions(who, before=before, limit=PAGE):
            yield [one.id for one in page]
            before = page[-1].id

    return await _search(text, pages(), "subscription")


async def delivery(engine: Engine, who: Principal, text: str) -> str:
    async def pages() -> AsyncIterator[Sequence[str]]:
        filter = DeliveryFilter(None, None, None, None, PAGE)
        while page := await engine.webhooks.deliveries(who, filter):
            yield [one.id for one in page]
            filter = filter._replace(before=page[-1].id)

    return await _search(text, pages(), "delivery")


async def _search(text: str, pages: AsyncIterator[Sequence[str]], what: str) -> str:
    if not is_shortened(text):
        return text
    found: list[str] = []
    async for page in pages:
        found += [id for id in page if ends(id, text)]
        if len(found) > CANDIDATES:
            break
    return only(text, found, what)


def ends(id: str, text: str) -> bool:
    """Whether the text is the end of this ID."""
    end = id_end(text)
    return end is not None and id.endswith(end)


def only(text: str, found: Sequence[str], what: str) -> str:
    """The one ID that was found; none and several are errors."""
    if not found:
        raise NotFound(text, resource=what)
    if len(found) > 1:
        more = " and more" if len(found) > CANDIDATES else ""
        listed = ", ".join(found[:CANDIDATES])
        raise Invalid(f"{text!r} is the end of several {what} IDs: {listed}{more}; give more characters", pointer="/id")
    return found[0]
