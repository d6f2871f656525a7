"""The list of jobs: filters in the URL, newest first."""

from __future__ import annotations

from typing import Final

from interlock import wire
from interlock.dashboard.http import (
    TRANSIENT,
    Fields,
    PageRequest,
    PageResponse,
    Pages,
    View,
    field_errors,
    one_of,
    show,
)  # fmt: skip
from interlock.dashboard.render import local
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Invalid

pages = Pages()

PAGE_SIZE: Final = 50
MAX_SUGGESTED_TYPES: Final = 200
REPEATABLE: Final = ("status", "tag")  # of the other filters the last value counts
FILTERS: Final = (
    *REPEATABLE, "type", "agent", "worker", "parent", "stale_seconds", "created_after", "created_before",
)  # fmt: skip


@pages.get("/jobs")
async def jobs(request: PageRequest) -> View | PageResponse:
    """List the jobs that match the filter."""
    return await list_jobs(request)


async def list_jobs(request: PageRequest, *, nothing_selected: bool = False) -> View:
    """Show the list; an invalid filter gets its errors beside the fields, and no jobs."""
    query, found, errors = request.query, list[Job](), dict[str, str]()
    try:
        filter = filter_from(query)._replace(before_seq=query.integer("before"), limit=PAGE_SIZE + 1)
        found = await request.client.jobs.list(filter)
    except Invalid as error:
        errors = field_errors(error, {"before": "", "limit": ""})
    types = [queue.type for queue in await request.client.queues.list(limit=MAX_SUGGESTED_TYPES)]
    listed, paging = query.page(found, PAGE_SIZE, before=lambda job: job.seq)
    ended = [job.id for job in listed if job.status in TERMINAL and job.status is not Status.SUCCEEDED]
    return show(
        "jobs.html",
        status=Invalid.status if errors or nothing_selected else 200,
        jobs=listed,
        redriven=await request.client.overview.redriven(ended),
        errors=errors,
        nothing_selected=nothing_selected,
        times={name: _time(query, name) for name in ("created_after", "created_before")},
        paging=paging,
        newest=query.encoded(without=tuple(TRANSIENT)),
        statuses=list(Status),
        types=types,
        chosen=set(query.all("status")),
    )


def filter_from(query: Fields) -> Filter:
    """Return the filter of a query; raise Invalid with an error for each invalid field."""
    filter = wire.job_filter(
        status=[one_of(Status, value, "status") for value in query.all("status")],
        type=query.one("type"),
        agent=query.one("agent"),
        worker=query.one("worker"),
        stale_seconds=query.number("stale_seconds"),
        parent=query.one("parent"),
        tag=query.all("tag"),
    )
    return filter._replace(
        created_after=query.timestamp("created_after"), created_before=query.timestamp("created_before")
    )


def filter_labels(query: Fields) -> list[tuple[str, str]]:
    """Return the filters of a query with their values."""
    every = ((name, query.all(name) if name in REPEATABLE else [query.one(name)]) for name in FILTERS)
    return [(name, value) for name, values in every for value in values if value is not None]


def _time(query: Fields, name: str) -> str:
    """Return the value of a time field; an invalid one is returned as it was sent."""
    try:
        return local(query.timestamp(name))
    except Invalid:
        return query.one(name) or ""
