"""Moves of a tenant that may be interrupted, and the shard of the tenant after them."""

from __future__ import annotations

from interlock.storage.shards.sharded_store import ShardedStore
from interlock.storage.shards.tenant_move import Moved, Mover
from tests.contract.builders import TenantQueue


class Stop(Exception):
    """Ends a move at a point, as if the mover had died there."""


async def move(owners: dict[str, str], queue: TenantQueue, target: str, *, until: str | None = None) -> Moved:
    def at(point: str) -> None:
        if point == until:
            raise Stop

    return await Mover(owners, stale_seconds=0.02, step=2, at=at).move(queue.tenant, target)


async def home_of(queue: TenantQueue) -> str:
    assert isinstance(queue.store, ShardedStore)
    (shard,) = await queue.store.homes(queue.tenant)
    return shard.name
