"""Heartbeats: a lease is kept, what came along is saved, and the worker hears of cancel requests."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from interlock import wire
from interlock.api import auth, problems, responses
from interlock.api.long_poll import patience
from interlock.api.native import encode
from interlock.api.native.lease_requests import CheckpointPart, EventPart, Held, HeldItem, events_of, odd_items
from interlock.api.native.leases import as_holder, as_holders
from interlock.api.routes import Answer, Call, Nothing, Request, Routes, answer
from interlock.domain.job import Beat, Refused

routes = Routes()

LeaseSeconds = Annotated[float, Meta(ge=1, le=wire.LIMITS.lease_seconds)]


class Heartbeat(Held, frozen=True, kw_only=True):
    """A heartbeat; without `lease_seconds` the lease is extended by its own length."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None


class HeartbeatItem(HeldItem, frozen=True, kw_only=True):
    """A heartbeat of one job in a batch."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None


class Heartbeats(Request, frozen=True, kw_only=True):
    """Heartbeats of many jobs."""

    items: list[HeartbeatItem]


@routes.add(
    "POST", "/v1/jobs/{job_id}/heartbeat", roles=["work"], body=Heartbeat, mends=True,
    has_checkpoint=True, answers={200: responses.Pulse},
)  # fmt: skip
async def heartbeat(call: Call[Heartbeat, Nothing]) -> Answer:
    """Extend a lease, and save the events and the checkpoint that came along."""

    async def act(job_id: str, worker: str) -> Any:
        return await call.engine.leases.heartbeat(
            call.who.tenant, _beat(call, call.body, job_id, worker, call.sanitized)
        )

    return answer(encode.pulse(await as_holder(call, call.body, act)))


@routes.add(
    "POST", "/v1/heartbeats", roles=["work"], body=Heartbeats, mends=True, has_checkpoint=True,
    answers={200: responses.Pulses},
)  # fmt: skip
async def heartbeats(call: Call[Heartbeats, Nothing]) -> Answer:
    """Extend many leases; each item has its own result."""
    items = call.body.items
    wire.check_batch(items, call.engine.limits)
    odd = odd_items(call)

    def order(i: int, worker: str) -> Beat:
        return _beat(call, items[i], items[i].id, worker, bool(odd) and odd[i])

    answers = await as_holders(call, items, order, call.engine.leases.heartbeats)
    return answer(
        {
            "items": [
                problems.item(item.id, given.error) if isinstance(given, Refused) else encode.pulse(given)
                for item, given in zip(items, answers, strict=True)
            ]
        }
    )


class Leases(Request, frozen=True, kw_only=True):
    """Leases of one worker, and how long to wait until one of them must stop."""

    items: list[HeldItem]
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


class Interrupted(responses.Shape, frozen=True, kw_only=True):
    """Jobs that their worker must stop; the heartbeat reply carries the reason."""

    ids: list[str]


@routes.add("POST", "/v1/leases/watch", roles=["work"], body=Leases, answers={200: Interrupted})
async def watch_leases(call: Call[Leases, Nothing]) -> Answer:
    """Name leased jobs that must stop: cancelled, or no longer leased to the caller. Waits for the first."""

    def is_own(worker: str) -> bool:
        return call.who.unchecked or auth.is_own_worker(call.who, worker)

    async def look(enough: asyncio.Event | None = None) -> list[str]:
        return await call.engine.leases.interrupted(
            call.who.tenant, [(item.id, item.fence) for item in call.body.items], is_own=is_own,
            wait_seconds=0.0 if enough is None else call.body.wait_seconds, enough=enough,
        )  # fmt: skip

    if not call.body.wait_seconds:
        return answer({"ids": await look()})
    async with patience(call) as enough:
        return answer({"ids": await look(enough)})


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
