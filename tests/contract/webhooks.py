"""Words for tests of webhooks: who listens, what is due, and what becomes of it."""

from __future__ import annotations

from typing import Any

from interlock.domain.webhook import (
    EVENTS,
    Delivery,
    DeliveryFilter,
    DeliveryResult,
    DeliveryStatus,
    Dispatch,
    NewSubscription,
    Outcome,
    Subscription,
)  # fmt: skip
from tests.contract.builders import Desk, cancel, new_id

LEASE = 30.0
OK = Outcome(DeliveryStatus.DELIVERED)
AGAIN = Outcome(DeliveryStatus.FAILED, 60.0)
DEAD = Outcome(DeliveryStatus.DEAD)
GONE = Outcome(DeliveryStatus.DEAD, ends_subscription=True)


async def listen(remote: Desk, *events: str, **fields: Any) -> Subscription:
    facts = {"id": new_id(), "url": "https://hooks.example/in", "events": events or EVENTS, "secret": "whsec_c2VjcmV0"}
    new = NewSubscription(**facts | fields)
    return (await remote.store.outbox.subscribe(remote.tenant, new)).subscription


async def channels(remote: Desk) -> list[str]:
    return [c.channel for c in await remote.store.outbox.due_channels(10_000) if c.tenant == remote.tenant]


async def take(remote: Desk, want: int = 1000) -> list[Dispatch]:
    """Everything that is due, oldest first."""
    wants = [(channel, want) for channel in await channels(remote)]
    taken = await remote.store.outbox.take(remote.tenant, wants, lease_seconds=LEASE, fresh_secret="whsec_ZnJlc2g=")
    return sorted(taken, key=lambda d: (d.version, EVENTS.index(d.event)))


async def settle(remote: Desk, dispatch: Dispatch, outcome: Outcome, code: int | None = None) -> bool:
    settlement = DeliveryResult(dispatch.id, dispatch.grab, outcome, code, None if outcome is OK else "why")
    return await remote.store.outbox.settle(remote.tenant, settlement)


async def deliveries(remote: Desk, **filter: Any) -> list[Delivery]:
    return await remote.store.outbox.deliveries(remote.tenant, DeliveryFilter(**filter))


async def delivery(remote: Desk, id: str) -> Delivery:
    (found,) = [d for d in await deliveries(remote, limit=200) if d.id == id]
    return found


async def heard(remote: Desk) -> list[str]:
    """The events that are due, and are now told."""
    taken = await take(remote)
    for dispatch in taken:
        assert await settle(remote, dispatch, OK, 200)
    return [dispatch.event for dispatch in taken]


async def overheard(remote: Desk) -> None:
    """At least one row in every table that webhooks have."""
    await listen(remote, "job.queued", min_interval_seconds=1.0)
    await remote.do(cancel(await remote.add(webhook="https://jobs.example")))
    assert len(await take(remote)) == 2
