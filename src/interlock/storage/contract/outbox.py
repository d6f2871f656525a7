"""The store interface for webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.webhook import (
    Channel,
    Delivery,
    DeliveryFilter,
    DeliveryResult,
    Dispatch,
    NewSubscription,
    Subscribed,
    Subscription,
)  # fmt: skip


class Outbox(Protocol):
    """Subscriptions and their deliveries; a delivery is written in the transaction of the transition it reports."""

    async def subscribe(self, tenant: str, new: NewSubscription) -> Subscribed:
        """Create a subscription; the same idempotency key with the same body returns the existing one."""
        ...

    async def subscriptions(self, tenant: str, *, before: str | None = None, limit: int) -> list[Subscription]:
        """List subscriptions, newest first, without secrets."""
        ...

    async def subscription(self, tenant: str, id: str) -> Subscription | None: ...

    async def unsubscribe(self, tenant: str, id: str, *, actor: str | None = None) -> bool:
        """Delete a subscription and its pending deliveries; return whether it existed."""
        ...

    async def renew(
        self, tenant: str, id: str, expires_in_seconds: float | None, *, actor: str | None = None
    ) -> Subscription | None:
        """Extend a subscription, for a time or indefinitely; re-enable a disabled one."""
        ...

    async def rotate(
        self, tenant: str, id: str | None, secret: str, keep_seconds: float, *, actor: str | None = None
    ) -> bool:
        """Sign with a new secret, and also with the last one for a while; id None is the secret of job webhooks."""
        ...

    async def deliveries(self, tenant: str, filter: DeliveryFilter) -> list[Delivery]:
        """List deliveries, newest first."""
        ...

    async def redeliver(self, tenant: str, id: str) -> Delivery | None:
        """Send a delivery again now; its previous attempts are kept."""
        ...

    async def due_channels(self, limit: int) -> list[Channel]:
        """List channels with due deliveries: each tenant's longest waiting one, then each tenant's second, etc."""
        ...

    async def take(
        self, tenant: str, wants: Sequence[tuple[str, int]], *, lease_seconds: float, fresh_secret: str
    ) -> list[Dispatch]:
        """Lease up to N due deliveries per channel; they are due again after the lease unless settled."""
        ...

    async def give_back(self, tenant: str, id: str, grab: int, delay_seconds: float) -> None:
        """Release a delivery without an attempt."""
        ...

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        """Record the result of an attempt; return False if this sender no longer holds the delivery."""
        ...

    async def sweep_subscriptions(self, older_than_seconds: float, limit: int) -> int:
        """Delete subscriptions that ended or expired that long ago."""
        ...

    async def forget_deliveries(self, older_than_seconds: float, limit: int) -> int:
        """Delete deliveries that completed that long ago."""
        ...
