"""Progress of a job: checkpoints, steps and events. The lease holder writes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from interlock.api import auth, stream
from interlock.api.native.leases import EventPart, LeaseRequest, Seq, as_holder, events_of
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.job import Checkpoint
from interlock.domain.progress import Report, Step
from interlock.errors import Invalid
from interlock.wire import responses
from interlock.wire.encode import event_to_dict, step_to_dict

routes = RouteTable()


class CheckpointRequest(LeaseRequest, frozen=True, kw_only=True):
    """A checkpoint: a JSON value and its number."""

    seq: Seq
    data: msgspec.Raw


class StepRequest(LeaseRequest, frozen=True, kw_only=True):
    """The result of a step."""

    name: str
    result: msgspec.Raw
    occurrence: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    function: str | None = None


class EventsRequest(LeaseRequest, frozen=True, kw_only=True):
    """Progress events."""

    events: Annotated[list[EventPart], Meta(min_length=1)]


@routes.add(
    "PUT", "/v1/jobs/{job_id}/checkpoint", roles=["work"], body=CheckpointRequest, sanitizes=True,
    has_checkpoint=True, answers={200: responses.Saved},
)  # fmt: skip
async def save_checkpoint(call: RequestContext[CheckpointRequest, Nothing]) -> Response:
    """Save a checkpoint. Its number must increase; repeating the same number and value is accepted."""
    body = call.body

    async def act(job_id: str, worker: str) -> int:
        data = bytes(body.data).decode()
        return await call.engine.leases.checkpoint(
            call.who.tenant, Checkpoint(job_id, body.fence, worker, body.seq, data, call.sanitized)
        )

    return respond({"seq": await as_holder(call, body, act)})


@routes.add(
    "POST", "/v1/jobs/{job_id}/steps", roles=["work"], body=StepRequest, sanitizes=True, answers={200: responses.Step}
)  # fmt: skip
async def save_step(call: RequestContext[StepRequest, Nothing]) -> Response:
    """Save the result of a step. For a name and occurrence already saved, return the first result."""
    body = call.body

    async def act(job_id: str, worker: str) -> Any:
        result = bytes(body.result).decode()
        step = Step(job_id, body.fence, worker, body.name, body.occurrence, result, body.function, call.sanitized)
        return await call.engine.progress.save_step(call.who.tenant, step)

    return respond(step_to_dict(await as_holder(call, body, act)))


@routes.add(
    "GET", "/v1/jobs/{job_id}/steps", roles=["read"], on_condition=["work"], query=Page,
    answers={200: responses.StepPage},
)  # fmt: skip
async def list_steps(call: RequestContext[None, Page]) -> Response:
    """List the saved steps of a job, oldest first."""
    job = await auth.readable(call)
    at = cursor_position(call, f"steps {job.id}")
    after = 0 if at is None else int(at[0])
    rows = await call.engine.progress.steps(call.who.tenant, job.id, after=after, limit=call.query.limit)
    return page(
        call, f"steps {job.id}", [step_to_dict(row) for row in rows], more=len(rows) == call.query.limit,
        end=[rows[-1].seq if rows else after],
    )  # fmt: skip


@routes.add(
    "POST",
    "/v1/jobs/{job_id}/events",
    roles=["work"],
    body=EventsRequest,
    sanitizes=True,
    answers={201: responses.EmittedEvents},
)
async def add_events(call: RequestContext[EventsRequest, Nothing]) -> Response:
    """Append progress events. An event with a known ID keeps its number."""
    events = events_of(call, call.body.events, sanitized=call.sanitized)

    async def act(job_id: str, worker: str) -> tuple[int, ...]:
        return await call.engine.progress.add_events(call.who.tenant, Report(job_id, call.body.fence, worker, events))

    return respond({"seqs": await as_holder(call, call.body, act)}, 201)


class EventQuery(Page, frozen=True, kw_only=True):
    """Start of a list of events: a cursor, or the number after which to start."""

    after: Seq | None = None


@routes.add("GET", "/v1/jobs/{job_id}/events", roles=["read"], query=EventQuery, answers={200: responses.EventPage})
async def list_events(call: RequestContext[None, EventQuery]) -> Response:
    """List the events of a job, oldest first; with `after`, only those with a higher number."""
    id = call.job_id
    at = cursor_position(call, f"events {id}")
    if at is not None and call.query.after is not None:
        raise Invalid("give a cursor or after, not both", pointer="/after")
    after = (call.query.after or 0) if at is None else int(at[0])
    rows = await call.engine.progress.events(call.who.tenant, id, after=after, limit=call.query.limit)
    return page(
        call, f"events {id}", [event_to_dict(row) for row in rows], more=len(rows) == call.query.limit,
        end=[rows[-1].seq if rows else after],
    )  # fmt: skip


@routes.add(
    "GET", "/v1/jobs/{job_id}/events/stream", roles=["read"], answers={200: None}, produces=stream.MEDIA_TYPE,
    headers=["Last-Event-ID"],
)  # fmt: skip
async def stream_job_events(call: RequestContext[None, Nothing]) -> Response:
    """Stream the events of a job until it is terminal; `Last-Event-ID` resumes."""
    return await stream.of_job(call)


@routes.add(
    "GET", "/v1/events/stream", roles=["read"], answers={200: None}, produces=stream.MEDIA_TYPE,
    headers=["Last-Event-ID"],
)  # fmt: skip
async def stream_events(call: RequestContext[None, Nothing]) -> Response:
    """Stream new events of all jobs, at least once each; `Last-Event-ID` resumes."""
    return await stream.of_tenant(call)
