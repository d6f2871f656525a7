"""Makers of steps and events, and a worker's way to leave them with a store."""

from __future__ import annotations

from typing import Any

from interlock.domain.job import Job, Refused
from interlock.domain.progress import Event, Level, Report, Step, StepRow
from tests.contract.builders import Desk, new_id


def step(job: Job, name: str = "search", occurrence: int = 1, result: str = '"found"', **fields: Any) -> Step:
    grant: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": job.worker}
    return Step(**grant | {"name": name, "occurrence": occurrence, "result": result} | fields)


async def keep(desk: Desk, step: Step) -> StepRow:
    (answer,) = await desk.store.save_steps(desk.tenant, [step])
    assert isinstance(answer, StepRow), answer
    return answer


def event(message: str = "drafting", **fields: Any) -> Event:
    return Event(**{"id": new_id(), "level": Level.INFO, "message": message} | fields)


def report(job: Job, *events: Event, **fields: Any) -> Report:
    grant: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": job.worker}
    return Report(**grant | {"events": events} | fields)


async def tell(desk: Desk, report: Report) -> tuple[int, ...]:
    (answer,) = await desk.store.add_events(desk.tenant, [report])
    assert not isinstance(answer, Refused), answer
    return answer


async def steps_of(desk: Desk, job_id: str) -> list[StepRow]:
    """Everything that is kept of a job's steps."""
    (found,) = await desk.store.steps(desk.tenant, [job_id], limit=1000)
    return found
