"""Words for tests of why a job does not run."""

from __future__ import annotations

from typing import Any

from interlock.domain.explain import Why, explain
from interlock.domain.policy import ClaimAsk
from interlock.domain.worker_presence import Sighting
from tests.contract.builders import (
    Desk,
    ask,
)


async def why(desk: Desk, job_id: str) -> Why:
    found = await desk.store.circumstances(desk.tenant, job_id)
    assert found is not None
    assert found.now == desk.clock.now
    return explain(found)


async def clauses(desk: Desk, job_id: str) -> list[str]:
    """Every clause that holds, the one that decides first."""
    told = await why(desk, job_id)
    return [told.clause, *(reason.clause for reason in told.also)]


async def details(desk: Desk, job_id: str) -> dict[str, Any]:
    return dict((await why(desk, job_id)).reason.details)


async def seen(desk: Desk, **fields: Any) -> ClaimAsk:
    """A worker is noted as asking; the ask is the answer."""
    asked = ask(**fields)
    await desk.store.note_workers(desk.tenant, [Sighting(asked.worker, (asked,))])
    return asked
