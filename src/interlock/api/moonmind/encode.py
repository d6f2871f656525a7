"""Jobs, artifacts, events and tokens as MoonMind shows them."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from interlock import wire
from interlock.api.native.shown import raw, when
from interlock.domain import principal
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.token import Token

STATUSES: Final = {
    "queued": (Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL),
    "running": (Status.RUNNING,),
    "succeeded": (Status.SUCCEEDED,),
    "failed": (Status.FAILED,),
    "cancelled": (Status.CANCELLED,),
    "dead_letter": (Status.DEAD_LETTER,),
}
_STATUS: Final = {ours: theirs for theirs, several in STATUSES.items() for ours in several}


def job(found: Job) -> dict[str, Any]:
    """A job with all its fields, those that are null too; a cancel request is told of where there is one."""
    shown = {
        "id": found.id,
        "type": found.type,
        "status": _STATUS[found.status],
        "priority": found.priority,
        "payload": raw(found.payload),
        "createdByUserId": _user_id(found.created_by.removeprefix(principal.user(""))),
        "requestedByUserId": _user_id(found.requested_by),
        "affinityKey": found.affinity_key,
        "claimedBy": found.worker,
        "leaseExpiresAt": when(found.lease_expires_at),
        "nextAttemptAt": when(found.run_at) if found.status is Status.RETRY else None,
        "attempt": found.attempt,
        "maxAttempts": found.max_attempts,
        "resultSummary": found.result_summary,
        "errorMessage": None if found.error is None else json.loads(found.error)["message"],
        "artifactsPath": None,
        "startedAt": when(found.started_at),
        "finishedAt": when(found.finished_at),
        "createdAt": wire.when(found.created_at),
        "updatedAt": wire.when(found.updated_at),
    }
    if found.cancel_requested_at is not None:
        shown |= {"cancelRequestedAt": when(found.cancel_requested_at), "cancelReason": found.cancel_reason}
    return shown


def _user_id(name: str | None) -> str | None:
    """Users are UUIDs there; who is known by another name has none."""
    try:
        return None if name is None else str(UUID(name))
    except ValueError:
        return None


def artifact(found: Artifact) -> dict[str, Any]:
    return {
        "id": found.id,
        "jobId": found.job_id,
        "name": found.name,
        "contentType": found.content_type,
        "sizeBytes": found.size,
        "digest": None if found.sha256 is None else f"sha256:{found.sha256.hex()}",
        "storagePath": f"{found.job_id}/{found.name}",
        "createdAt": wire.when(found.created_at),
    }


def token(found: Token) -> dict[str, Any]:
    return {
        "id": found.id,
        "workerId": found.worker_id,
        "description": found.description,
        "allowedRepositories": found.repositories,
        "allowedJobTypes": found.types,
        "capabilities": found.capabilities,
        "isActive": found.revoked_at is None,
        "createdAt": wire.when(found.created_at),
    }
