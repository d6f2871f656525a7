"""Sharded artifacts: each on the shard of its job."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import attrgetter

from interlock.domain.artifact import Artifact, NewArtifact, Opening, Orphan
from interlock.domain.job import Rejected
from interlock.storage.shards.routing import Routing


class ShardedArtifacts:
    """Routes the calls of artifacts."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        return await self._routing.by_job(
            tenant,
            openings,
            lambda opening: opening.holder.job_id,
            lambda store, some: store.artifacts.open_uploads(tenant, some, quota=quota),
        )

    async def publish(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        return await self._routing.by_job(
            tenant,
            items,
            attrgetter("job_id"),
            lambda store, some: store.artifacts.publish(tenant, some, quota=quota, whole=whole),
        )

    async def abandon(self, tenant: str, keys: Sequence[str]) -> None:
        await self._routing.each(tenant, lambda store: store.artifacts.abandon(tenant, keys))

    async def get(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None:
        return await self._routing.of_job(
            tenant, job_id, lambda store: store.artifacts.get(tenant, job_id, artifact_id)
        )

    async def job_of(self, tenant: str, artifact_id: str) -> str | None:
        homes = await self._routing.each(tenant, lambda store: store.artifacts.job_of(tenant, artifact_id))
        return next((home for home in homes if home is not None), None)

    async def page(self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int) -> list[Artifact]:
        return await self._routing.of_job(
            tenant, job_id, lambda store: store.artifacts.page(tenant, job_id, before=before, limit=limit)
        )

    async def forget(self, tenant: str, job_ids: Sequence[str]) -> int:
        return sum(await self._routing.each(tenant, lambda store: store.artifacts.forget(tenant, job_ids)))

    async def total_bytes(self, tenant: str) -> int:
        return sum(await self._routing.each(tenant, lambda store: store.artifacts.total_bytes(tenant)))

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        return list(
            itertools.chain(
                *await self._routing.each(tenant, lambda store: store.artifacts.condemn_orphans(tenant, keys))
            )
        )

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        return sum(await self._routing.each(tenant, lambda store: store.artifacts.drop_orphans(tenant, keys)))

    async def due_orphans(self, limit: int) -> list[Orphan]:
        return await self._routing.due("due_orphans", limit, lambda store: store.artifacts.due_orphans(limit))
