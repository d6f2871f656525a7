"""Jobs encoded as codeQ tasks and result records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from interlock import wire
from interlock.api.codeq import model
from interlock.api.routes import RequestContext
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL, Location, Status
from interlock.domain.webhook_format import format_of
from interlock.engine.artifacts import MAX_PAGE_SIZE as MAX_PAGE
from interlock.wire.encode import raw

_LOCATION: Final = {
    Location.READY: "PENDING_LIST",
    Location.BLOCKED: "PENDING_LIST",
    Location.DELAYED: "DELAYED_ZSET",
    Location.IN_PROGRESS: "INPROG_SET",
    Location.DEAD_LETTER: "DLQ_SET",
    Location.NONE: "NONE",
}


async def tasks(call: RequestContext[Any, Any], jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Encode jobs as tasks."""
    now = await call.engine.queries.now()
    return [task(job, now=now) for job in jobs]


def task(job: Job, *, now: int) -> dict[str, Any]:
    """A task; empty optional fields are omitted."""
    ended = job.status in TERMINAL
    fields: dict[str, Any] = {
        "id": job.id,
        "command": job.type,
        "payload": job.payload,  # JSON as a string: so codeQ sends it
        "priority": job.priority,
        "webhook": None if job.webhook is None else format_of(job.webhook)[1],
        "status": model.status_of(job.status),
        "lastKnownLocation": _LOCATION[job.location(now)],
        "workerId": job.worker,
        "leaseUntil": None if job.lease_expires_at is None else wire.when(job.lease_expires_at),
        "attempts": job.attempt if ended or job.status is Status.RUNNING else job.attempt - 1,
        "maxAttempts": job.max_attempts,
        "error": model.error_of(job),
        "resultKey": job.id if ended else None,
        "tenantId": job.tenant,
        "createdAt": wire.when(job.created_at),
        "updatedAt": wire.when(job.updated_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


async def result(call: RequestContext[Any, Any], job: Job) -> dict[str, Any]:
    """The outcome of a task with its artifacts; empty optional fields are omitted."""
    end = model.record(job, await _artifacts(call, job.id))
    fields: dict[str, Any] = {
        "taskId": job.id,
        "status": end.status,
        "result": raw(end.result),
        "error": end.error,
        "artifacts": end.artifacts or None,
        "completedAt": None if job.finished_at is None else wire.when(job.finished_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


async def _artifacts(call: RequestContext[Any, Any], job_id: str) -> list[Artifact]:
    """All artifacts of a job, newest first."""
    found: list[Artifact] = []
    before: tuple[int, str] | None = None
    while True:
        page = await call.engine.artifacts.list(call.who.tenant, job_id, before=before, limit=MAX_PAGE)
        found += page
        if len(page) < MAX_PAGE:
            return found
        before = (page[-1].created_at, page[-1].id)
