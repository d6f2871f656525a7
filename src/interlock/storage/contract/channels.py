"""The store interface for notification channels."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.channel import NewChannel, NotificationChannel, Target


class ChannelStore(Protocol):
    """Channels. Each has a subscription, which queues its deliveries in the outbox."""

    async def set(self, tenant: str, new: NewChannel) -> NotificationChannel:
        """Create or replace a channel; a disabled one is enabled again."""
        ...

    async def get(self, tenant: str, name: str) -> NotificationChannel | None: ...

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        """List channels by name, starting after `after`."""
        ...

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        """Delete a channel and its pending deliveries; return whether it existed."""
        ...

    async def target(self, tenant: str, name: str) -> Target | None:
        """Return where to send the messages of a channel, with its secrets."""
        ...
