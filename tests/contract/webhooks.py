"""Helpers for tests of webhooks: subscriptions, due deliveries, and their results."""

from __future__ import annotations

from typing import Any

from interlock.domain.channel import Address, Credentials, Kind, NewChannel
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
from tests.contract.builders import OPERATOR, TenantQueue, cancel, new_id

LEASE = 30.0
OK = Outcome(DeliveryStatus.DELIVERED)
AGAIN = Outcome(DeliveryStatus.FAILED, 60.0)
DEAD = Outcome(DeliveryStatus.DEAD)
GONE = Outcome(DeliveryStatus.DEAD, ends_subscription=True)


def channel(**fields: Any) -> NewChannel:
    new = NewChannel(
        "ops", Kind.SLACK, Address("hooks.example"), Credentials("https://hooks.example/verysecret"), ("job.failed",),
        None, None, None, 60.0, new_id(), OPERATOR,
    )  # fmt: skip
    return new._replace(**fields)


async def listen(queue: TenantQueue, *events: str, **fields: Any) -> Subscription:
    facts = {"id": new_id(), "url": "https://hooks.example/in", "events": events or EVENTS, "secret": "whsec_c2VjcmV0"}
    new = NewSubscription(**facts | fields)
    return (await queue.store.outbox.subscribe(queue.tenant, new)).subscription


async def channels(queue: TenantQueue) -> list[str]:
    return [c.channel for c in await queue.store.outbox.due_channels(10_000) if c.tenant == queue.tenant]


async def take(queue: TenantQueue, want: int = 1000) -> list[Dispatch]:
    """Everything that is due, oldest first."""
    wants = [(channel, want) for channel in await channels(queue)]
    taken = await queue.store.outbox.take(queue.tenant, wants, lease_seconds=LEASE, fresh_secret="whsec_ZnJlc2g=")
    return sorted(taken, key=lambda d: (d.version, EVENTS.index(d.event)))


async def settle(queue: TenantQueue, dispatch: Dispatch, outcome: Outcome, code: int | None = None) -> bool:
    settlement = DeliveryResult(dispatch.id, dispatch.grab, outcome, code, None if outcome is OK else "why")
    return await queue.store.outbox.settle(queue.tenant, settlement)


async def deliveries(queue: TenantQueue, **filter: Any) -> list[Delivery]:
    return await queue.store.outbox.deliveries(queue.tenant, DeliveryFilter(**filter))


async def delivery(queue: TenantQueue, id: str) -> Delivery:
    (found,) = [d for d in await deliveries(queue, limit=200) if d.id == id]
    return found


async def heard(queue: TenantQueue) -> list[str]:
    """The events that are due, and are now delivered."""
    taken = await take(queue)
    for dispatch in taken:
        assert await settle(queue, dispatch, OK, 200)
    return [dispatch.event for dispatch in taken]


async def overheard(queue: TenantQueue) -> None:
    """At least one row in every table that webhooks have."""
    await listen(queue, "job.queued", min_interval_seconds=1.0)
    await queue.do(cancel(await queue.add(webhook="https://jobs.example")))
    assert len(await take(queue)) == 2
