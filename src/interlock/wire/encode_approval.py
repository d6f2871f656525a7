"""Serialization of approvals. JSON text is not parsed, and link tokens are never included."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock import wire
from interlock.domain.approval import Approval, Vote


def approval(found: Approval) -> dict[str, Any]:
    """Serialize an approval for approvers."""
    return {
        "id": found.id,
        "job_id": found.job_id,
        "status": found.status,
        "prompt": found.prompt,
        "details": _raw(found.details),
        "risk": found.risk,
        "digest": found.digest,
        "schema": _raw(found.schema),
        "required": found.required,
        "on_deny": found.on_deny,
        "name": found.name,
        "occurrence": found.occurrence,
        "votes": [_vote(vote) for vote in found.votes],
        "comment": found.comment,
        "data": _raw(found.data),
        "opened_by": found.opened_by,
        "opened_at": wire.when(found.opened_at),
        "expires_at": wire.when(found.expires_at),
        "closed_by": found.closed_by,
        "closed_at": _when(found.closed_at),
        "link_minted_by": found.link_created_by,
        "link_minted_at": _when(found.link_created_at),
    }


def decision(found: Approval) -> dict[str, Any]:
    """Serialize a decision for the worker that resumes the job, without the identity of the approvers."""
    return {
        "id": found.id,
        "name": found.name,
        "occurrence": found.occurrence,
        "decision": found.decision,
        "status": found.status,
        "prompt": found.prompt,
        "details": _raw(found.details),
        "schema": _raw(found.schema),
        "comment": found.comment,
        "data": _raw(found.data),
        "digest": found.digest,
        "decided_at": _when(found.closed_at),
    }


def _vote(vote: Vote) -> dict[str, Any]:
    return {"by": vote.voter, "decision": vote.decision, "comment": vote.comment, "at": wire.when(vote.at)}


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


def _when(micros: int | None) -> str | None:
    return None if micros is None else wire.when(micros)
