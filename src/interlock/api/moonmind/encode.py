"""Jobs, artifacts and tokens encoded as in MoonMind's API."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from interlock import wire
from interlock.api.moonmind import ids
from interlock.domain import json_text, principal
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.token import Token
from interlock.wire.encode import raw, when

STATUSES: Final = {
    "queued": (Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL),
    "running": (Status.RUNNING,),
    "succeeded": (Status.SUCCEEDED,),
    "failed": (Status.FAILED,),
    "cancelled": (Status.CANCELLED,),
    "dead_letter": (Status.DEAD_LETTER,),
}
STATUS: Final = {ours: theirs for theirs, several in STATUSES.items() for ours in several}


def job(found: Job) -> dict[str, Any]:
    """A job with all its fields, also those that are null; a cancel request is added if there is one."""
    created_by = user_id(found.created_by)
    fields = {
        "id": ids.encode(found.id),
        "type": found.type,
        "status": STATUS[found.status],
        "priority": found.priority,
        "payload": raw(found.payload),
        "createdByUserId": created_by,
        "requestedByUserId": created_by if found.requested_by is None else user_id(found.requested_by),
        "affinityKey": found.affinity_key,
        "claimedBy": found.worker,
        "leaseExpiresAt": when(found.lease_expires_at),
        "nextAttemptAt": when(found.run_at) if found.status is Status.RETRY else None,
        "attempt": found.attempt,
        "maxAttempts": found.max_attempts,
        "resultSummary": found.result_summary,
        "errorMessage": None if found.error is None else json_text.loads(found.error)["message"],
        "artifactsPath": None,
        "startedAt": when(found.started_at),
        "finishedAt": when(found.finished_at),
        "createdAt": wire.when(found.created_at),
        "updatedAt": wire.when(found.updated_at),
    }
    if found.cancel_requested_at is not None:
        fields |= {"cancelRequestedAt": when(found.cancel_requested_at), "cancelReason": found.cancel_reason}
    return fields


def user_id(actor: str) -> str | None:
    """The UUID of a user: the subject of a JWT, also if its issuer has a name; None for other names."""
    try:
        return str(UUID(actor.removeprefix(principal.user("")).rpartition("/")[2]))
    except ValueError:
        return None


def artifact(found: Artifact) -> dict[str, Any]:
    job_id = ids.encode(found.job_id)
    return {
        "id": ids.encode(found.id),
        "jobId": job_id,
        "name": found.name,
        "contentType": found.content_type,
        "sizeBytes": found.size,
        "digest": None if found.sha256 is None else f"sha256:{found.sha256.hex()}",
        "storagePath": f"{job_id}/{found.name}",
        "createdAt": wire.when(found.created_at),
    }


def token(found: Token) -> dict[str, Any]:
    return {
        "id": ids.encode(found.id),
        "workerId": found.worker_id,
        "description": found.description,
        "allowedRepositories": found.repositories,
        "allowedJobTypes": found.types,
        "capabilities": found.capabilities,
        "isActive": found.revoked_at is None,
        "createdAt": wire.when(found.created_at),
    }
