"""Sharded jobs that need attention: those of every shard."""

from __future__ import annotations

import itertools

from interlock.domain.attention import Need
from interlock.storage.contract.attention import Place
from interlock.storage.shards.operations import ShardedOperations


class ShardedAttention:
    """Asks every shard of a tenant."""

    def __init__(self, store: ShardedOperations) -> None:
        self._store = store

    async def page(
        self, tenant: str, *, need: Need | None = None, before_seq: int | None = None, limit: int
    ) -> list[Place]:
        """Merge the pages; while a tenant moves, a job and its redrive can be on different shards."""
        found: list[Place] = []
        while True:
            merged, several = await self._merged(tenant, need, before_seq, limit)
            again = await self._store.redriven(tenant, [place.id for place in merged]) if several else set()
            found += [place for place in merged if place.id not in again]
            if len(found) >= limit or len(merged) < limit:
                return found[:limit]
            before_seq = merged[-1].seq

    async def _merged(
        self, tenant: str, need: Need | None, before_seq: int | None, limit: int
    ) -> tuple[list[Place], bool]:
        """Return the next page of all shards, and whether the tenant has several."""
        pages = await self._store.each(
            tenant, lambda store: store.attention.page(tenant, need=need, before_seq=before_seq, limit=limit)
        )
        return sorted({*itertools.chain(*pages)}, reverse=True)[:limit], len(pages) > 1

    async def count(self, tenant: str, *, need: Need | None = None, most: int) -> int:
        counts = await self._store.each(tenant, lambda store: store.attention.count(tenant, need=need, most=most))
        return min(sum(counts), most)
