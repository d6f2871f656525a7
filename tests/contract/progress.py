"""Makers of steps and events, and a worker's way to leave them with a store."""

from __future__ import annotations

from typing import Any

from interlock.domain.job import Job, Rejected
from interlock.domain.progress import Event, Level, Report, Step, StepRow
from tests.contract.builders import TenantQueue, new_id


def step(job: Job, name: str = "search", occurrence: int = 1, result: str = '"found"', **fields: Any) -> Step:
    lease: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": job.worker}
    return Step(**lease | {"name": name, "occurrence": occurrence, "result": result} | fields)


async def keep(queue: TenantQueue, step: Step) -> StepRow:
    (answer,) = await queue.store.save_steps(queue.tenant, [step])
    assert isinstance(answer, StepRow), answer
    return answer


def event(message: str = "drafting", **fields: Any) -> Event:
    return Event(**{"id": new_id(), "level": Level.INFO, "message": message} | fields)


def report(job: Job, *events: Event, **fields: Any) -> Report:
    lease: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": job.worker}
    return Report(**lease | {"events": events} | fields)


async def append_events(queue: TenantQueue, report: Report) -> tuple[int, ...]:
    (answer,) = await queue.store.add_events(queue.tenant, [report])
    assert not isinstance(answer, Rejected), answer
    return answer


async def steps_of(queue: TenantQueue, job_id: str) -> list[StepRow]:
    """Everything that is kept of a job's steps."""
    (found,) = await queue.store.steps(queue.tenant, [job_id], limit=1000)
    return found
