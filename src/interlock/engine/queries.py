"""Viewers: jobs, lists, history, audit."""

from __future__ import annotations

import json
from collections.abc import Sequence

from interlock.domain import json_text
from interlock.domain.identifiers import id_end
from interlock.domain.job import SEARCHED_CHARS, SEARCHED_JOBS, Filter, HistoryRow, Job, TextSearch
from interlock.domain.registry import Minute, QueueStats
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import ChainVerification, Fitness, Store

MAX_PAGE_SIZE = 200
STEP_MISMATCH = "step_mismatch"
MAX_SEARCH = 200
NO_QUEUE = "the type is not registered and never had a job"


def text_searches(text: str, limit: int) -> list[TextSearch]:
    """Return the searches for a text: payloads are stored as sent, and many clients escape letters beyond ASCII."""
    if not 1 <= len(text) <= MAX_SEARCH or "\x00" in text:
        raise Invalid(f"search must have 1 to {MAX_SEARCH} characters", pointer="/search")
    spellings = {json.dumps(text, ensure_ascii=only_ascii)[1:-1] for only_ascii in (False, True)}
    return [TextSearch(text, spelling, SEARCHED_JOBS, SEARCHED_CHARS, limit) for spelling in spellings]


class Queries:
    """Read-only operations."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def job(self, tenant: str, job_id: str) -> Job:
        (job,) = await self._store.get(tenant, [job_id])
        if job is None:
            raise NotFound(job_id)
        return job

    async def some(self, tenant: str, job_ids: Sequence[str]) -> list[Job]:
        """Return several jobs by ID, in that order."""
        found = await self._store.get(tenant, job_ids)
        for job_id, job in zip(job_ids, found, strict=True):
            if job is None:
                raise NotFound(job_id)
        return [job for job in found if job is not None]

    async def jobs(self, tenant: str, filter: Filter) -> list[Job]:
        """List jobs, newest first, without payloads."""
        if not 1 <= filter.limit <= MAX_PAGE_SIZE:
            raise Invalid(f"limit must be from 1 to {MAX_PAGE_SIZE}", pointer="/limit")
        return await self._store.find(tenant, filter)

    async def search(self, tenant: str, text: str, *, limit: int = 50, filter: Filter | None = None) -> list[Job]:
        """Find jobs by ID, its last 8 or more characters, or idempotency key, then by text, each newest first.

        Text is found in payload, error, tags and the name of the requester, in the newest 5000 jobs. A filter selects
        from the first 200 of them.
        """
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise Invalid(f"limit must be from 1 to {MAX_PAGE_SIZE}", pointer="/limit")
        if filter is not None and not filter.is_empty:
            found, now = await self.search(tenant, text, limit=MAX_PAGE_SIZE), await self._store.now()
            return [job for job in found if filter.matches(job, now)][:limit]
        wanted = text_searches(text, limit)
        ids = await self._store.search(tenant, text, id_end(text), limit)
        if len(ids) < limit:
            by_text: list[Job] = []
            for one in wanted:
                by_text += await self._found(tenant, await self._store.search_text(tenant, one))
            by_text.sort(key=lambda job: job.seq, reverse=True)
            found = [*await self._found(tenant, ids), *by_text]
            return list({job.id: job for job in found}.values())[:limit]
        return await self._found(tenant, ids)

    async def _found(self, tenant: str, ids: Sequence[str]) -> list[Job]:
        return [job for job in await self._store.get(tenant, ids) if job is not None] if ids else []

    async def history(self, tenant: str, job_id: str, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        """List the transitions of a job with a version above `after`, oldest first; without a limit, all of them."""
        await self.job(tenant, job_id)
        return await self._store.history(tenant, job_id, after=after, limit=limit)

    async def queues(self, tenant: str, *, after: str = "", limit: int | None = None) -> list[QueueStats]:
        """Return the job counts of each type, by type, as of one moment; `after` and `limit` select a page."""
        if limit is not None and not 1 <= limit <= MAX_PAGE_SIZE + 1:  # one extra row shows whether a page is the last
            raise Invalid(f"limit must be from 1 to {MAX_PAGE_SIZE}", pointer="/limit")
        found = sorted(await self._store.registry.stats(tenant), key=lambda one: one.type)
        return [one for one in found if one.type > after][:limit]

    async def redriven(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        """Return the IDs of those jobs that were redriven."""
        return await self._store.redriven(tenant, job_ids) if job_ids else set()

    async def redrives(self, tenant: str, job_id: str, *, limit: int) -> list[Job]:
        """Return the jobs that redrive this one, newest first."""
        ids = await self._store.redrives(tenant, job_id, limit=limit)
        jobs = await self._store.get(tenant, ids) if ids else []
        return [job for job in jobs if job is not None]

    async def parents(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        """Return the IDs of those jobs that have children."""
        return await self._store.parents(tenant, job_ids) if job_ids else set()

    async def mismatched(self, tenant: str, *, limit: int) -> list[Job]:
        """Return jobs that cannot continue with the deployed code, newest first; they are retried until it is fixed."""
        ids = await self._store.retrying_after(tenant, STEP_MISMATCH, limit=limit)
        jobs = await self._store.get(tenant, ids) if ids else []
        return [job for job in jobs if job is not None and _failed_by(job, STEP_MISMATCH)]

    async def minutes(self, tenant: str) -> list[Minute]:
        """Return the transitions of the last hour, by type and minute."""
        return await self._store.registry.minutes(tenant)

    async def queue(self, tenant: str, type: str) -> QueueStats:
        stats = await self._store.registry.stats(tenant, type)
        if not stats:
            raise NotFound(type, resource="queue", hint=NO_QUEUE)
        return stats[0]

    async def verify(self, tenant: str | None = None) -> ChainVerification:
        return await self._store.audit.verify(tenant)

    async def head(self, tenant: str | None = None) -> str:
        """Return one hash over a tenant's chain heads; all tenants only for an operator with database access."""
        return await self._store.audit.head(tenant)

    async def now(self) -> int:
        return await self._store.now()

    async def unreachable(self) -> dict[str, str]:
        """Return unreachable shards by name, with the reason."""
        return await self._store.unreachable()

    async def signing_key(self) -> bytes:
        """Return the key with which the servers of this database sign cookies and cursors; keep it secret."""
        return await self._store.tokens.signing_key()

    async def fitness(self) -> Fitness:
        """Return whether the database is ready for use."""
        return await self._store.fitness()


def _failed_by(job: Job, kind: str) -> bool:
    error = None if job.error is None else json_text.loads(job.error)
    return isinstance(error, dict) and error.get("kind") == kind
