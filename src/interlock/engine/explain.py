"""Why a job does not run."""

from __future__ import annotations

from interlock import wire
from interlock.domain.explain import Why, explain
from interlock.engine.worker_presence import Workers
from interlock.errors import NotFound
from interlock.storage.contract import Store


class Explainer:
    """Explanations of why jobs do not run."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store = store
        self._workers = workers

    async def of(self, tenant: str, job_id: str) -> Why:
        """Return the reason that decides, from one snapshot of the job and its surroundings."""
        await self._workers.written()
        found = await self._store.workers.job_snapshot(tenant, wire.job_id(job_id))
        if found is None:
            raise NotFound(job_id)
        return explain(found)
