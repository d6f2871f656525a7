"""Sharded approvals, progress, artifacts and tokens: on the shard of their job; tokens on that of their tenant."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from interlock.domain.artifact import Artifact, NewArtifact, Opening
from interlock.domain.job import Rejected
from interlock.domain.progress import EventRow, FeedEvent, FeedPosition, Report, Step, StepRow
from interlock.errors import Invalid
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard

PAGE: Final = 500


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


class ShardedArtifacts(Routing):
    """The part of a sharded store for artifact metadata."""

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        return await self.by_job(
            tenant,
            openings,
            lambda opening: opening.holder.job_id,
            lambda store, some: store.open_uploads(tenant, some, quota=quota),
        )

    async def show_artifacts(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        return await self.by_job(
            tenant,
            items,
            attrgetter("job_id"),
            lambda store, some: store.show_artifacts(tenant, some, quota=quota, whole=whole),
        )

    async def abandon_objects(self, tenant: str, keys: Sequence[str]) -> None:
        await self.each(tenant, lambda store: store.abandon_objects(tenant, keys))

    async def artifact(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None:
        return await self.of_job(tenant, job_id, lambda store: store.artifact(tenant, job_id, artifact_id))

    async def artifact_home(self, tenant: str, artifact_id: str) -> str | None:
        homes = await self.each(tenant, lambda store: store.artifact_home(tenant, artifact_id))
        return next((home for home in homes if home is not None), None)

    async def artifacts(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int
    ) -> list[Artifact]:
        return await self.of_job(
            tenant, job_id, lambda store: store.artifacts(tenant, job_id, before=before, limit=limit)
        )

    async def forget_artifacts(self, tenant: str, job_ids: Sequence[str]) -> int:
        return sum(await self.each(tenant, lambda store: store.forget_artifacts(tenant, job_ids)))

    async def artifact_bytes(self, tenant: str) -> int:
        return sum(await self.each(tenant, lambda store: store.artifact_bytes(tenant)))

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        return list(itertools.chain(*await self.each(tenant, lambda store: store.condemn_orphans(tenant, keys))))

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        return sum(await self.each(tenant, lambda store: store.drop_orphans(tenant, keys)))


def _only(shards: Sequence[Shard]) -> Shard:
    if len(shards) > 1:
        raise Invalid(
            "the jobs of this tenant are on several shards, which have no common order; read each job's events"
        )
    return shards[0]
