"""Sharded webhooks: every shard of a tenant stores its subscriptions, and has a separate outbox."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial

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
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard


class ShardedOutbox(Routing):
    """Subscriptions and deliveries on all shards of a tenant."""

    async def subscribe(self, tenant: str, new: NewSubscription) -> Subscribed:
        return (await self.each(tenant, lambda store: store.outbox.subscribe(tenant, new)))[0]

    async def subscriptions(self, tenant: str, *, before: str | None = None, limit: int) -> list[Subscription]:
        pages = await self.each(
            tenant, lambda store: store.outbox.subscriptions(tenant, before=before, limit=limit)
        )  # fmt: skip
        found = {subscription.id: subscription for page in reversed(pages) for subscription in page}
        return [found[id] for id in sorted(found, reverse=True)][:limit]

    async def subscription(self, tenant: str, id: str) -> Subscription | None:
        return await self.first(tenant, lambda store: store.outbox.subscription(tenant, id))

    async def unsubscribe(self, tenant: str, id: str, *, actor: str | None = None) -> bool:
        return any(await self.each(tenant, lambda store: store.outbox.unsubscribe(tenant, id, actor=actor)))

    async def renew(
        self, tenant: str, id: str, expires_in_seconds: float | None, *, actor: str | None = None
    ) -> Subscription | None:
        results = await self.each(tenant, lambda store: store.outbox.renew(tenant, id, expires_in_seconds, actor=actor))
        return next((renewed for renewed in results if renewed is not None), None)

    async def rotate(
        self, tenant: str, id: str | None, secret: str, keep_seconds: float, *, actor: str | None = None
    ) -> bool:
        return any(
            await self.each(tenant, lambda store: store.outbox.rotate(tenant, id, secret, keep_seconds, actor=actor))
        )

    async def deliveries(self, tenant: str, filter: DeliveryFilter) -> list[Delivery]:
        pages = await self.each(tenant, lambda store: store.outbox.deliveries(tenant, filter))
        return sorted(itertools.chain(*pages), key=lambda delivery: delivery.id, reverse=True)[: filter.limit]

    async def redeliver(self, tenant: str, id: str) -> Delivery | None:
        return await self.first(tenant, lambda store: store.outbox.redeliver(tenant, id))

    async def due_channels(self, limit: int) -> list[Channel]:
        return await self.due("due_channels", limit, lambda store: store.outbox.due_channels(limit))

    async def take(
        self, tenant: str, wants: Sequence[tuple[str, int]], *, lease_seconds: float, fresh_secret: str
    ) -> list[Dispatch]:
        async def some(store: PostgresStore, left: Sequence[tuple[str, int]]) -> list[Dispatch]:
            return await store.outbox.take(tenant, left, lease_seconds=lease_seconds, fresh_secret=fresh_secret)

        async def go(shards: list[Shard]) -> list[Dispatch]:
            taken: list[Dispatch] = []
            for shard in shards:
                had = Counter(dispatch.channel for dispatch in taken)
                left = [(channel, most - had[channel]) for channel, most in wants if most > had[channel]]
                if left:
                    taken += await shard.run(partial(some, left=left))
            return taken

        return await self.routed(tenant, go)

    async def give_back(self, tenant: str, id: str, grab: int, delay_seconds: float) -> None:
        await self.each(tenant, lambda store: store.outbox.give_back(tenant, id, grab, delay_seconds))

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        return await self.first(tenant, lambda store: store.outbox.settle(tenant, settlement))

    async def sweep_subscriptions(self, older_than_seconds: float, limit: int) -> int:
        return await self.share(
            "sweep_subscriptions",
            limit,
            lambda store, some: store.outbox.sweep_subscriptions(older_than_seconds, some),
        )

    async def forget_deliveries(self, older_than_seconds: float, limit: int) -> int:
        return await self.share(
            "forget_deliveries", limit, lambda store, some: store.outbox.forget_deliveries(older_than_seconds, some)
        )
