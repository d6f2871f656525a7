"""To whom a fence was granted, for workers that do not repeat their name."""

from __future__ import annotations

from interlock import wire
from interlock.domain.lifecycle import Verb
from interlock.storage.contract import Store

_WORKER = "worker:"


class LeaseHolders:
    """Finds the worker of a grant, also after it has ended."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, tenant: str, job_id: str, fence: int) -> str | None:
        """The name under which a job was claimed with this fence, or None if it never was."""
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
