"""Operations: redrive jobs, bulk actions, explain, prune, audit."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from interlock.api import problems
from interlock.api.native import encode
from interlock.api.native.jobs import Selection
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import ABSENT, Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.operations import START, Action
from interlock.errors import Invalid
from interlock.wire import responses
from interlock.wire.encode import log_to_dict, worker_to_dict

routes = RouteTable()

AUDIT_BATCH_SIZE = 1000


class OverridesPart(Request, frozen=True, kw_only=True):
    """Fields in which the new job differs from the old one."""

    priority: int | None = None
    run_at: datetime | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    tags: tuple[str, ...] | None = None
    payload: msgspec.Raw = ABSENT


class RedriveRequest(Request, frozen=True, kw_only=True, rename={"origin": "from"}):
    """Options of a redrive. `from` is where the new job starts: `start`, `checkpoint`, or the name of a step."""

    origin: str = START
    overrides: OverridesPart = OverridesPart()
    idempotency_key: str | None = None


class BulkRequest(Request, frozen=True, kw_only=True):
    """A bulk action on jobs selected by IDs or by a filter."""

    action: Action
    ids: tuple[str, ...] | None = None
    filter: Selection | None = None
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    cursor: str | None = None
    reason: str | None = None
    force: bool = False


class PruneRequest(Request, frozen=True, kw_only=True):
    """The terminal jobs to delete: those older than `days`."""

    days: Annotated[float, Meta(ge=0)]
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    dry_run: bool = False


class AuditQuery(Page, frozen=True, kw_only=True):
    """The number of jobs to verify, and the cursor to continue from."""

    limit: Annotated[int, Meta(ge=1, le=AUDIT_BATCH_SIZE)] = AUDIT_BATCH_SIZE


class BulkShape(responses.Shape, frozen=True, kw_only=True):
    """The numbers of matched and changed jobs, and a cursor if there may be more."""

    matched: int
    done: int
    more: bool
    refused: list[responses.ItemRejected]
    next_cursor: str | None


class PrunedShape(responses.Shape, frozen=True, kw_only=True):
    """The number of deleted jobs, and whether there are more."""

    deleted: int
    more: bool


class ReasonShape(responses.Shape, frozen=True, kw_only=True):
    """A reason why a job does not run. The members of `details` depend on the clause."""

    clause: str
    message: str
    details: dict[str, Any]


class WhyShape(ReasonShape, frozen=True, kw_only=True):
    """The main reason why a job does not run, and in `also` the reasons that apply after it."""

    also: list[ReasonShape]


class WorkerShape(responses.Shape, frozen=True, kw_only=True):
    """A worker that claims jobs."""

    name: str
    asks: list[dict[str, Any]]
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    running: int
    jobs: list[str]


class WorkerPage(responses.Shape, frozen=True, kw_only=True):
    """Workers, by name."""

    items: list[WorkerShape]
    next_cursor: str | None


class ChainVerification(responses.Shape, frozen=True, kw_only=True):
    """The result of verifying some jobs. Continue with the cursor until it is null."""

    ok: bool
    jobs: int
    rows: int
    first_bad: str | None
    next_cursor: str | None


class LogEntry(responses.Shape, frozen=True, kw_only=True):
    """An entry of the audit log. Its hash covers the entry and the previous hash."""

    seq: int
    actor: str
    action: str
    object: str
    details: dict[str, Any] | None
    at: datetime
    hash: str


class LogPage(responses.Shape, frozen=True, kw_only=True):
    """The audit log, oldest first."""

    items: list[LogEntry]
    next_cursor: str | None


class Head(responses.Shape, frozen=True, kw_only=True):
    """A hash over the chain heads of all jobs. Store it outside the database."""

    head: str


@routes.add(
    "POST", "/v1/jobs/{job_id}/redrive", roles=["operate"], body=RedriveRequest, body_optional=True,
    headers=["Idempotency-Key"], answers={201: responses.Job, 200: responses.Job},
)  # fmt: skip
async def redrive(call: RequestContext[RedriveRequest, Nothing]) -> Response:
    """Create a new job from a terminal one."""
    wish = call.body.overrides
    payload = bytes(wish.payload)
    done = await call.engine.operations.redrive(
        call.who,
        call.job_id,
        start_from=call.body.origin,
        priority=wish.priority,
        run_at=wish.run_at,
        delay_seconds=wish.delay_seconds,
        max_attempts=wish.max_attempts,
        tags=wish.tags,
        payload=payload or None,
        idempotency_key=call.headers.idempotency_key(call.body.idempotency_key),
    )
    job = await call.engine.queries.job(call.who.tenant, done.id)
    headers = encode.etag(job) | {"location": f"/v1/jobs/{job.id}"}
    if done.replayed:
        return respond(await encode.job(call, job), 200, headers=headers | {"idempotent-replay": "true"})
    return respond(await encode.job(call, job), 201, headers=headers)


@routes.add("POST", "/v1/jobs/bulk", roles=["operate"], body=BulkRequest, answers={200: BulkShape})
async def bulk(call: RequestContext[BulkRequest, Nothing]) -> Response:
    """Cancel, redrive or acknowledge many jobs. To continue, repeat the call."""
    body, tenant = call.body, call.who.tenant
    at = call.service.cursors.open(tenant, "bulk", body.cursor)
    try:
        filter = None if body.filter is None else body.filter.filter(limit=body.limit)
    except Invalid as error:
        raise error.within("/filter") from None
    if at is not None:
        if filter is None:
            raise Invalid("cursor needs the filter of the first call", pointer="/cursor")
        filter = filter._replace(before_seq=int(at[0]))
    done = await call.engine.operations.bulk(
        call.who,
        body.action,
        ids=body.ids,
        filter=filter,
        dry_run=body.dry_run,
        limit=body.limit,
        reason=body.reason,
        force=body.force,
    )
    refused = [problems.item(id, error) for id, error in done.refused]
    cursor = None if done.before_seq is None else call.service.cursors.signing_key(tenant, "bulk", [done.before_seq])
    results = {"matched": done.matched, "done": done.done, "more": done.more, "refused": refused}
    return respond(results | {"next_cursor": cursor})


@routes.add("GET", "/v1/jobs/{job_id}/why", roles=["read"], answers={200: WhyShape})
async def explain_job(call: RequestContext[None, Nothing]) -> Response:
    """Explain why a job does not run."""
    return respond((await call.engine.why.of(call.who.tenant, call.job_id)).to_dict())


@routes.add("GET", "/v1/workers", roles=["read"], query=Page, answers={200: WorkerPage})
async def list_workers(call: RequestContext[None, Page]) -> Response:
    """List the workers that claim jobs, by name."""
    at = cursor_position(call, "workers")
    after = "" if at is None else str(at[0])
    found = await call.engine.workers.seen(call.who.tenant, after=after, limit=call.query.limit)
    end: list[int | str] = [one.name for one in found[-1:]]
    return page(call, "workers", [worker_to_dict(one) for one in found], more=len(found) == call.query.limit, end=end)


@routes.add("POST", "/v1/prune", roles=["admin"], body=PruneRequest, answers={200: PrunedShape})
async def prune(call: RequestContext[PruneRequest, Nothing]) -> Response:
    """Delete old terminal jobs with their steps, events, history and artifacts."""
    body = call.body
    done = await call.engine.retention.prune(call.who, body.days, limit=body.limit, dry_run=body.dry_run)
    return respond({"deleted": done.deleted, "more": done.more})


@routes.add("GET", "/v1/audit/verify", roles=["admin"], query=AuditQuery, answers={200: ChainVerification})
async def verify_audit(call: RequestContext[None, AuditQuery]) -> Response:
    """Verify the history chains of some jobs and return the first invalid row."""
    at = cursor_position(call, "audit")
    part = await call.engine.audit.verify_part(
        call.who.tenant, after=None if at is None else str(at[0]), jobs=call.query.limit
    )
    cursor = None if part.next is None else call.service.cursors.signing_key(call.who.tenant, "audit", [part.next])
    return respond(
        {
            "ok": part.first_bad is None,
            "jobs": part.jobs,
            "rows": part.rows,
            "first_bad": part.first_bad,
            "next_cursor": cursor,
        }
    )


@routes.add("GET", "/v1/audit/log", roles=["read"], query=Page, answers={200: LogPage})
async def audit_log(call: RequestContext[None, Page]) -> Response:
    """List the audit log of operator actions, oldest first."""
    at = cursor_position(call, "audit log")
    limit = call.query.limit
    rows = await call.engine.audit.log(call.who.tenant, after=0 if at is None else int(at[0]), limit=limit)
    end: list[int | str] = [row.seq for row in rows[-1:]]
    return page(call, "audit log", [log_to_dict(row) for row in rows], more=len(rows) == limit, end=end)


@routes.add("GET", "/v1/audit/head", roles=["admin"], answers={200: Head})
async def audit_head(call: RequestContext[None, Nothing]) -> Response:
    """Return a hash over the chain heads of all jobs of the tenant."""
    return respond({"head": await call.engine.queries.head(call.who.tenant)})
