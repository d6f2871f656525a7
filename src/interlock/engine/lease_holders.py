"""Lookup of the lease holder of a fence, for workers that do not send their name."""

from __future__ import annotations

from interlock import wire
from interlock.domain.lifecycle import Verb
from interlock.storage.contract import Store

_WORKER = "worker:"


class LeaseHolders:
    """Finds the worker of a lease, even after the lease has ended."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, tenant: str, job_id: str, fence: int) -> str | None:
        """Return the worker that claimed the job with this fence, or None."""
        id = wire.job_id(job_id)
        (job,) = await self._store.get(tenant, [id])
        if job is None:
            return None
        if job.fence == fence and job.worker is not None:
            return job.worker
        for row in reversed(await self._store.history(tenant, id)):
            if row.verb is Verb.CLAIM and row.fence == fence:
                return row.actor.removeprefix(_WORKER)
        return None
