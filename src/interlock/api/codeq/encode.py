"""Jobs as codeQ shows them: tasks and result records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from interlock import wire
from interlock.api.native.shown import raw
from interlock.api.routes import Call
from interlock.domain import codeq
from interlock.domain.dialect import spoken
from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL, Location, Status

_LOCATION: Final = {
    Location.READY: "PENDING_LIST",
    Location.BLOCKED: "PENDING_LIST",
    Location.DELAYED: "DELAYED_ZSET",
    Location.IN_PROGRESS: "INPROG_SET",
    Location.DEAD_LETTER: "DLQ_SET",
    Location.NONE: "NONE",
}


async def tasks(call: Call[Any, Any], jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Tasks as of now."""
    now = await call.engine.reads.now()
    return [task(job, now=now) for job in jobs]


def task(job: Job, *, now: int) -> dict[str, Any]:
    """A task; what is empty is left out."""
    ended = job.status in TERMINAL
    shown: dict[str, Any] = {
        "id": job.id,
        "command": job.type,
        "payload": job.payload,  # JSON as a string: so it was, and so clients read it
        "priority": job.priority,
        "webhook": None if job.webhook is None else spoken(job.webhook)[1],
        "status": codeq.status_of(job.status),
        "lastKnownLocation": _LOCATION[job.location(now)],
        "workerId": job.worker,
        "leaseUntil": None if job.lease_expires_at is None else wire.when(job.lease_expires_at),
        "attempts": job.attempt if ended or job.status is Status.RUNNING else job.attempt - 1,
        "maxAttempts": job.max_attempts,
        "error": codeq.error_of(job),
        "resultKey": job.id if ended else None,
        "tenantId": job.tenant,
        "createdAt": wire.when(job.created_at),
        "updatedAt": wire.when(job.updated_at),
    }
    return {name: value for name, value in shown.items() if value is not None}


async def result(call: Call[Any, Any], job: Job) -> dict[str, Any]:
    """How a task ended, with what it left behind; what is empty is left out."""
    end = codeq.record(job, await call.engine.artifacts.list(call.who.tenant, job.id, limit=codeq.MOST_ARTIFACTS))
    shown: dict[str, Any] = {
        "taskId": job.id,
        "status": end.status,
        "result": raw(end.result),
        "error": end.error,
        "artifacts": end.artifacts or None,
        "completedAt": None if job.finished_at is None else wire.when(job.finished_at),
    }
    return {name: value for name, value in shown.items() if value is not None}
