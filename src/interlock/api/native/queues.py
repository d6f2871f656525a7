"""Queues: the jobs of one type, counted, paused and resumed."""

from __future__ import annotations

from datetime import datetime

import structlog

from interlock import wire
from interlock.api import shapes
from interlock.api.native.jobs import Reason
from interlock.api.native.pages import Limit, page, place
from interlock.api.routes import Answer, Call, Nothing, Request, Routes, answer
from interlock.shown import stats_to_dict

log = structlog.get_logger("interlock.api")
routes = Routes()


class QueueQuery(Request, frozen=True, kw_only=True):
    """Which queues a list shows; without a limit all of them, as of one moment."""

    limit: Limit | None = None
    cursor: str | None = None


class QueueShape(shapes.Shape, frozen=True, kw_only=True):
    """How many jobs of one type are where, and how they move."""

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


class Queues(shapes.Shape, frozen=True, kw_only=True):
    """Queues, by type."""

    items: list[QueueShape]
    next_cursor: str | None


@routes.add("GET", "/v1/queues", roles=["read"], query=QueueQuery, answers={200: Queues})
async def list_queues(call: Call[None, QueueQuery]) -> Answer:
    """Count the jobs of every type, by name."""
    at = place(call, "queues")
    found = sorted(await call.engine.reads.queues(call.who.tenant), key=lambda one: one.type)
    rest = [one for one in found if at is None or one.type > str(at[0])]
    some = rest[: call.query.limit]
    now = await call.engine.reads.now()
    items = [stats_to_dict(one, now=now) for one in some]
    return page(call, "queues", items, more=len(rest) > len(some), end=[one.type for one in some[-1:]])


@routes.add("GET", "/v1/queues/{type}", roles=["read"], answers={200: QueueShape})
async def get_queue(call: Call[None, Nothing]) -> Answer:
    """Count the jobs of one type."""
    found = await call.engine.reads.queue(call.who.tenant, call.path["type"])
    return answer(stats_to_dict(found, now=await call.engine.reads.now()))


@routes.add(
    "POST", "/v1/queues/{type}/pause", roles=["operate"], body=Reason, body_optional=True, answers={204: None}
)  # fmt: skip
async def pause_queue(call: Call[Reason, Nothing]) -> Answer:
    """Hand out no more jobs of a type."""
    await call.engine.jobs.pause(call.who, call.path["type"], reason=call.body.reason)
    return Answer(204, media_type="")


@routes.add(
    "POST", "/v1/queues/{type}/resume", roles=["operate"], body=Reason, body_optional=True, answers={204: None}
)  # fmt: skip
async def resume_queue(call: Call[Reason, Nothing]) -> Answer:
    """Hand out jobs of a type again. What goes on has nobody who stopped it: the reason is for the log."""
    reason = wire.remark(call.body.reason, "reason")
    await call.engine.jobs.resume(call.who, call.path["type"])
    log.info("resumed", tenant=call.who.tenant, type=call.path["type"], actor=call.who.actor, reason=reason)
    return Answer(204, media_type="")
