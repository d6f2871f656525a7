"""Jobs as codeQ shows them: tasks and result records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from interlock import wire
from interlock.api.native.shown import raw
from interlock.api.routes import Call
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL, Location, Status

STATUSES: Final = {
    "PENDING": (Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL),
    "IN_PROGRESS": (Status.RUNNING,),
    "COMPLETED": (Status.SUCCEEDED,),
    "FAILED": (Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED),
}
_STATUS: Final = {ours: theirs for theirs, several in STATUSES.items() for ours in several}
_LOCATION: Final = {
    Location.READY: "PENDING_LIST",
    Location.BLOCKED: "PENDING_LIST",
    Location.DELAYED: "DELAYED_ZSET",
    Location.IN_PROGRESS: "INPROG_SET",
    Location.DEAD_LETTER: "DLQ_SET",
    Location.NONE: "NONE",
}
_MOST_ARTIFACTS: Final = 200


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
        "webhook": job.webhook,
        "status": _STATUS[job.status],
        "lastKnownLocation": _LOCATION[job.location(now)],
        "workerId": job.worker,
        "leaseUntil": None if job.lease_expires_at is None else wire.when(job.lease_expires_at),
        "attempts": job.attempt if ended or job.status is Status.RUNNING else job.attempt - 1,
        "maxAttempts": job.max_attempts,
        "error": error_of(job),
        "resultKey": job.id if ended else None,
        "tenantId": job.tenant,
        "createdAt": wire.when(job.created_at),
        "updatedAt": wire.when(job.updated_at),
    }
    return {name: value for name, value in shown.items() if value is not None}


def error_of(job: Job) -> str | None:
    if job.status is Status.CANCELLED:
        return "cancelled"
    return None if job.error is None else json.loads(job.error)["message"]


async def result(call: Call[Any, Any], job: Job) -> dict[str, Any]:
    """How a task ended, with what it left behind."""
    found = await call.engine.artifacts.list(call.who.tenant, job.id, limit=_MOST_ARTIFACTS)
    shown: dict[str, Any] = {
        "taskId": job.id,
        "status": _STATUS[job.status],
        "result": raw(job.result) if job.error is None else json.loads(job.error).get("details"),
        "error": error_of(job),
        "artifacts": [_artifact(one) for one in reversed(found)] or None,
        "completedAt": None if job.finished_at is None else wire.when(job.finished_at),
    }
    return {name: value for name, value in shown.items() if value is not None}


def _artifact(found: Artifact) -> dict[str, str]:
    return {"name": found.name, "url": found.url or f"/v1/jobs/{found.job_id}/artifacts/{found.id}"}
