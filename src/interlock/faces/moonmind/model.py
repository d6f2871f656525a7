"""How jobs, artifacts, tokens, ids, request bodies and errors look in MoonMind's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Self
from uuid import UUID

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api import body
from interlock.api.adapters import AdapterError, Lenient
from interlock.domain import json_text, principal
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.token import Token
from interlock.wire.encode import raw, when

BASE: Final = "/api/queue"
TOOLS: Final = "/mcp/tools"
# Ids. MoonMind's workers name branches by the first eight characters of a job id. Ours begin with the time, so that
# jobs of one minute share them. Here the random last digits come first: TTTTTTTT-TTTT-7AAA-VVVV-CCCCRRRRRRRR is written
# as RRRRRRRR-CCCC-4AAA-VVVV-TTTTTTTTTTTT. The version digit marks the form, so that ids of both forms are accepted.
_OURS: Final = re.compile(
    r"\b([0-9a-f]{8})-([0-9a-f]{4})-7([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{4})([0-9a-f]{8})\b"
)
_THEIRS: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-4([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{8})([0-9a-f]{4})"
)


def encode_id(text: str) -> str:
    """Write every id in a text in the form of MoonMind clients."""
    return _OURS.sub(r"\6-\5-4\3-\4-\1\2", text)


def decode_id(text: str) -> str:
    """Return our form of an id that a client sent; other text is returned as it is."""
    try:
        plain = str(UUID(text.removeprefix("mm:")))
    except ValueError:
        return text
    return _THEIRS.sub(r"\5-\6-7\3-\4-\2\1", plain)


Text = Annotated[str, Meta(min_length=1)]


class MoonmindRequest(Lenient, frozen=True, kw_only=True):
    """The base of the bodies: a field is accepted as `workerId` and as `worker_id`; of both the first counts."""

    @classmethod
    def read(cls, raw: bytes, *, limit: int, sanitizes: bool) -> tuple[Self, bool]:
        checked, replaced = body.decode(raw, msgspec.Raw, limit=limit, sanitizes=sanitizes)
        try:
            return cls.of(checked), replaced
        except msgspec.ValidationError as error:
            raise body.invalid(error) from None

    @classmethod
    def of(cls, raw: msgspec.Raw) -> Self:
        """Decode JSON that was checked before; numbers and flags may be strings, as its server allows."""
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        spelled = {one.name: one.encode_name for one in msgspec.structs.fields(cls) if one.name != one.encode_name}
        if not members.keys().isdisjoint(spelled):
            by_alias = {spelled[name]: value for name, value in members.items() if name in spelled}
            raw = msgspec.Raw(msgspec.json.encode(by_alias | members))
        return msgspec.json.decode(raw, type=cls, strict=False)


def stripped(values: Sequence[str] | None) -> list[str]:
    """Distinct names without the space around them, in order of their spelling; empty ones are dropped."""
    return sorted({value.strip() for value in values or ()} - {""})


def trimmed(value: str | None) -> str | None:
    """Strip white space; return None if the text is empty."""
    return (value or "").strip() or None


STATUSES: Final = {
    "queued": (Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL),
    "running": (Status.RUNNING,),
    "succeeded": (Status.SUCCEEDED,),
    "failed": (Status.FAILED,),
    "cancelled": (Status.CANCELLED,),
    "dead_letter": (Status.DEAD_LETTER,),
}
STATUS: Final = {ours: theirs for theirs, several in STATUSES.items() for ours in several}


def encode_job(found: Job) -> dict[str, Any]:
    """Encode a job with all its fields, including null ones, and its cancel request, if any."""
    created_by = user_id(found.created_by)
    fields = {
        "id": encode_id(found.id),
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


def encode_artifact(found: Artifact) -> dict[str, Any]:
    job_id = encode_id(found.job_id)
    return {
        "id": encode_id(found.id),
        "jobId": job_id,
        "name": found.name,
        "contentType": found.content_type,
        "sizeBytes": found.size,
        "digest": None if found.sha256 is None else f"sha256:{found.sha256.hex()}",
        "storagePath": f"{job_id}/{found.name}",
        "createdAt": wire.when(found.created_at),
    }


def encode_token(found: Token) -> dict[str, Any]:
    return {
        "id": encode_id(found.id),
        "workerId": found.worker_id,
        "description": found.description,
        "allowedRepositories": found.repositories,
        "allowedJobTypes": found.types,
        "capabilities": found.capabilities,
        "isActive": found.revoked_at is None,
        "createdAt": wire.when(found.created_at),
    }


def reject(status: int, code: str, message: str) -> AdapterError:
    return AdapterError(status, error_document(code, message))


def error_document(code: str, message: str) -> dict[str, Any]:
    return {"detail": {"code": code, "message": encode_id(message)}}
