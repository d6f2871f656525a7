"""Queues: counts of the jobs of a type, pause and resume."""

from __future__ import annotations

from datetime import datetime

import structlog

from interlock import wire
from interlock.api.native.jobs import Reason
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.wire import responses
from interlock.wire.encode import stats_to_dict

log = structlog.get_logger("interlock.api")
routes = RouteTable()


class QueueShape(responses.Shape, frozen=True, kw_only=True):
    """Job counts of one type by location, and its throughput."""

    type: str
    ready: int
    delayed: int
    blocked: int
    in_progress: int
    waiting_for_approval: int
    dead_letter: int
    succeeded: int
    failed: int
    cancelled: int
    oldest_ready_seconds: float | None
    enqueued_per_minute: float
    started_per_minute: float
    succeeded_per_minute: float
    failed_per_minute: float
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None


class Queues(responses.Shape, frozen=True, kw_only=True):
    """Queues, by type."""

    items: list[QueueShape]
    next_cursor: str | None


@routes.add("GET", "/v1/queues", roles=["read"], query=Page, answers={200: Queues})
async def list_queues(call: RequestContext[None, Page]) -> Response:
    """List queues by type, with job counts."""
    at, limit = cursor_position(call, "queues"), call.query.limit
    after = "" if at is None else str(at[0])
    found = await call.engine.queries.queues(call.who.tenant, after=after, limit=limit + 1)
    now = await call.engine.queries.now()
    items = [stats_to_dict(one, now=now) for one in found[:limit]]
    return page(call, "queues", items, more=len(found) > limit, end=[one.type for one in found[:limit][-1:]])


@routes.add("GET", "/v1/queues/{type}", roles=["read"], answers={200: QueueShape})
async def get_queue(call: RequestContext[None, Nothing]) -> Response:
    """Return the job counts of one type."""
    found = await call.engine.queries.queue(call.who.tenant, call.path["type"])
    return respond(stats_to_dict(found, now=await call.engine.queries.now()))


@routes.add(
    "POST", "/v1/queues/{type}/pause", roles=["operate"], body=Reason, body_optional=True, answers={204: None}
)  # fmt: skip
async def pause_queue(call: RequestContext[Reason, Nothing]) -> Response:
    """Stop leasing jobs of a type; running jobs continue."""
    await call.engine.jobs.pause(call.who, call.path["type"], reason=call.body.reason)
    return Response(204, media_type="")


@routes.add(
    "POST", "/v1/queues/{type}/resume", roles=["operate"], body=Reason, body_optional=True, answers={204: None}
)  # fmt: skip
async def resume_queue(call: RequestContext[Reason, Nothing]) -> Response:
    """Resume leasing jobs of a type. The reason is only logged."""
    reason = wire.reason(call.body.reason)
    await call.engine.jobs.resume(call.who, call.path["type"])
    log.info("resumed", tenant=call.who.tenant, type=call.path["type"], actor=call.who.actor, reason=reason)
    return Response(204, media_type="")
