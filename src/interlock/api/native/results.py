"""Results: wait for a job to end."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from interlock.api import auth
from interlock.api.long_poll import waiting
from interlock.api.native import encode
from interlock.api.routes import Request, RequestContext, Response, RouteTable, respond
from interlock.domain.lifecycle import TERMINAL
from interlock.wire import responses

routes = RouteTable()


class Wait(Request, frozen=True, kw_only=True):
    """How long to wait."""

    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


@routes.add(
    "GET", "/v1/jobs/{job_id}/result", roles=["read"], on_condition=["work"], query=Wait,
    answers={200: responses.Job, 202: responses.JobStatus},
)  # fmt: skip
async def wait_for_result(call: RequestContext[None, Wait]) -> Response:
    """Wait until a job has ended: 200 with the job, or 202 with its status when the time is up."""
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
