"""Limits: named objects that jobs name, and holds that close them for a time."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from interlock import wire
from interlock.domain import limits
from interlock.domain.budget import PREFIX, TREE
from interlock.domain.limits import MAX_HOLD_SECONDS, BucketState, LimitState
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire.limits import LimitRequest, limit_from

MAX_PAGE_SIZE: Final = 200
BATCH_SIZE: Final = 500
FORGET_IDLE_SECONDS: Final = 60.0


class FlowLimits:
    """Operations on limits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def set(self, who: Principal, name: str, request: LimitRequest) -> LimitState:
        """Create or update a limit. A lower concurrency takes effect as jobs end."""
        limit = limits.check(limit_from(wire.name(name, "name"), request))
        return await self._store.limits.set(who.tenant, limit, actor=who.actor)

    async def get(self, tenant: str, name: str) -> LimitState:
        found = None if name.startswith((PREFIX, TREE)) else await self._store.limits.get(tenant, name)
        return _found(found, name)

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[LimitState]:
        """List limits by name, starting after `after`."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.limits.page(tenant, after=after, limit=limit)

    async def keys(self, tenant: str, name: str, *, after: str = "", limit: int = 50) -> list[BucketState]:
        """List the buckets of a limit by key, starting after `after`."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        await self.get(tenant, name)
        return await self._store.limits.keys(tenant, name, after=after, limit=limit)

    async def due(self, tenant: str, name: str, *, key: str | None = None, limit: int = 50) -> list[str]:
        """List due jobs that wait for a limit, or for one of its keys."""
        return await self._store.limits.due(tenant, name, wire.whole(limit, "limit", 1, MAX_PAGE_SIZE), key=key)

    async def held(self, tenant: str, *, limit: int = 50) -> list[tuple[str, BucketState]]:
        """List the held limits and keys of limits."""
        return await self._store.limits.held(tenant, wire.whole(limit, "limit", 1, MAX_PAGE_SIZE))

    async def delete(self, who: Principal, name: str) -> None:
        """Delete a limit that no unfinished job names."""
        if name.startswith((PREFIX, TREE)) or not await self._store.limits.delete(who.tenant, name, actor=who.actor):
            raise NotFound(name, resource="limit")

    async def hold(
        self, who: Principal, name: str, until: datetime, *, key: str | None = None, reason: str | None = None
    ) -> LimitState:
        """Lease no job that names the limit until a time; the later time of two holds wins.

        Without the role `operate`, a worker holds only a limit that a job which it runs names.
        """
        at, now = wire.instant(until, "until"), await self._store.now()
        if at is None or not now < at <= now + MAX_HOLD_SECONDS * SECOND:
            raise Invalid(f"until must be in the next {MAX_HOLD_SECONDS // 86_400} days", pointer="/until")
        where = await self._key(who.tenant, name, key)
        held = await self._store.limits.hold(
            who.tenant,
            name,
            key=where,
            until=at,
            actor=who.actor,
            reason=wire.reason(reason),
            worker=None if who.may("operate") else who.worker or "",
        )
        return _found(held, name)

    async def release(self, who: Principal, name: str, *, key: str | None = None) -> LimitState:
        """End the hold of a limit."""
        where = await self._key(who.tenant, name, key)
        return _found(await self._store.limits.release(who.tenant, name, key=where, actor=who.actor), name)

    async def forget_idle(self) -> int:
        """Delete the buckets of keys that are as if they were never used."""
        return await self._store.limits.forget_idle(BATCH_SIZE)

    async def _key(self, tenant: str, name: str, key: str | None) -> str:
        found = await self.get(tenant, name)
        if found.limit.keyed != (key is not None):
            raise Invalid(
                f"limit {name!r} has keys: set key" if found.limit.keyed else f"limit {name!r} has no keys",
                pointer="/key",
            )
        return "" if key is None else wire.name(key, "key")


def _found(kept: LimitState | None, name: str) -> LimitState:
    if kept is None:
        raise NotFound(name, resource="limit")
    return kept
