"""REST routes of jobs."""

from __future__ import annotations

from typing import Any

from interlock.api.moonmind.auth import BASE
from interlock.api.moonmind.service import (
    AcknowledgeCancelRequest,
    CancelRequest,
    ClaimRequest,
    CompleteRequest,
    EnqueueRequest,
    FailRequest,
    HeartbeatRequest,
    ListJobsQuery,
    QueueService,
    ResubmitRequest,
    RuntimeStateRequest,
)
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond

routes = RouteTable()


def queue(call: RequestContext[Any, Any]) -> QueueService:
    return QueueService(call.engine, call.who, sanitized=call.sanitized)


@routes.add("POST", f"{BASE}/jobs", roles=["produce"], body=EnqueueRequest, answers={201: None})
async def enqueue_job(call: RequestContext[EnqueueRequest, Nothing]) -> Response:
    """Enqueue a job."""
    return respond(await queue(call).enqueue(call.body), 201)


@routes.add("GET", f"{BASE}/jobs", roles=["read"], query=ListJobsQuery, answers={200: None})
async def list_jobs(call: RequestContext[None, ListJobsQuery]) -> Response:
    """List jobs, newest first."""
    return respond(await queue(call).list(call.query))


@routes.add("GET", f"{BASE}/jobs/{{job_id}}", roles=["read"], answers={200: None})
async def get_job(call: RequestContext[None, Nothing]) -> Response:
    """Read a job."""
    return respond(await queue(call).get(call.path["job_id"]))


@routes.add("POST", f"{BASE}/jobs/claim", roles=["work"], body=ClaimRequest, answers={200: None})
async def claim_job(call: RequestContext[ClaimRequest, Nothing]) -> Response:
    """Lease the next job that the worker may claim."""
    return respond(await queue(call).claim(call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/heartbeat", roles=["work"], body=HeartbeatRequest, answers={200: None})
async def heartbeat_job(call: RequestContext[HeartbeatRequest, Nothing]) -> Response:
    """Extend the lease of a job."""
    return respond(await queue(call).heartbeat(call.path["job_id"], call.body))


@routes.add(
    "POST",
    f"{BASE}/jobs/{{job_id}}/complete",
    roles=["work"],
    body=CompleteRequest,
    sanitizes=True,
    answers={200: None},
)
async def complete_job(call: RequestContext[CompleteRequest, Nothing]) -> Response:
    """Complete a job."""
    return respond(await queue(call).complete(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/fail", roles=["work"], body=FailRequest, sanitizes=True, answers={200: None}
)
async def fail_job(call: RequestContext[FailRequest, Nothing]) -> Response:
    """Fail a job."""
    return respond(await queue(call).fail(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel", roles=["operate", "produce"], body=CancelRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def cancel_job(call: RequestContext[CancelRequest, Nothing]) -> Response:
    """Cancel a job: immediately unless it is running, else by request."""
    return respond(await queue(call).cancel(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel/ack", roles=["work"], body=AcknowledgeCancelRequest, answers={200: None}
)
async def acknowledge_cancel(call: RequestContext[AcknowledgeCancelRequest, Nothing]) -> Response:
    """Acknowledge a cancel request."""
    return respond(await queue(call).acknowledge(call.path["job_id"], call.body))


@routes.add(
    "POST",
    f"{BASE}/jobs/{{job_id}}/runtime-state",
    roles=["work"],
    body=RuntimeStateRequest,
    sanitizes=True,
    answers={200: None},
)
async def save_runtime_state(call: RequestContext[RuntimeStateRequest, Nothing]) -> Response:
    """Save a checkpoint."""
    return respond(await queue(call).save_state(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/resubmit", roles=["operate"], body=ResubmitRequest, body_optional=True,
    answers={201: None},
)  # fmt: skip
async def resubmit_job(call: RequestContext[ResubmitRequest, Nothing]) -> Response:
    """Redrive a terminal job as a new one."""
    return respond(await queue(call).resubmit(call.path["job_id"], call.body), 201)
