"""Words for tests of webhooks: who listens, what is due, and what becomes of it."""

from __future__ import annotations

from typing import Any

from interlock.domain.webhook import (
    EVENTS,
    Delivery,
    DeliveryFilter,
    DeliveryStatus,
    Dispatch,
    NewSubscription,
    Outcome,
    Settlement,
    Subscription,
)  # fmt: skip
from tests.contract.builders import Desk, cancel, new_id

LEASE = 30.0
OK = Outcome(DeliveryStatus.DELIVERED)
AGAIN = Outcome(DeliveryStatus.FAILED, 60.0)
DEAD = Outcome(DeliveryStatus.DEAD)
GONE = Outcome(DeliveryStatus.DEAD, ends_subscription=True)


async def listen(desk: Desk, *events: str, **fields: Any) -> Subscription:
    facts = {"id": new_id(), "url": "https://hooks.example/in", "events": events or EVENTS, "secret": "whsec_c2VjcmV0"}
    new = NewSubscription(**facts | fields)
    return (await desk.store.outbox.subscribe(desk.tenant, new)).subscription


async def channels(desk: Desk) -> list[str]:
    return [c.channel for c in await desk.store.outbox.due_channels(10_000) if c.tenant == desk.tenant]


async def take(desk: Desk, want: int = 1000) -> list[Dispatch]:
    """Everything that is due, oldest first."""
    wants = [(channel, want) for channel in await channels(desk)]
    taken = await desk.store.outbox.take(desk.tenant, wants, lease_seconds=LEASE, fresh_secret="whsec_ZnJlc2g=")
    return sorted(taken, key=lambda d: (d.version, EVENTS.index(d.event)))


async def settle(desk: Desk, dispatch: Dispatch, outcome: Outcome, code: int | None = None) -> bool:
    settlement = Settlement(dispatch.id, dispatch.grab, outcome, code, None if outcome is OK else "why")
    return await desk.store.outbox.settle(desk.tenant, settlement)


async def deliveries(desk: Desk, **filter: Any) -> list[Delivery]:
    return await desk.store.outbox.deliveries(desk.tenant, DeliveryFilter(**filter))


async def delivery(desk: Desk, id: str) -> Delivery:
    (found,) = [d for d in await deliveries(desk, limit=200) if d.id == id]
    return found


async def heard(desk: Desk) -> list[str]:
    """The events that are due, and are now told."""
    taken = await take(desk)
    for dispatch in taken:
        assert await settle(desk, dispatch, OK, 200)
    return [dispatch.event for dispatch in taken]


async def overheard(desk: Desk) -> None:
    """At least one row in every table that webhooks have."""
    await listen(desk, "job.queued", min_interval_seconds=1.0)
    await desk.do(cancel(await desk.add(webhook="https://jobs.example")))
    assert len(await take(desk)) == 2
