"""Words for tests of why a job does not run."""

from __future__ import annotations

from typing import Any

from interlock.domain.explain import Why, explain
from interlock.domain.policy import ClaimFilter
from interlock.domain.worker_presence import WorkerSeen
from tests.contract.builders import (
    Desk,
    ask,
)


async def why(remote: Desk, job_id: str) -> Why:
    found = await remote.store.job_snapshot(remote.tenant, job_id)
    assert found is not None
    assert found.now == remote.clock.now
    return explain(found)


async def clauses(remote: Desk, job_id: str) -> list[str]:
    """Every clause that holds, the one that decides first."""
    reported = await why(remote, job_id)
    return [reported.clause, *(reason.clause for reason in reported.also)]


async def details(remote: Desk, job_id: str) -> dict[str, Any]:
    return dict((await why(remote, job_id)).reason.details)


async def seen(remote: Desk, **fields: Any) -> ClaimFilter:
    """A worker is noted as asking; the ask is the answer."""
    asked = ask(**fields)
    await remote.store.note_workers(remote.tenant, [WorkerSeen(asked.worker, (asked,))])
    return asked
