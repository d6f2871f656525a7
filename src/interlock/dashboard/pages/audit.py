"""Audit: histories searched, their chains recomputed, and all of it handed out to be kept elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import msgspec

from interlock import wire
from interlock.dashboard.web import Ask, Fields, Pages, Reply, View, download, show
from interlock.domain.job import HistoryRow
from interlock.errors import Invalid, NotFound

pages = Pages()

JOBS_AT_ONCE: Final = 2_000
ROWS_SHOWN: Final = 100
SEARCH: Final = ("job", "actor", "after", "before")


class Finding(NamedTuple):
    """Rows that fit, how many jobs were read for them, and the place from where to read on; None at the end."""

    rows: list[HistoryRow]
    jobs: int
    next: int | None


@pages.get("/audit", roles=["admin"])
async def audit(ask: Ask) -> View | Reply:
    """Search when asked to."""
    finding = await _search(ask) if any(ask.query.one(name) for name in SEARCH) else None
    next = None if finding is None or finding.next is None else {"from_seq": finding.next}
    return show(
        "audit.html", finding=finding, turns=ask.query.turns("from_seq", next=next), part=None, head=None, verified=0
    )


@pages.get("/audit/verify", roles=["admin"])
async def verify(ask: Ask) -> View | Reply:
    """Recompute some chains, and say how far it is."""
    part = await ask.engine.audit.verify_part(ask.tenant, after=ask.query.one("last"), jobs=JOBS_AT_ONCE)
    verified = (ask.query.whole("verified") or 0) + part.jobs
    return show("audit.html", finding=None, turns=None, part=part, head=None, verified=verified)


@pages.get("/audit/head", roles=["admin"])
async def head(ask: Ask) -> View | Reply:
    """Show the one hash over all chains of the tenant, to be kept elsewhere."""
    whole = await ask.engine.reads.head(ask.tenant)
    return show("audit.html", finding=None, turns=None, part=None, head=whole, verified=0)


@pages.get("/audit/export", roles=["admin"])
async def export(ask: Ask) -> View | Reply:
    """Hand out every history as lines of JSON."""
    return download(f"interlock-history-{ask.now}.jsonl", stream=_lines(ask))


async def _search(ask: Ask) -> Finding:
    """One job's rows, or those of some jobs in the order of arrival: a look never reads without end."""
    fits, job = _wanted(ask.query), ask.query.one("job")
    if job is not None:
        history = await ask.engine.reads.history(ask.tenant, _job_id(job, "job"))
        return Finding([row for row in history if fits(row)], 1, None)
    found, jobs = Finding([], 0, None), 0
    async for page in ask.engine.audit.export(ask.tenant, after=ask.query.whole("from_seq") or 0):
        for chronicle in page:
            jobs += 1
            found.rows.extend(filter(fits, chronicle.rows))
            if len(found.rows) >= ROWS_SHOWN or jobs >= JOBS_AT_ONCE:
                return found._replace(jobs=jobs, next=chronicle.seq)
    return found._replace(jobs=jobs)


def _wanted(query: Fields) -> Callable[[HistoryRow], bool]:
    actor, after, before = query.one("actor"), query.instant("after"), query.instant("before")

    def fits(row: HistoryRow) -> bool:
        return (
            (actor is None or actor in (row.actor, row.actor.partition(":")[2]))
            and (after is None or row.at >= after)
            and (before is None or row.at < before)
        )

    return fits


def _job_id(value: str, name: str) -> str:
    try:
        return wire.job_id(value)
    except NotFound:
        raise Invalid(f"{name} is the id of a job", pointer=f"/{name}") from None


async def _lines(ask: Ask) -> AsyncIterator[bytes]:
    async for page in ask.engine.audit.export(ask.tenant):
        for chronicle in page:
            for row in chronicle.rows:
                yield msgspec.json.encode({"job_id": row.job_id, **wire.history_to_dict(row)}) + b"\n"
