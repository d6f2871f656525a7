"""All records of one job, page by page: transitions, steps, events, messages and effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock import wire
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, show
from interlock.dashboard.json_tree import tree
from interlock.dashboard.timeline import details
from interlock.domain.usage import USAGE
from interlock.errors import NotFound

pages = Pages()

PAGE_SIZE: Final = 100


class Records(NamedTuple):
    """One kind of records: its name, how a page of them is read, the number and the value of a record."""

    title: str
    read: Callable[[PageRequest, str, int], Awaitable[Sequence[Any]]]
    number: Callable[[Any], int]
    value: Callable[[Any], Any]


KINDS: Final[Mapping[str, Records]] = {
    "transitions": Records(
        "Transitions",
        lambda request, id, after: request.client.overview.history(id, after=after, limit=PAGE_SIZE + 1),
        lambda row: row.version,
        details,
    ),
    "steps": Records(
        "Steps",
        lambda request, id, after: request.client.jobs.steps(id, after=after, limit=PAGE_SIZE + 1),
        lambda step: step.seq,
        lambda step: tree(step.result),
    ),
    "events": Records(
        "Events",
        lambda request, id, after: request.client.jobs.events(id, after=after, limit=PAGE_SIZE + 1),
        lambda event: event.seq,
        lambda event: tree(event.payload),
    ),
    "messages": Records(
        "Messages",
        lambda request, id, after: request.client.jobs.messages(id, after=after, limit=PAGE_SIZE + 1),
        lambda message: message.seq,
        lambda message: tree(message.payload),
    ),
    "effects": Records(
        "Effects",
        lambda request, id, after: request.client.jobs.effects(id, after=after, limit=PAGE_SIZE + 1),
        lambda effect: effect.seq,
        lambda effect: tree(effect.result),
    ),
}


@pages.get("/jobs/{job_id}/records/{kind}")
async def records(request: PageRequest) -> View | PageResponse:
    """Show one kind of records of a job, oldest first."""
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    name = request.path["kind"]
    if (kind := KINDS.get(name)) is None:
        raise NotFound(name, resource="page")
    after = max(request.query.integer("after") or 0, 0)
    listed, paging = request.query.page(await kind.read(request, found.id, after), PAGE_SIZE, after=kind.number)
    return show(
        "job_records.html",
        job=found,
        kind=name,
        kinds={name: one.title for name, one in KINDS.items()},
        records=[(row, kind.value(row)) for row in listed],
        usage_step=USAGE,
        paging=paging,
    )
