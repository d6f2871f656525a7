"""Sharded effects: each on the shard of its job."""

from __future__ import annotations

from interlock.domain.effect import BeginEffect, Begun, Effect, SettleEffect
from interlock.domain.job import Rejected
from interlock.storage.shards.routing import Routing


class ShardedEffects:
    """Routes the calls of effects."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def begin(self, tenant: str, order: BeginEffect) -> Begun | Rejected:
        return await self._routing.of_job(tenant, order.id, lambda store: store.effects.begin(tenant, order))

    async def settle(self, tenant: str, order: SettleEffect) -> Effect | Rejected:
        return await self._routing.of_job(tenant, order.id, lambda store: store.effects.settle(tenant, order))

    async def of_job(self, tenant: str, job_id: str, *, after: int = 0, limit: int) -> list[Effect]:
        return await self._routing.of_job(
            tenant, job_id, lambda store: store.effects.of_job(tenant, job_id, after=after, limit=limit)
        )
