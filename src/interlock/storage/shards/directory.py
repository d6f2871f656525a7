"""The directory: a cache of the tenant placements in the first shard's database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from interlock.domain.shards import Placement, first_shard
from interlock.errors import Unavailable
from interlock.storage.shards.shard import Shard

# How long a cached placement may be stale. A move waits this long before it starts; during a move nothing is cached.
FRESH_SECONDS: Final = 1.0
MAX_REMEMBERED: Final = 100_000


class _CachedPlacement(NamedTuple):
    placement: Placement
    until: float


class ShardDirectory:
    """A supplier that maps by tenant only. If its database is unreachable, it returns the last known placement."""

    def __init__(
        self,
        home: Shard,
        names: Sequence[str],
        *,
        fresh_seconds: float = FRESH_SECONDS,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._names = tuple(names)
        self._fresh_seconds = fresh_seconds
        self._ticks = ticks
        self._known: dict[str, _CachedPlacement] = {}

    async def queue_shards(self, tenant: str, type: str | None) -> Sequence[str]:
        return ((await self.placement(tenant)).shard,)

    async def current_shard(self, tenant: str, type: str | None) -> str:
        return (await self.placement(tenant)).shard

    async def placement(self, tenant: str) -> Placement:
        """Return the placement of a tenant; a new tenant is assigned a shard."""
        known = self._known.get(tenant)
        asked = self._ticks()
        if known is not None and asked < known.until:
            return known.placement
        offered = first_shard(tenant, self._names)
        try:
            placement = await self._home.run(lambda store: store.assign_shard(tenant, offered))
        except Unavailable:
            if known is None:
                raise
            return known.placement
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[tenant] = _CachedPlacement(placement, 0.0 if placement.unsettled else asked + self._fresh_seconds)
        return placement

    def forget(self, tenant: str) -> None:
        """Query the database for the next lookup of this tenant."""
        known = self._known.get(tenant)
        if known is not None:
            self._known[tenant] = known._replace(until=0.0)
