"""Sharded streams: each on the shard of its job."""

from __future__ import annotations

from interlock.domain.job import Rejected
from interlock.domain.stream import Append, Chunk, StreamInfo
from interlock.storage.shards.routing import Routing


class ShardedStreams:
    """Routes the calls of streams."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def append(self, tenant: str, append: Append, *, limit: int) -> int | Rejected:
        return await self._routing.of_job(
            tenant, append.id, lambda store: store.streams.append(tenant, append, limit=limit)
        )

    async def of_job(self, tenant: str, job_id: str) -> list[StreamInfo]:
        return await self._routing.of_job(tenant, job_id, lambda store: store.streams.of_job(tenant, job_id))

    async def chunks(self, tenant: str, job_id: str, name: str, *, after: int = -1, limit: int) -> list[Chunk]:
        return await self._routing.of_job(
            tenant, job_id, lambda store: store.streams.chunks(tenant, job_id, name, after=after, limit=limit)
        )
