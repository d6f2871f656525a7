"""Sharded types, agents, counts: set on all shards of a tenant, counted across them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.registry import Agent, JobType, Minute, QueueStats, Registry
from interlock.storage.shards.routing import Routing

_PAUSE: Final = ("paused_at", "paused_by", "pause_reason")


class ShardedRegistry:
    """Routes the calls of the registry."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def pause(
        self, tenant: str, type: str, *, actor: str | None, reason: str | None, resumed_by: str | None = None
    ) -> None:
        await self._routing.each(
            tenant, lambda store: store.registry.pause(tenant, type, actor=actor, reason=reason, resumed_by=resumed_by)
        )

    async def read(self, tenant: str) -> Registry:
        return await self._routing.home(tenant, lambda store: store.registry.read(tenant))

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        return (await self._routing.each(tenant, lambda store: store.registry.set_type(tenant, type, actor=actor)))[0]

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool:
        return any(
            await self._routing.each(tenant, lambda store: store.registry.delete_type(tenant, name, actor=actor))
        )

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        return (await self._routing.each(tenant, lambda store: store.registry.set_agent(tenant, agent, actor=actor)))[0]

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        pages = await self._routing.each(tenant, lambda store: store.registry.agents(tenant, after, limit))
        found = {(agent.kind, agent.id): agent for page in reversed(pages) for agent in page}
        return [found[name] for name in sorted(found)][:limit] if len(pages) > 1 else pages[0]

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        pages = await self._routing.each(tenant, lambda store: store.registry.stalled_agents(tenant, limit=limit))
        found = {(agent.kind, agent.id): agent for page in pages for agent in page}
        return [found[name] for name in sorted(found)][:limit]

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]:
        found: dict[tuple[str, str], Agent] = {}
        for some in reversed(
            await self._routing.each(tenant, lambda store: store.registry.agents_named(tenant, names))
        ):
            found |= some
        return found

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        return any(
            await self._routing.each(tenant, lambda store: store.registry.delete_agent(tenant, kind, id, actor=actor))
        )

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        pages = await self._routing.each(tenant, lambda store: store.registry.stats(tenant, type))
        if len(pages) == 1:
            return pages[0]
        by_type: dict[str, QueueStats] = {}
        for stats in itertools.chain(*pages):
            there = by_type.get(stats.type)
            by_type[stats.type] = stats if there is None else together(there, stats)
        return [by_type[name] for name in sorted(by_type)]

    async def minutes(self, tenant: str) -> list[Minute]:
        pages = await self._routing.each(tenant, lambda store: store.registry.minutes(tenant))
        if len(pages) == 1:
            return pages[0]
        counts: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for type, minute, *moved in itertools.chain(*pages):
            counts.setdefault((type, minute), []).append(tuple(moved))
        return [Minute(*key, *map(sum, zip(*counts[key], strict=True))) for key in sorted(counts)]

    async def fill_slots(self, limit: int) -> int:
        return await self._routing.share("fill_slots", limit, lambda store, some: store.registry.fill_slots(some))

    async def fold_counters(self, rows: int, limit: int) -> int:
        return await self._routing.share(
            "fold_counters", limit, lambda store, some: store.registry.fold_counters(rows, some)
        )


def together(one: QueueStats, other: QueueStats) -> QueueStats:
    """Add up the counts of one type on two shards."""
    values: dict[str, Any] = {}
    for name in QueueStats._fields[1:]:
        a, b = getattr(one, name), getattr(other, name)
        if name == "oldest_ready_at":
            values[name] = min((at for at in (a, b) if at is not None), default=None)
        else:
            values[name] = (b if a is None else a) if name in _PAUSE else a + b
    return one._replace(**values)
