"""The list of jobs: filters in the URL, newest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

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
from interlock.dashboard.newest import MAX_PAGE_SIZE
from interlock.dashboard.render import amount, local
from interlock.domain.attention import MAX_COUNTED, Need
from interlock.domain.job import SEARCHED_JOBS, Filter, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.registry import QueueStats
from interlock.errors import Invalid

pages = Pages()

PAGE_SIZE: Final = 50
MAX_SUGGESTED_TYPES: Final = 200
MAX_RETRYING: Final = 200
MAX_MATCHES: Final = 200  # of a filter that no counter knows
REPEATABLE: Final = ("status", "tag")  # of the other filters the last value counts
FILTERS: Final = (
    *REPEATABLE, "type", "agent", "worker", "parent", "stale_seconds", "created_after", "created_before",
)  # fmt: skip


class Counts(NamedTuple):
    """The jobs of each status; `matches` is how many were counted if they are not all, the newest if there are more."""

    by_status: Mapping[Status, str]
    matches: int | None = None
    has_more: bool = False


@pages.get("/jobs")
async def jobs(request: PageRequest) -> View | PageResponse:
    """List the jobs that match the filter."""
    return await list_jobs(request)


async def list_jobs(request: PageRequest, *, nothing_selected: bool = False) -> View:
    """Show the list; an invalid filter gets its errors beside the fields, and no jobs."""
    query, found, errors = request.query, list[Job](), dict[str, str]()
    try:
        found = await _found(request)
    except Invalid as error:
        errors = field_errors(error, {"before": "", "limit": ""})
    queues = await request.client.queues.list(limit=None)
    counts = Counts({}) if errors else await _counts(request, queues, found)
    types = [(queue.type, sum(_by_status(queue).values())) for queue in queues[:MAX_SUGGESTED_TYPES]]
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
        attention=query.one("attention"),
        needs=await _needs(request),
        search=query.one("search"),
        is_filtered=bool(filter_labels(query)),
        filters=list(FILTERS),
        unsearched=query.encoded(without=("search", *TRANSIENT)),
        unfiltered=query.encoded(without=(*FILTERS, *TRANSIENT)),
        counts=counts,
        searched_jobs=SEARCHED_JOBS,
        max_found=MAX_PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_retrying=MAX_RETRYING,
        types=types,
        chosen=set(query.all("status")),
    )


async def _found(request: PageRequest) -> list[Job]:
    """Return the jobs of this page and one more; a search and what needs attention combine with the filter."""
    query, before = request.query, request.query.integer("before")
    search, attention, filter = query.one("search"), query.one("attention"), filter_from(query)
    if attention is not None:
        need = None if attention == "true" else one_of(Need, attention, "attention")
        return await request.client.overview.needing_attention(
            need=need, before_seq=before, limit=PAGE_SIZE + 1, filter=filter, search=search
        )
    if search is not None:
        return await request.client.jobs.search(search, limit=PAGE_SIZE, filter=filter)
    return await request.client.jobs.list(filter._replace(before_seq=before, limit=PAGE_SIZE + 1))


async def _needs(request: PageRequest) -> dict[str, str]:
    """Return how many jobs have each need, by the value of `attention`, up to a maximum."""
    counted = request.client.overview.count_attention
    counts = {str(need): await counted(need=need) for need in Need}
    counts["true"] = sum(counts.values())
    return {name: amount(count) if count < MAX_COUNTED else f"{amount(MAX_COUNTED)}+" for name, count in counts.items()}


async def _counts(request: PageRequest, queues: Sequence[QueueStats], listed: Sequence[Job]) -> Counts:
    """Return the jobs of each status: of the chosen type or of all from the counters, else among the newest matches.

    A search and what needs attention have no counts.
    """
    query = request.query
    if query.one("search") or query.one("attention"):
        return Counts({})
    if not {name for name, _ in filter_labels(query)} - {"status", "type"}:
        return Counts(await _totals(request, queues))
    # To find few jobs among very many takes long: a list of all matches is not read again.
    is_whole = len(listed) <= PAGE_SIZE and not query.all("status") and query.one("before") is None
    others = filter_from(query)._replace(statuses=(), limit=MAX_MATCHES)
    found = Counter(job.status for job in (listed if is_whole else await request.client.jobs.list(others)))
    matches = found.total()
    return Counts({status: amount(found[status]) for status in Status}, matches, matches == MAX_MATCHES)


async def _totals(request: PageRequest, queues: Sequence[QueueStats]) -> dict[Status, str]:
    """Return the jobs of each status from the counters.

    The counters do not tell queued jobs from retrying ones, of which there are few: they are counted up to a maximum.
    """
    type = request.query.one("type")
    totals: Counter[Status] = Counter()
    for queue in queues:
        if type in (None, queue.type):
            totals.update(_by_status(queue))
    retrying = len(await request.client.jobs.list(Filter(statuses=(Status.RETRY,), type=type, limit=MAX_RETRYING)))
    is_exact = retrying < MAX_RETRYING
    counts = {status: amount(totals[status]) for status in Status}
    queued = amount(max(totals[Status.QUEUED] - retrying, 0))
    return counts | {
        Status.QUEUED: queued if is_exact else f"up to {queued}",
        Status.RETRY: amount(retrying) if is_exact else f"{MAX_RETRYING}+",
    }


def _by_status(queue: QueueStats) -> dict[Status, int]:
    """Return the jobs of a type from its counters; retrying jobs count as queued."""
    return {
        Status.QUEUED: queue.ready + queue.delayed + queue.blocked,
        Status.WAITING_FOR_APPROVAL: queue.waiting_for_approval,
        Status.RUNNING: queue.in_progress,
        Status.SUCCEEDED: queue.succeeded,
        Status.FAILED: queue.failed,
        Status.DEAD_LETTER: queue.dead_letter,
        Status.CANCELLED: queue.cancelled,
    }


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
