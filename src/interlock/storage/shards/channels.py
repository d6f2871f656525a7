"""Sharded notification channels: on all shards of a tenant, because each has a separate outbox."""

from __future__ import annotations

from interlock.domain.channel import NewChannel, NotificationChannel, Target
from interlock.storage.shards.routing import Routing


class ShardedChannels:
    """Routes the calls of channels."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def set(self, tenant: str, new: NewChannel) -> NotificationChannel:
        return (await self._routing.each(tenant, lambda store: store.channels.set(tenant, new)))[0]

    async def get(self, tenant: str, name: str) -> NotificationChannel | None:
        return await self._routing.first(tenant, lambda store: store.channels.get(tenant, name))

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        return await self._routing.home(tenant, lambda store: store.channels.page(tenant, after=after, limit=limit))

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        return any(await self._routing.each(tenant, lambda store: store.channels.delete(tenant, name, actor=actor)))

    async def target(self, tenant: str, name: str) -> Target | None:
        return await self._routing.first(tenant, lambda store: store.channels.target(tenant, name))
