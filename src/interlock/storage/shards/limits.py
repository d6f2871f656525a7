"""Sharded limits: set on all shards of a tenant, each of which has its own buckets."""

from __future__ import annotations

from collections.abc import Mapping

from interlock.domain.budget import TREE
from interlock.domain.limits import BucketState, Limit, LimitState
from interlock.errors import Forbidden
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.routing import Routing


class ShardedLimits:
    """Routes the calls of limits."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def set(self, tenant: str, limit: Limit, *, actor: str) -> LimitState:
        return (await self._routing.each(tenant, lambda store: store.limits.set(tenant, limit, actor=actor)))[0]

    async def get(self, tenant: str, name: str) -> LimitState | None:
        if name.startswith(TREE):
            found = await self._routing.each(tenant, lambda store: store.limits.get(tenant, name))
            return next((one for one in found if one is not None), None)
        return await self._routing.home(tenant, lambda store: store.limits.get(tenant, name))

    async def page(self, tenant: str, *, after: str = "", limit: int = 50, budgets: bool = False) -> list[LimitState]:
        return await self._routing.home(
            tenant, lambda store: store.limits.page(tenant, after=after, limit=limit, budgets=budgets)
        )

    async def raise_budget(
        self, tenant: str, name: str, amount: Mapping[str, float], *, actor: str, job_id: str | None = None
    ) -> LimitState | None:
        raised = await self._routing.each(
            tenant, lambda store: store.limits.raise_budget(tenant, name, amount, actor=actor, job_id=job_id)
        )
        return next((one for one in raised if one is not None), None)

    async def acting_budgets(self) -> list[tuple[str, str]]:
        found = await self._routing.everywhere("acting_budgets", lambda store: store.limits.acting_budgets())
        return sorted({one for _, some in found for one in some})

    async def watched_budgets(self) -> list[tuple[str, str]]:
        found = await self._routing.everywhere("watched_budgets", lambda store: store.limits.watched_budgets())
        return sorted({one for _, some in found for one in some})

    async def announce_spent(self, tenant: str, name: str) -> bool:
        return any(await self._routing.each(tenant, lambda store: store.limits.announce_spent(tenant, name)))

    async def refused(self, tenant: str, name: str, limit: int) -> list[str]:
        found = await self._routing.each(tenant, lambda store: store.limits.refused(tenant, name, limit))
        return [id for some in found for id in some][:limit]

    async def fail_refused(self, tenant: str, name: str, limit: int) -> int:
        return sum(await self._routing.each(tenant, lambda store: store.limits.fail_refused(tenant, name, limit)))

    async def due(self, tenant: str, name: str, limit: int, *, key: str | None = None) -> list[str]:
        found = await self._routing.each(tenant, lambda store: store.limits.due(tenant, name, limit, key=key))
        return [id for some in found for id in some][:limit]

    async def held(self, tenant: str, limit: int) -> list[tuple[str, BucketState]]:
        return await self._routing.home(tenant, lambda store: store.limits.held(tenant, limit))

    async def spent_trees(self, tenant: str, limit: int) -> list[str]:
        found = await self._routing.each(tenant, lambda store: store.limits.spent_trees(tenant, limit))
        return sorted({name for some in found for name in some})[:limit]

    async def tenants(self) -> list[str]:
        found = await self._routing.everywhere("limit_tenants", lambda store: store.limits.tenants())
        return sorted({tenant for _, some in found for tenant in some})

    async def keys(self, tenant: str, name: str, *, after: str = "", limit: int = 50) -> list[BucketState]:
        return await self._routing.home(tenant, lambda store: store.limits.keys(tenant, name, after=after, limit=limit))

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        return any(await self._routing.each(tenant, lambda store: store.limits.delete(tenant, name, actor=actor)))

    async def hold(
        self, tenant: str, name: str, *, key: str, until: int, actor: str, reason: str | None, worker: str | None = None
    ) -> LimitState | None:
        if worker is not None:  # its job is on one of the shards
            await self._held_by_worker(tenant, name, key=key, until=until, actor=actor, reason=reason, worker=worker)
        held = await self._routing.each(
            tenant, lambda store: store.limits.hold(tenant, name, key=key, until=until, actor=actor, reason=reason)
        )
        return held[0]

    async def _held_by_worker(
        self, tenant: str, name: str, *, key: str, until: int, actor: str, reason: str | None, worker: str
    ) -> None:
        async def hold(store: PostgresStore) -> Forbidden | None:
            try:
                await store.limits.hold(tenant, name, key=key, until=until, actor=actor, reason=reason, worker=worker)
            except Forbidden as error:
                return error
            return None

        refusals = await self._routing.each(tenant, hold)
        if all(refusals):
            raise refusals[0] or AssertionError

    async def release(self, tenant: str, name: str, *, key: str, actor: str) -> LimitState | None:
        released = await self._routing.each(
            tenant, lambda store: store.limits.release(tenant, name, key=key, actor=actor)
        )
        return released[0]

    async def forget_idle(self, limit: int) -> int:
        return await self._routing.share("forget_idle", limit, lambda store, some: store.limits.forget_idle(some))
