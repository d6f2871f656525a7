"""Words for tests of why a job does not run."""

from __future__ import annotations

from typing import Any

from interlock.domain.explain import Why, explain
from interlock.domain.policy import ClaimFilter
from interlock.domain.worker_presence import WorkerSeen
from tests.contract.builders import (
    TenantQueue,
    ask,
)


async def why(queue: TenantQueue, job_id: str) -> Why:
    found = await queue.store.workers.job_snapshot(queue.tenant, job_id)
    assert found is not None
    assert found.now == queue.clock.now
    return explain(found)


async def clauses(queue: TenantQueue, job_id: str) -> list[str]:
    """Every clause that holds, the one that decides first."""
    reported = await why(queue, job_id)
    return [reported.clause, *(reason.clause for reason in reported.also)]


async def details(queue: TenantQueue, job_id: str) -> dict[str, Any]:
    return dict((await why(queue, job_id)).reason.details)


async def seen(queue: TenantQueue, **fields: Any) -> ClaimFilter:
    """A worker is noted as asking; the ask is the answer."""
    asked = ask(**fields)
    await queue.store.workers.note(queue.tenant, [WorkerSeen(asked.worker, (asked,))])
    return asked
