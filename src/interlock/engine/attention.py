"""Jobs that need attention."""

from __future__ import annotations

from interlock.domain.attention import MAX_COUNTED, Need
from interlock.domain.job import Job
from interlock.engine.queries import MAX_PAGE_SIZE
from interlock.engine.worker_presence import Workers
from interlock.errors import Invalid
from interlock.storage.contract import Store


class Attention:
    """Unacknowledged failures that were not redriven, and due jobs that no present worker could claim."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store = store
        self._workers = workers

    async def page(
        self, tenant: str, *, need: Need | None = None, before_seq: int | None = None, limit: int = 50
    ) -> list[Job]:
        """List the jobs, newest first."""
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise Invalid(f"limit must be from 1 to {MAX_PAGE_SIZE}", pointer="/limit")
        await self._workers.written()
        places = await self._store.attention.page(tenant, need=need, before_seq=before_seq, limit=limit)
        found = await self._store.get(tenant, [place.id for place in places]) if places else []
        return [job for job in found if job is not None]

    async def count(self, tenant: str, *, need: Need | None = None, most: int = MAX_COUNTED) -> int:
        """Count the jobs, up to `most`."""
        await self._workers.written()
        return await self._store.attention.count(tenant, need=need, most=most)
