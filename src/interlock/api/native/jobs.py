"""Jobs: enqueue, read, list, edit and cancel them, and wait for their results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from interlock import wire
from interlock.api import auth
from interlock.api.long_poll import waiting
from interlock.api.native import encode
from interlock.api.native.pagination import Limit, Page, cursor_position, page
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.job import Filter
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Invalid
from interlock.wire import JobRequest, responses
from interlock.wire.encode import history_to_dict, receipt_to_dict

routes = RouteTable()


class EnqueueBatch(Request, frozen=True, kw_only=True):
    """Jobs to enqueue in one transaction: all or none."""

    jobs: list[JobRequest]


class Selection(Request, frozen=True, kw_only=True):
    """Filter for jobs."""

    status: Status | tuple[Status, ...] = ()
    type: str | None = None
    agent: str | None = None
    worker: str | None = None
    stale_seconds: Annotated[float, Meta(ge=0, le=wire.MAX_DELAY_SECONDS)] | None = None
    parent: str | None = None
    tag: str | tuple[str, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None

    def filter(self, *, limit: int, before_seq: int | None = None) -> Filter:
        return wire.job_filter(
            status=(self.status,) if isinstance(self.status, str) else self.status,
            type=self.type,
            agent=self.agent,
            worker=self.worker,
            stale_seconds=self.stale_seconds,
            parent=self.parent,
            tag=(self.tag,) if isinstance(self.tag, str) else self.tag,
            created_after=self.created_after,
            created_before=self.created_before,
            before_seq=before_seq,
            limit=limit,
        )


class JobQuery(Selection, frozen=True, kw_only=True):
    """Filter and page of a list of jobs."""

    search: str | None = None
    attention: bool = False
    limit: Limit = 50
    cursor: str | None = None


class EditRequest(Request, frozen=True, kw_only=True):
    """Fields to change. A deadline of null removes it."""

    priority: int | None = None
    run_at: datetime | None = None
    deadline: datetime | UnsetType | None = UNSET
    max_attempts: int | None = None
    tags: tuple[str, ...] | None = None


class CancelRequest(Request, frozen=True, kw_only=True):
    """Options of a cancel: the reason, `force` to not wait for the worker, `cascade` to include descendants."""

    reason: str | None = None
    force: bool = False
    cascade: bool = False


class Comment(Request, frozen=True, kw_only=True):
    """An optional comment, kept in the history."""

    comment: str | None = None


class Reason(Request, frozen=True, kw_only=True):
    """The reason of an operation."""

    reason: str | None = None


@routes.add(
    "POST", "/v1/jobs", roles=["produce"], body=JobRequest, answers={201: responses.Job, 200: responses.Job},
    headers=["Idempotency-Key", "traceparent"],
)  # fmt: skip
async def enqueue(call: RequestContext[JobRequest, Nothing]) -> Response:
    """Enqueue a job. Repeating the call with the same idempotency key returns the existing job."""
    key = call.headers.idempotency_key(call.body.idempotency_key)
    request = call.body if key == call.body.idempotency_key else msgspec.structs.replace(call.body, idempotency_key=key)
    job, replayed = await call.engine.jobs.add(call.who, request, traceparent=call.traceparent)
    headers = encode.etag(job) | {"location": f"/v1/jobs/{job.id}"}
    if replayed:
        return respond(await encode.job(call, job), 200, headers=headers | {"idempotent-replay": "true"})
    return respond(encode.new_job(job), 201, headers=headers)


@routes.add(
    "POST", "/v1/jobs/batch", roles=["produce"], body=EnqueueBatch, answers={201: responses.EnqueuedJobs},
    headers=["traceparent"],
)  # fmt: skip
async def enqueue_batch(call: RequestContext[EnqueueBatch, Nothing]) -> Response:
    """Enqueue up to 1000 jobs, all or none."""
    if call.headers.get("idempotency-key") is not None:
        raise Invalid("a batch has no idempotency key: give one to each job", pointer="/jobs")
    added = await call.engine.jobs.add_batch(call.who, call.body.jobs, traceparent=call.traceparent)
    now = await call.engine.queries.now() if any(one.replayed for one in added) else None
    return respond({"jobs": [encode.added(one, now) for one in added]}, 201)


@routes.add("GET", "/v1/jobs", roles=["read"], query=JobQuery, answers={200: responses.JobPage})
async def list_jobs(call: RequestContext[None, JobQuery]) -> Response:
    """List jobs, newest first, without payloads.

    `search` finds jobs by ID, its last 8 or more characters, or idempotency key, then by text in payload, error, tags
    and the name of the requester, in the newest 5000 jobs.

    `attention=true` lists unacknowledged failures that were not redriven, and due jobs that no present worker could
    claim. With a search or other filters it lists those of the newest 5000 that match; a search with other filters
    lists those of its first 200 jobs that match.
    """
    if call.query.attention:
        return await _needing_attention(call)
    if call.query.search is not None:
        if call.query.cursor is not None:
            raise Invalid("search cannot be combined with a cursor", pointer="/search")
        matches = await call.engine.queries.search(
            call.who.tenant, call.query.search, limit=call.query.limit,
            filter=call.query.filter(limit=call.query.limit),
        )  # fmt: skip
        return page(call, "jobs", await encode.listed(call, matches), more=False, end=[0])
    at = cursor_position(call, "jobs")
    filter = call.query.filter(limit=call.query.limit, before_seq=None if at is None else int(at[0]))
    found = await call.engine.queries.jobs(call.who.tenant, filter)
    return page(
        call,
        "jobs",
        await encode.listed(call, found),
        more=len(found) == call.query.limit,
        end=[found[-1].seq if found else 0],
    )


async def _needing_attention(call: RequestContext[None, JobQuery]) -> Response:
    query = call.query
    at = cursor_position(call, "attention")
    before = None if at is None else int(at[0])
    found = await call.engine.attention.page(
        call.who.tenant, before_seq=before, limit=query.limit, filter=query.filter(limit=query.limit),
        search=query.search,
    )  # fmt: skip
    listed, last = await encode.listed(call, found), found[-1].seq if found else 0
    return page(call, "attention", listed, more=len(found) == query.limit, end=[last])


@routes.add(
    "GET", "/v1/jobs/{job_id}", roles=["read"], on_condition=["work"], answers={200: responses.Job}
)  # fmt: skip
async def get_job(call: RequestContext[None, Nothing]) -> Response:
    """Return a job. The lease holder of the job or of its parent may also read it."""
    job = await auth.readable(call)
    return respond(await encode.job(call, job), headers=encode.etag(job))


@routes.add("GET", "/v1/jobs/{job_id}/history", roles=["read"], query=Page, answers={200: responses.HistoryPage})
async def list_history(call: RequestContext[None, Page]) -> Response:
    """List every transition of a job, oldest first."""
    id = call.job_id
    at = cursor_position(call, f"history {id}")
    after = 0 if at is None else int(at[0])
    rows = await call.engine.queries.history(call.who.tenant, id, after=after, limit=call.query.limit + 1)
    some = rows[: call.query.limit]
    end = [some[-1].version if some else after]
    return page(call, f"history {id}", [history_to_dict(row) for row in some], more=len(rows) > len(some), end=[*end])


@routes.add(
    "GET", "/v1/jobs/{job_id}/children", roles=["read"], on_condition=["work"], query=Page,
    answers={200: responses.JobPage},
)  # fmt: skip
async def list_children(call: RequestContext[None, Page]) -> Response:
    """List the children of a job, newest first."""
    job = await auth.readable(call)
    at = cursor_position(call, f"children {job.id}")
    filter = Filter(parent_id=job.id, before_seq=None if at is None else int(at[0]), limit=call.query.limit)
    found = await call.engine.queries.jobs(call.who.tenant, filter)
    return page(
        call, f"children {job.id}", await encode.listed(call, found), more=len(found) == call.query.limit,
        end=[found[-1].seq if found else 0],
    )  # fmt: skip


@routes.add(
    "PATCH",
    "/v1/jobs/{job_id}",
    roles=["operate"],
    body=EditRequest,
    headers=["If-Match"],
    answers={200: responses.Job},
)
async def edit_job(call: RequestContext[EditRequest, Nothing]) -> Response:
    """Edit a queued or retrying job. With If-Match, the edit is rejected if the version differs."""
    body = call.body
    await call.engine.jobs.edit(
        call.who,
        call.job_id,
        priority=body.priority,
        run_at=body.run_at,
        deadline=None if isinstance(body.deadline, UnsetType) else body.deadline,
        drop_deadline=body.deadline is None,
        max_attempts=body.max_attempts,
        tags=body.tags,
        expected_version=call.headers.if_match(),
    )
    job = await call.engine.queries.job(call.who.tenant, call.job_id)
    return respond(await encode.job(call, job), headers=encode.etag(job))


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/run-now",
    roles=["operate"],
    body=Nothing,
    body_optional=True,
    answers={200: responses.Job},
)
async def run_now(call: RequestContext[Nothing, Nothing]) -> Response:
    """Make a queued or retrying job due now."""
    await call.engine.jobs.run_now(call.who, call.job_id)
    job = await call.engine.queries.job(call.who.tenant, call.job_id)
    return respond(await encode.job(call, job), headers=encode.etag(job))


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/acknowledge",
    roles=["operate"],
    body=Comment,
    body_optional=True,
    answers={200: responses.Job},
)
async def acknowledge(call: RequestContext[Comment, Nothing]) -> Response:
    """Acknowledge a failed or dead-letter job, so that it no longer needs attention. Its status stays the same."""
    await call.engine.jobs.acknowledge(call.who, call.job_id, comment=call.body.comment)
    job = await call.engine.queries.job(call.who.tenant, call.job_id)
    return respond(await encode.job(call, job), headers=encode.etag(job))


@routes.add(
    "POST", "/v1/jobs/{job_id}/cancel", roles=["operate"], on_condition=["produce"], body=CancelRequest,
    body_optional=True, answers={200: responses.CancelReceipt},
)  # fmt: skip
async def cancel(call: RequestContext[CancelRequest, Nothing]) -> Response:
    """Cancel a job. A running job gets a cancel request, unless `force` is set. A producer may cancel its own jobs."""
    body = call.body
    if not call.who.may("operate"):
        if body.cascade:  # its descendants may have other creators
            raise auth.lacks(call.route)
        await auth.created(call)
    if body.cascade:
        tree = await call.engine.operations.cancel_tree(call.who, call.job_id, reason=body.reason, force=body.force)
        return respond(receipt_to_dict(tree.receipt) | {"descendants": tree.descendants})
    done = await call.engine.jobs.cancel(call.who, call.job_id, reason=body.reason, force=body.force)
    return respond(receipt_to_dict(done))


@routes.add(
    "POST", "/v1/jobs/{job_id}/revoke", roles=["operate"], body=Reason, body_optional=True,
    answers={200: responses.Receipt},
)  # fmt: skip
async def revoke(call: RequestContext[Reason, Nothing]) -> Response:
    """Revoke the lease of a running job, as if it had expired."""
    return respond(receipt_to_dict(await call.engine.jobs.revoke(call.who, call.job_id, reason=call.body.reason)))


class Wait(Request, frozen=True, kw_only=True):
    """Options of a long poll."""

    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


@routes.add(
    "GET", "/v1/jobs/{job_id}/result", roles=["read"], on_condition=["work"], query=Wait,
    answers={200: responses.Job, 202: responses.JobStatus},
)  # fmt: skip
async def wait_for_result(call: RequestContext[None, Wait]) -> Response:
    """Wait until a job is terminal: 200 with the job, or 202 with its status after `wait_seconds`."""
    job = await auth.readable(call)
    if job.status not in TERMINAL and call.query.wait_seconds:
        async with waiting(call) as enough:
            job = await call.engine.waits.ended(
                call.who.tenant, job.id, wait_seconds=call.query.wait_seconds, enough=enough
            )
    seen = await encode.job(call, job)
    if job.status in TERMINAL:
        return respond(seen, headers=encode.etag(job))
    return respond({"id": job.id, "status": job.status, "location": seen.location}, 202)
