"""Sharded types, agents, counts and workers: set on all shards of a tenant, counted across them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.explain import JobSnapshot
from interlock.domain.registry import Agent, JobType, Minute, QueueStats, Registry
from interlock.domain.worker_presence import Presence, WorkerSeen
from interlock.storage.postgres.explain import MAX_NAMED
from interlock.storage.shards.routing import Routing

_PAUSE: Final = ("paused_at", "paused_by", "pause_reason")


class ShardedRegistry(Routing):
    """The part of a sharded store for types, agents, counts and workers."""

    async def pause(
        self, tenant: str, type: str, *, actor: str | None, reason: str | None, resumed_by: str | None = None
    ) -> None:
        await self.each(
            tenant, lambda store: store.pause(tenant, type, actor=actor, reason=reason, resumed_by=resumed_by)
        )

    async def registry(self, tenant: str) -> Registry:
        return await self.home(tenant, lambda store: store.registry(tenant))

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        return (await self.each(tenant, lambda store: store.set_type(tenant, type, actor=actor)))[0]

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool:
        return any(await self.each(tenant, lambda store: store.delete_type(tenant, name, actor=actor)))

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        return (await self.each(tenant, lambda store: store.set_agent(tenant, agent, actor=actor)))[0]

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        pages = await self.each(tenant, lambda store: store.agents(tenant, after, limit))
        found = {(agent.kind, agent.id): agent for page in reversed(pages) for agent in page}
        return [found[name] for name in sorted(found)][:limit] if len(pages) > 1 else pages[0]

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        pages = await self.each(tenant, lambda store: store.stalled_agents(tenant, limit=limit))
        found = {(agent.kind, agent.id): agent for page in pages for agent in page}
        return [found[name] for name in sorted(found)][:limit]

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]:
        found: dict[tuple[str, str], Agent] = {}
        for some in reversed(await self.each(tenant, lambda store: store.agents_named(tenant, names))):
            found |= some
        return found

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        return any(await self.each(tenant, lambda store: store.delete_agent(tenant, kind, id, actor=actor)))

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        pages = await self.each(tenant, lambda store: store.stats(tenant, type))
        if len(pages) == 1:
            return pages[0]
        by_type: dict[str, QueueStats] = {}
        for stats in itertools.chain(*pages):
            there = by_type.get(stats.type)
            by_type[stats.type] = stats if there is None else together(there, stats)
        return [by_type[name] for name in sorted(by_type)]

    async def minutes(self, tenant: str) -> list[Minute]:
        pages = await self.each(tenant, lambda store: store.minutes(tenant))
        if len(pages) == 1:
            return pages[0]
        counts: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for type, minute, *moved in itertools.chain(*pages):
            counts.setdefault((type, minute), []).append(tuple(moved))
        return [Minute(*key, *map(sum, zip(*counts[key], strict=True))) for key in sorted(counts)]

    async def note_workers(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        await self.each(tenant, lambda store: store.note_workers(tenant, seen_workers))

    async def workers(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        pages = await self.each(
            tenant, lambda store: store.workers(tenant, after=after, limit=limit, within_seconds=within_seconds)
        )
        if len(pages) == 1:
            return pages[0]
        by_name: dict[str, Presence] = {}
        for worker in itertools.chain(*pages):
            there = by_name.get(worker.name)
            by_name[worker.name] = worker if there is None else _same_worker(there, worker)
        return [by_name[name] for name in sorted(by_name)][:limit]

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        return await self.of_job(tenant, job_id, lambda store: store.job_snapshot(tenant, job_id))


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


def _same_worker(one: Presence, other: Presence) -> Presence:
    seen = max((one, other), key=lambda worker: worker.last_seen_at or 0)
    firsts = [at for at in (one.first_seen_at, other.first_seen_at) if at is not None]
    return seen._replace(
        first_seen_at=min(firsts, default=None),
        running=one.running + other.running,
        job_ids=sorted((*one.job_ids, *other.job_ids))[:MAX_NAMED],
    )
