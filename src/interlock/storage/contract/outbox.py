"""What every engine offers for webhooks: a part of the contract of a store."""

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
    """Who listens to what, and what is on its way to them; rows get in with the changes of jobs they tell of."""

    async def subscribe(self, tenant: str, new: NewSubscription) -> Subscribed:
        """Add a subscription; the same key with the same body answers the one that is there."""
        ...

    async def subscriptions(self, tenant: str, *, before: str | None = None, limit: int) -> list[Subscription]:
        """Newest first, without secrets."""
        ...

    async def subscription(self, tenant: str, id: str) -> Subscription | None: ...

    async def unsubscribe(self, tenant: str, id: str, *, actor: str | None = None) -> bool:
        """Take a subscription away with what was on its way to it; whether there was one."""
        ...

    async def renew(
        self, tenant: str, id: str, expires_in_seconds: float | None, *, actor: str | None = None
    ) -> Subscription | None:
        """Let it go on until then, or without end; one that had ended lives again."""
        ...

    async def rotate(
        self, tenant: str, id: str | None, secret: str, keep_seconds: float, *, actor: str | None = None
    ) -> bool:
        """Sign with a new secret, and with the last one too for a while; id None means that of jobs' own webhooks."""
        ...

    async def deliveries(self, tenant: str, filter: DeliveryFilter) -> list[Delivery]:
        """Newest first."""
        ...

    async def redeliver(self, tenant: str, id: str) -> Delivery | None:
        """Send it again, now, with all its tries before it."""
        ...

    async def due_channels(self, limit: int) -> list[Channel]:
        """Where something is due: every tenant's longest waiting channel first, then everybody's second, and so on."""
        ...

    async def take(
        self, tenant: str, wants: Sequence[tuple[str, int]], *, lease_seconds: float, fresh_secret: str
    ) -> list[Dispatch]:
        """Up to so many due deliveries of each channel; they are due again after the lease unless settled."""
        ...

    async def give_back(self, tenant: str, id: str, grab: int, delay_seconds: float) -> None:
        """Hand a delivery back untried."""
        ...

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        """Write what became of a try; False if the delivery is no longer the taker's."""
        ...

    async def sweep_subscriptions(self, older_than_seconds: float, limit: int) -> int:
        """Delete subscriptions that ended or expired that long ago."""
        ...

    async def forget_deliveries(self, older_than_seconds: float, limit: int) -> int:
        """Delete deliveries that were settled that long ago."""
        ...
