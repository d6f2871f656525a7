"""Sharded usage totals: the sums of all shards of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from interlock.domain.usage_totals import By, Sum
from interlock.storage.shards.routing import Routing


class ShardedUsage:
    """Routes the calls of usage totals."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def sums(self, tenant: str, by: By, since: int, until: int) -> list[Sum]:
        """Return the sums of each shard; groups may repeat."""
        found = await self._routing.each(tenant, lambda store: store.usage.sums(tenant, by, since, until))
        return [*chain(*found)]

    async def ancestors(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the topmost ancestors that the shard of each job knows."""
        found = await self._routing.each(tenant, lambda store: store.usage.ancestors(tenant, ids))
        return dict(chain(*(some.items() for some in found)))
