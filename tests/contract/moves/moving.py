"""Moves that may end on the way, and where a tenant lives after them."""

from __future__ import annotations

from interlock.storage.shards.sharded_store import ShardedStore
from interlock.storage.shards.tenant_move import Moved, Mover
from tests.contract.builders import Desk


class Stop(Exception):
    """Ends a move at a point, as if the mover had died there."""


async def move(owners: dict[str, str], remote: Desk, target: str, *, until: str | None = None) -> Moved:
    def at(point: str) -> None:
        if point == until:
            raise Stop

    return await Mover(owners, stale_seconds=0.02, step=2, at=at).move(remote.tenant, target)


async def home_of(remote: Desk) -> str:
    assert isinstance(remote.store, ShardedStore)
    (shard,) = await remote.store.homes(remote.tenant)
    return shard.name
