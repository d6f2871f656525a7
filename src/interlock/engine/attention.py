"""Jobs that need attention."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.attention import MAX_COUNTED, Need
from interlock.domain.identifiers import id_end
from interlock.domain.job import SEARCHED_JOBS, Filter, Job, TextSearch
from interlock.engine.queries import MAX_PAGE_SIZE, text_searches
from interlock.engine.worker_presence import Workers
from interlock.errors import Invalid
from interlock.storage.contract import Store


class Attention:
    """Unacknowledged failures that were not redriven, and due jobs that no present worker could claim."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store = store
        self._workers = workers

    async def page(
        self,
        tenant: str,
        *,
        need: Need | None = None,
        before_seq: int | None = None,
        limit: int = 50,
        filter: Filter | None = None,
        search: str | None = None,
    ) -> list[Job]:
        """List the jobs, newest first; with a filter or a search, those of the next 5000 that match."""
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise Invalid(f"limit must be from 1 to {MAX_PAGE_SIZE}", pointer="/limit")
        await self._workers.written()
        if search is None and (filter is None or filter.is_empty):
            return await self._page(tenant, need, before_seq, limit)
        wanted, end = [] if search is None else text_searches(search, limit), id_end(search or "")
        found: list[Job] = []
        for _ in range(SEARCHED_JOBS // MAX_PAGE_SIZE):
            page = await self._page(tenant, need, before_seq, MAX_PAGE_SIZE)
            now = await self._store.now()
            found += [
                job
                for job in page
                if (filter is None or filter.matches(job, now)) and (not wanted or _is_found(job, wanted, end))
            ]
            if len(page) < MAX_PAGE_SIZE or len(found) >= limit:
                break
            before_seq = page[-1].seq
        return found[:limit]

    async def _page(self, tenant: str, need: Need | None, before_seq: int | None, limit: int) -> list[Job]:
        places = await self._store.attention.page(tenant, need=need, before_seq=before_seq, limit=limit)
        found = await self._store.get(tenant, [place.id for place in places]) if places else []
        return [job for job in found if job is not None]

    async def count(self, tenant: str, *, need: Need | None = None, most: int = MAX_COUNTED) -> int:
        """Count the jobs, up to `most`."""
        await self._workers.written()
        return await self._store.attention.count(tenant, need=need, most=most)


def _is_found(job: Job, wanted: Sequence[TextSearch], end: str | None) -> bool:
    """Return whether a search finds a job by its ID, its idempotency key or text."""
    by_id = end is not None and job.id.endswith(end)
    return by_id or job.idempotency_key == wanted[0].text or any(one.matches(job) for one in wanted)
