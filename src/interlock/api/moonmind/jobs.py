"""The REST routes of jobs."""

from __future__ import annotations

from typing import Any, Final

from interlock.api.moonmind.service import (
    Acknowledged,
    CancelJob,
    Claim,
    Completed,
    Enqueue,
    Failed,
    Heartbeat,
    ListJobs,
    Queue,
    Resubmit,
    RuntimeState,
)  # fmt: skip
from interlock.api.routes import Answer, Call, Nothing, Routes, answer

routes = Routes()

BASE: Final = "/api/queue"


def queue(call: Call[Any, Any]) -> Queue:
    return Queue(call.engine, call.who, sanitized=call.sanitized)


@routes.add("POST", f"{BASE}/jobs", roles=["produce"], body=Enqueue, answers={201: None})
async def enqueue_job(call: Call[Enqueue, Nothing]) -> Answer:
    """Add a job."""
    return answer(await queue(call).enqueue(call.body), 201)


@routes.add("GET", f"{BASE}/jobs", roles=["read"], query=ListJobs, answers={200: None})
async def list_jobs(call: Call[None, ListJobs]) -> Answer:
    """List jobs, newest first."""
    return answer(await queue(call).list(call.query))


@routes.add("GET", f"{BASE}/jobs/{{job_id}}", roles=["read"], answers={200: None})
async def get_job(call: Call[None, Nothing]) -> Answer:
    """Show a job."""
    return answer(await queue(call).get(call.path["job_id"]))


@routes.add("POST", f"{BASE}/jobs/claim", roles=["work"], body=Claim, answers={200: None})
async def claim_job(call: Call[Claim, Nothing]) -> Answer:
    """Lease the next job that the worker may have."""
    return answer(await queue(call).claim(call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/heartbeat", roles=["work"], body=Heartbeat, answers={200: None})
async def heartbeat_job(call: Call[Heartbeat, Nothing]) -> Answer:
    """Extend the lease of a job that is still the caller's."""
    return answer(await queue(call).heartbeat(call.path["job_id"], call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/complete", roles=["work"], body=Completed, mends=True, answers={200: None})
async def complete_job(call: Call[Completed, Nothing]) -> Answer:
    """Report success."""
    return answer(await queue(call).complete(call.path["job_id"], call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/fail", roles=["work"], body=Failed, mends=True, answers={200: None})
async def fail_job(call: Call[Failed, Nothing]) -> Answer:
    """Report failure."""
    return answer(await queue(call).fail(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel", roles=["operate", "produce"], body=CancelJob, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def cancel_job(call: Call[CancelJob, Nothing]) -> Answer:
    """Stop a job: at once unless it runs, then by request."""
    return answer(await queue(call).cancel(call.path["job_id"], call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/cancel/ack", roles=["work"], body=Acknowledged, answers={200: None})
async def acknowledge_cancel(call: Call[Acknowledged, Nothing]) -> Answer:
    """Say that the work has stopped, as was asked."""
    return answer(await queue(call).acknowledge(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/runtime-state", roles=["work"], body=RuntimeState, mends=True, answers={200: None}
)
async def save_runtime_state(call: Call[RuntimeState, Nothing]) -> Answer:
    """Save progress to go on from."""
    return answer(await queue(call).save_state(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/resubmit", roles=["operate"], body=Resubmit, body_optional=True,
    answers={201: None},
)  # fmt: skip
async def resubmit_job(call: Call[Resubmit, Nothing]) -> Answer:
    """Do an ended job again, as a new one."""
    return answer(await queue(call).resubmit(call.path["job_id"], call.body), 201)
