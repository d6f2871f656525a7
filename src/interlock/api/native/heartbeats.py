"""Heartbeats: a lease is kept, what came along is saved, and the worker hears of cancel requests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from interlock import wire
from interlock.api import problems, shapes
from interlock.api.native import shown
from interlock.api.native.grants import (
    CheckpointPart,
    EventPart,
    Held,
    HeldItem,
    events_of,
    odd_items,
)
from interlock.api.native.holding import as_holder, as_holders
from interlock.api.routes import Answer, Call, Nothing, Request, Routes, answer
from interlock.domain.job import Beat, Refused

routes = Routes()

LeaseSeconds = Annotated[float, Meta(ge=1, le=wire.LIMITS.lease_seconds)]


class Heartbeat(Held, frozen=True, kw_only=True):
    """A sign of life; without `lease_seconds` the lease is extended by its own length."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None


class HeartbeatItem(HeldItem, frozen=True, kw_only=True):
    """A sign of life of one job among many."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None


class Heartbeats(Request, frozen=True, kw_only=True):
    """Signs of life of many jobs."""

    items: list[HeartbeatItem]


@routes.add(
    "POST", "/v1/jobs/{job_id}/heartbeat", roles=["work"], body=Heartbeat, mends=True,
    has_checkpoint=True, answers={200: shapes.Pulse},
)  # fmt: skip
async def heartbeat(call: Call[Heartbeat, Nothing]) -> Answer:
    """Extend a lease, and save the events and the checkpoint that came along."""

    async def act(job_id: str, worker: str) -> Any:
        return await call.engine.leases.heartbeat(
            call.who.tenant, _beat(call, call.body, job_id, worker, call.sanitized)
        )

    return answer(shown.pulse(await as_holder(call, call.body, act)))


@routes.add(
    "POST", "/v1/heartbeats", roles=["work"], body=Heartbeats, mends=True, has_checkpoint=True,
    answers={200: shapes.Pulses},
)  # fmt: skip
async def heartbeats(call: Call[Heartbeats, Nothing]) -> Answer:
    """Extend many leases at once; each item has its own answer."""
    items = call.body.items
    wire.check_batch(items, call.engine.limits)
    odd = odd_items(call)

    def order(i: int, worker: str) -> Beat:
        return _beat(call, items[i], items[i].id, worker, bool(odd) and odd[i])

    answers = await as_holders(call, items, order, call.engine.leases.heartbeats)
    return answer(
        {
            "items": [
                problems.item(item.id, given.error) if isinstance(given, Refused) else shown.pulse(given)
                for item, given in zip(items, answers, strict=True)
            ]
        }
    )


def _beat(call: Call[Any, Nothing], body: Heartbeat | HeartbeatItem, job_id: str, worker: str, sanitized: bool) -> Beat:
    part = body.checkpoint
    return Beat(
        job_id,
        body.fence,
        worker,
        body.lease_seconds,
        None if part is None else part.of(job_id, body.fence, worker, sanitized=sanitized),
        events_of(call, body.events, sanitized=sanitized),
    )
