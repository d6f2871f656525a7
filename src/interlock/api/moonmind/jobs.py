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
from interlock.api.routes import Answer, Call, Nothing, Routes, answer

routes = Routes()


def queue(call: Call[Any, Any]) -> QueueService:
    return QueueService(call.engine, call.who, sanitized=call.sanitized)


@routes.add("POST", f"{BASE}/jobs", roles=["produce"], body=EnqueueRequest, answers={201: None})
async def enqueue_job(call: Call[EnqueueRequest, Nothing]) -> Answer:
    """Enqueue a job."""
    return answer(await queue(call).enqueue(call.body), 201)


@routes.add("GET", f"{BASE}/jobs", roles=["read"], query=ListJobsQuery, answers={200: None})
async def list_jobs(call: Call[None, ListJobsQuery]) -> Answer:
    """List jobs, newest first."""
    return answer(await queue(call).list(call.query))


@routes.add("GET", f"{BASE}/jobs/{{job_id}}", roles=["read"], answers={200: None})
async def get_job(call: Call[None, Nothing]) -> Answer:
    """Read a job."""
    return answer(await queue(call).get(call.path["job_id"]))


@routes.add("POST", f"{BASE}/jobs/claim", roles=["work"], body=ClaimRequest, answers={200: None})
async def claim_job(call: Call[ClaimRequest, Nothing]) -> Answer:
    """Lease the next job that the worker may claim."""
    return answer(await queue(call).claim(call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/heartbeat", roles=["work"], body=HeartbeatRequest, answers={200: None})
async def heartbeat_job(call: Call[HeartbeatRequest, Nothing]) -> Answer:
    """Extend the lease of a job."""
    return answer(await queue(call).heartbeat(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/complete", roles=["work"], body=CompleteRequest, mends=True, answers={200: None}
)
async def complete_job(call: Call[CompleteRequest, Nothing]) -> Answer:
    """Complete a job."""
    return answer(await queue(call).complete(call.path["job_id"], call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/fail", roles=["work"], body=FailRequest, mends=True, answers={200: None})
async def fail_job(call: Call[FailRequest, Nothing]) -> Answer:
    """Fail a job."""
    return answer(await queue(call).fail(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel", roles=["operate", "produce"], body=CancelRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def cancel_job(call: Call[CancelRequest, Nothing]) -> Answer:
    """Cancel a job: immediately unless it is running, else by request."""
    return answer(await queue(call).cancel(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel/ack", roles=["work"], body=AcknowledgeCancelRequest, answers={200: None}
)
async def acknowledge_cancel(call: Call[AcknowledgeCancelRequest, Nothing]) -> Answer:
    """Acknowledge a cancel request."""
    return answer(await queue(call).acknowledge(call.path["job_id"], call.body))


@routes.add(
    "POST",
    f"{BASE}/jobs/{{job_id}}/runtime-state",
    roles=["work"],
    body=RuntimeStateRequest,
    mends=True,
    answers={200: None},
)
async def save_runtime_state(call: Call[RuntimeStateRequest, Nothing]) -> Answer:
    """Save a checkpoint."""
    return answer(await queue(call).save_state(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/resubmit", roles=["operate"], body=ResubmitRequest, body_optional=True,
    answers={201: None},
)  # fmt: skip
async def resubmit_job(call: Call[ResubmitRequest, Nothing]) -> Answer:
    """Redrive a terminal job as a new one."""
    return answer(await queue(call).resubmit(call.path["job_id"], call.body), 201)
