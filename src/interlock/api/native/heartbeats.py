"""Heartbeats: extend leases, save the progress they carry, and report cancel requests to workers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from interlock import wire
from interlock.api import auth, problems
from interlock.api.long_poll import waiting
from interlock.api.native.lease_requests import (
    CheckpointPart,
    EventPart,
    LeaseRequest,
    LeaseRequestItem,
    events_of,
    odd_items,
)
from interlock.api.native.leases import as_holder, as_holders
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.job import Heartbeat, Rejected
from interlock.wire import responses
from interlock.wire.encode import heartbeat_reply_to_dict

routes = RouteTable()

LeaseSeconds = Annotated[float, Meta(ge=1, le=wire.LIMITS.lease_seconds)]


class HeartbeatRequest(LeaseRequest, frozen=True, kw_only=True):
    """A heartbeat; without `lease_seconds` the lease is extended by its own length."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None


class HeartbeatRequestItem(LeaseRequestItem, frozen=True, kw_only=True):
    """A heartbeat of one job in a batch."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None


class Heartbeats(Request, frozen=True, kw_only=True):
    """Heartbeats of many jobs."""

    items: list[HeartbeatRequestItem]


@routes.add(
    "POST", "/v1/jobs/{job_id}/heartbeat", roles=["work"], body=HeartbeatRequest, sanitizes=True,
    has_checkpoint=True, answers={200: responses.HeartbeatReply},
)  # fmt: skip
async def heartbeat(call: RequestContext[HeartbeatRequest, Nothing]) -> Response:
    """Extend a lease, and save the events and the checkpoint that came along."""

    async def act(job_id: str, worker: str) -> Any:
        return await call.engine.leases.heartbeat(
            call.who.tenant, _heartbeat(call, call.body, job_id, worker, call.sanitized)
        )

    return respond(heartbeat_reply_to_dict(await as_holder(call, call.body, act)))


@routes.add(
    "POST", "/v1/heartbeats", roles=["work"], body=Heartbeats, sanitizes=True, has_checkpoint=True,
    answers={200: responses.HeartbeatReplies},
)  # fmt: skip
async def heartbeats(call: RequestContext[Heartbeats, Nothing]) -> Response:
    """Extend many leases; each item has its own result."""
    items = call.body.items
    wire.check_batch(items, call.engine.limits)
    odd = odd_items(call)

    def order(i: int, worker: str) -> Heartbeat:
        return _heartbeat(call, items[i], items[i].id, worker, bool(odd) and odd[i])

    answers = await as_holders(call, items, order, call.engine.leases.heartbeats)
    return respond(
        {
            "items": [
                problems.item(item.id, given.error) if isinstance(given, Rejected) else heartbeat_reply_to_dict(given)
                for item, given in zip(items, answers, strict=True)
            ]
        }
    )


class Leases(Request, frozen=True, kw_only=True):
    """Leases of one worker, and how long to wait until one of them must stop."""

    items: list[LeaseRequestItem]
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


class Interrupted(responses.Shape, frozen=True, kw_only=True):
    """Jobs that their worker must stop; the heartbeat reply carries the reason."""

    ids: list[str]


@routes.add("POST", "/v1/leases/watch", roles=["work"], body=Leases, answers={200: Interrupted})
async def watch_leases(call: RequestContext[Leases, Nothing]) -> Response:
    """Name leased jobs that must stop: cancelled, or no longer leased to the caller. Waits for the first."""

    def is_own(worker: str) -> bool:
        return call.who.unchecked or auth.is_own_worker(call.who, worker)

    async def look(enough: asyncio.Event | None = None) -> list[str]:
        return await call.engine.leases.interrupted(
            call.who.tenant, [(item.id, item.fence) for item in call.body.items], is_own=is_own,
            wait_seconds=0.0 if enough is None else call.body.wait_seconds, enough=enough,
        )  # fmt: skip

    if not call.body.wait_seconds:
        return respond({"ids": await look()})
    async with waiting(call) as enough:
        return respond({"ids": await look(enough)})


def _heartbeat(
    call: RequestContext[Any, Nothing],
    body: HeartbeatRequest | HeartbeatRequestItem,
    job_id: str,
    worker: str,
    sanitized: bool,
) -> Heartbeat:
    part = body.checkpoint
    return Heartbeat(
        job_id,
        body.fence,
        worker,
        body.lease_seconds,
        None if part is None else part.of(job_id, body.fence, worker, sanitized=sanitized),
        events_of(call, body.events, sanitized=sanitized),
    )
