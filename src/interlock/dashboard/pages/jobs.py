"""The list of jobs: filters in the URL, newest first, page by page."""

from __future__ import annotations

from typing import Final

from interlock import wire
from interlock.dashboard.web import PASSING, Ask, Fields, Pages, Reply, View, one_of, show
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from interlock.errors import Invalid, NotFound

pages = Pages()

AT_ONCE: Final = 50
SEVERAL: Final = ("status", "tag")  # may be said more than once; of the others the last counts
FILTERS: Final = (
    *SEVERAL, "type", "agent", "worker", "parent", "stale_seconds", "created_after", "created_before",
)  # fmt: skip


@pages.get("/jobs")
async def jobs(ask: Ask) -> View | Reply:
    """List jobs that fit the filter."""
    filter = filter_of(ask.query)._replace(before_seq=ask.query.whole("before"), limit=AT_ONCE + 1)
    found = await ask.engine.reads.jobs(ask.tenant, filter)
    types = [queue.type for queue in await ask.engine.reads.queues(ask.tenant)]
    shown = found[:AT_ONCE]
    next = {"before": shown[-1].seq} if len(found) > AT_ONCE else None
    return show(
        "jobs.html",
        jobs=shown,
        turns=ask.query.turns("before", next=next),
        newest=ask.query.encoded(without=tuple(PASSING)),
        statuses=list(Status),
        types=types,
        chosen=set(ask.query.all("status")),
    )


def filter_of(query: Fields) -> Filter:
    """The filter that a query spells."""
    statuses = tuple(one_of(Status, value, "status") for value in query.all("status"))
    parent = query.one("parent")
    stale = query.number("stale_seconds")
    return Filter(
        statuses=statuses,
        type=query.one("type"),
        agent=_agent(query.one("agent")),
        worker=query.one("worker"),
        stale_seconds=wire.seconds(stale, "stale_seconds", 0, wire.LONGEST_DELAY_SECONDS),
        parent_id=None if parent is None else _id(parent),
        tags=tuple(query.all("tag")),
        created_after=query.instant("created_after"),
        created_before=query.instant("created_before"),
    )


def said_of(query: Fields) -> list[tuple[str, str]]:
    """What of a query is a filter, in words; whatever else it says chooses nothing."""
    every = ((name, query.all(name) if name in SEVERAL else [query.one(name)]) for name in FILTERS)
    return [(name, value) for name, values in every for value in values if value is not None]


def _id(value: str) -> str:
    try:
        return wire.job_id(value)
    except NotFound:
        raise Invalid("parent is the id of a job", pointer="/parent") from None


def _agent(given: str | None) -> tuple[str, str] | None:
    kind, slash, id = (given or "").partition("/")
    if given is not None and not slash:
        raise Invalid("agent is given as kind/id", pointer="/agent")
    return None if given is None else (kind, id)
