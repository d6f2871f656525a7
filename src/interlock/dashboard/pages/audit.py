"""Audit: search, verify and export histories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import msgspec

from interlock.dashboard.http import Fields, PageRequest, PageResponse, Pages, View, download, field_errors, show
from interlock.dashboard.render import local
from interlock.domain.job import HistoryRow
from interlock.errors import Invalid
from interlock.wire.encode import history_to_dict, log_to_dict

pages = Pages()

MAX_JOBS: Final = 2_000
MAX_ROWS: Final = 100
SEARCH: Final = ("job", "actor", "after", "before")


class Finding(NamedTuple):
    """Matching rows, how many jobs were read for them, and where to continue; None at the end."""

    rows: list[HistoryRow]
    jobs: int
    next: int | None


@pages.get("/audit", roles=["admin"])
async def audit(request: PageRequest) -> View | PageResponse:
    """Show the search form, and the results of a search."""
    finding, errors = None, dict[str, str]()
    try:
        finding = await _search(request) if any(request.query.one(name) for name in SEARCH) else None
    except Invalid as error:
        errors = field_errors(error, {"from_seq": ""})
    next = None if finding is None or finding.next is None else {"from_seq": finding.next}
    paging = request.query.paging("from_seq", next=next)
    return _view(request, finding=finding, paging=paging, errors=errors)


@pages.get("/audit/verify", roles=["admin"])
async def verify(request: PageRequest) -> View | PageResponse:
    """Recompute the next chains."""
    part = await request.client.audit.verify(after=request.query.one("last"), jobs=MAX_JOBS)
    verified = (request.query.integer("verified") or 0) + part.jobs
    return _view(request, part=part, verified=verified)


@pages.get("/audit/head", roles=["admin"])
async def head(request: PageRequest) -> View | PageResponse:
    """Show the hash over all chain heads of the tenant."""
    return _view(request, head=await request.client.audit.head())


@pages.get("/audit/log", roles=["admin"])
async def log(request: PageRequest) -> View | PageResponse:
    """List operator actions, oldest first."""
    after = request.query.integer("after") or 0
    rows = await request.client.audit.log(after=after, limit=MAX_ROWS)
    next = {"after": rows[-1].seq} if len(rows) == MAX_ROWS else None
    return show("audit_log.html", rows=rows, paging=request.query.paging("after", next=next))


@pages.get("/audit/export", roles=["admin"])
async def export(request: PageRequest) -> View | PageResponse:
    """Export all histories as JSON lines."""
    return download(f"interlock-history-{request.now}.jsonl", stream=_lines(request))


def _view(request: PageRequest, **context: Any) -> View:
    usual: dict[str, Any] = {"finding": None, "paging": None, "part": None, "head": None, "verified": 0, "errors": {}}
    times = {name: _time(request.query, name) for name in ("after", "before")}
    status = Invalid.status if context.get("errors") else 200
    return show("audit.html", status=status, **(usual | context), times=times)


def _time(query: Fields, name: str) -> str:
    try:
        return local(query.timestamp(name))
    except Invalid:
        return ""


async def _search(request: PageRequest) -> Finding:
    """Search one job, or a bounded number of jobs in order of creation."""
    matches, job = _predicate(request.query), request.query.job_id("job")
    if job is not None:
        history = await request.client.jobs.history(job)
        return Finding([row for row in history if matches(row)], 1, None)
    found, jobs = Finding([], 0, None), 0
    async for page in request.client.audit.export(after=request.query.integer("from_seq") or 0):
        for export in page:
            jobs += 1
            found.rows.extend(filter(matches, export.rows))
            if len(found.rows) >= MAX_ROWS or jobs >= MAX_JOBS:
                return found._replace(jobs=jobs, next=export.seq)
    return found._replace(jobs=jobs)


def _predicate(query: Fields) -> Callable[[HistoryRow], bool]:
    actor, after, before = query.one("actor"), query.timestamp("after"), query.timestamp("before")

    def matches(row: HistoryRow) -> bool:
        return (
            (actor is None or actor in (row.actor, row.actor.partition(":")[2]))
            and (after is None or row.at >= after)
            and (before is None or row.at < before)
        )

    return matches


async def _lines(request: PageRequest) -> AsyncIterator[bytes]:
    async for page in request.client.audit.export():
        for export in page:
            for row in export.rows:
                yield msgspec.json.encode({"job_id": row.job_id, **history_to_dict(row)}) + b"\n"
    after = 0
    while rows := await request.client.audit.log(after=after, limit=MAX_ROWS):
        for entry in rows:
            yield msgspec.json.encode(log_to_dict(entry)) + b"\n"
        after = rows[-1].seq
