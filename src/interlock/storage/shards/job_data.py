"""Sharded approvals, progress, artifacts and tokens: on the shard of their job; tokens on that of their tenant."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from interlock.domain.job import Rejected
from interlock.domain.progress import EventRow, FeedEvent, FeedPosition, Report, Step, StepRow
from interlock.errors import Invalid
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard


class ShardedProgress(Routing):
    """The part of a sharded store for steps and events."""

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        return await self.by_job(tenant, steps, attrgetter("id"), lambda store, some: store.save_steps(tenant, some))

    async def steps(self, tenant: str, job_ids: Sequence[str], *, after: int = 0, limit: int) -> list[list[StepRow]]:
        return await self.by_job(
            tenant, job_ids, str, lambda store, some: store.steps(tenant, some, after=after, limit=limit)
        )

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        return await self.by_job(tenant, reports, attrgetter("id"), lambda store, some: store.add_events(tenant, some))

    async def events(
        self, tenant: str, job_id: str, *, after: int = 0, since: int | None = None, limit: int
    ) -> list[EventRow]:
        return await self.of_job(
            tenant, job_id, lambda store: store.events(tenant, job_id, after=after, since=since, limit=limit)
        )

    async def feed(self, tenant: str, after: FeedPosition, *, limit: int) -> list[FeedEvent]:
        return await self.routed(
            tenant, lambda shards: _only(shards).run(lambda store: store.feed(tenant, after, limit=limit))
        )

    async def feed_end(self, tenant: str) -> FeedPosition:
        return await self.routed(tenant, lambda shards: _only(shards).run(lambda store: store.feed_end(tenant)))

    async def has_ended(self, tenant: str, job_id: str) -> bool | None:
        return await self.of_job(tenant, job_id, lambda store: store.has_ended(tenant, job_id))


def _only(shards: Sequence[Shard]) -> Shard:
    if len(shards) > 1:
        raise Invalid(
            "the jobs of this tenant are on several shards, which have no common order; read each job's events"
        )
    return shards[0]
