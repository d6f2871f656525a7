"""Sharded workers, and what explains a job."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from interlock.domain.explain import JobSnapshot
from interlock.domain.worker_presence import Presence, WorkerSeen
from interlock.storage.parts.workers import MAX_NAMED
from interlock.storage.shards.routing import Routing


class ShardedWorkers:
    """Routes the calls of workers."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def note(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        await self._routing.each(tenant, lambda store: store.workers.note(tenant, seen_workers))

    async def page(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        pages = await self._routing.each(
            tenant, lambda store: store.workers.page(tenant, after=after, limit=limit, within_seconds=within_seconds)
        )
        if len(pages) == 1:
            return pages[0]
        by_name: dict[str, Presence] = {}
        for worker in itertools.chain(*pages):
            there = by_name.get(worker.name)
            by_name[worker.name] = worker if there is None else _same_worker(there, worker)
        return [by_name[name] for name in sorted(by_name)][:limit]

    async def forget(self, older_than_seconds: float, limit: int) -> int:
        return await self._routing.share(
            "forget_workers", limit, lambda store, some: store.workers.forget(older_than_seconds, some)
        )

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        return await self._routing.of_job(tenant, job_id, lambda store: store.workers.job_snapshot(tenant, job_id))


def _same_worker(one: Presence, other: Presence) -> Presence:
    seen = max((one, other), key=lambda worker: worker.last_seen_at or 0)
    firsts = [at for at in (one.first_seen_at, other.first_seen_at) if at is not None]
    return seen._replace(
        first_seen_at=min(firsts, default=None),
        running=one.running + other.running,
        job_ids=sorted((*one.job_ids, *other.job_ids))[:MAX_NAMED],
    )
