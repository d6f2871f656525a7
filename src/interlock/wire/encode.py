"""Serialization of domain values, shared by the API, the command line and the dashboard. JSON text is not parsed."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from msgspec import Raw

from interlock.domain import timestamps
from interlock.domain.approval import Approval, Vote
from interlock.domain.artifact import Artifact
from interlock.domain.effect import Effect
from interlock.domain.job import HeartbeatReply, Receipt
from interlock.domain.message import Message
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.registry import Agent, Defaults, JobType, QueueStats
from interlock.domain.stream import Chunk
from interlock.domain.token import Token
from interlock.domain.webhook import Delivery, Subscription
from interlock.domain.worker_presence import Presence, filter_to_dict


def raw(text: str | None) -> Raw | None:
    """Return stored JSON text as a member of a response."""
    return None if text is None else Raw(text.encode())


def when(micros: int | None) -> str | None:
    """Format a time as RFC 3339 in UTC."""
    return None if micros is None else timestamps.when(micros)


def receipt_to_dict(receipt: Receipt) -> dict[str, Any]:
    id, fence, status, attempt, version, run_at, finished_at = receipt
    return {
        "id": id, "fence": fence, "status": status, "attempt": attempt, "version": version,
        "run_at": when(run_at), "finished_at": when(finished_at),
    }  # fmt: skip


def heartbeat_reply_to_dict(reply: HeartbeatReply) -> dict[str, Any]:
    return reply._asdict() | {"lease_expires_at": when(reply.lease_expires_at)}


def step_to_dict(row: StepRow) -> dict[str, Any]:
    encoded = row._asdict() | {"result": raw(row.result), "at": when(row.at)}
    del encoded["job_id"]
    return encoded


def chunk_to_dict(chunk: Chunk) -> dict[str, Any]:
    """Serialize a chunk: text as text, other bytes as base64."""
    named = {"offset": chunk.offset, "attempt": chunk.attempt, "fence": chunk.fence}
    data = {"text": chunk.data.decode()} if chunk.is_text else {"base64": b64encode(chunk.data).decode()}
    return named | data | {"at": when(chunk.at)}


def effect_to_dict(effect: Effect) -> dict[str, Any]:
    return effect._asdict() | {
        "result": raw(effect.result), "started_at": when(effect.started_at), "ended_at": when(effect.ended_at)
    }  # fmt: skip


def message_to_dict(message: Message) -> dict[str, Any]:
    return {
        "id": message.id, "seq": message.seq, "name": message.name, "topic": message.topic,
        "payload": raw(message.payload), "from": message.sender, "at": when(message.at),
    }  # fmt: skip


def event_to_dict(row: EventRow) -> dict[str, Any]:
    return row._asdict() | {"payload": raw(row.payload), "at": when(row.at), "received_at": when(row.received_at)}


def agent_to_dict(agent: Agent) -> dict[str, Any]:
    defaults = defaults_to_dict(agent.defaults)
    backoff = defaults.pop("backoff", None)
    return {
        "kind": agent.kind,
        "id": agent.id,
        "max_concurrency": agent.max_concurrency,
        "strict": agent.strict,
        "backoff": backoff,
        "defaults": defaults,
        "implicit": agent.implicit,
        "created_at": when(agent.created_at),
        "updated_at": when(agent.updated_at),
    }


def worker_to_dict(seen: Presence) -> dict[str, Any]:
    return {
        "name": seen.name,
        "asks": [filter_to_dict(ask) for ask in seen.asks],
        "first_seen_at": when(seen.first_seen_at),
        "last_seen_at": when(seen.last_seen_at),
        "running": seen.running,
        "jobs": list(seen.job_ids),
    }


def type_to_dict(type: JobType) -> dict[str, Any]:
    return {
        "name": type.name,
        "schema": raw(type.schema),
        "requires": list(type.requires),
        "defaults": defaults_to_dict(type.defaults),
        "created_at": when(type.created_at),
        "updated_at": when(type.updated_at),
    }


def defaults_to_dict(defaults: Defaults) -> dict[str, Any]:
    """Serialize the fields that are set."""
    given: dict[str, Any] = {name: value for name, value in defaults._asdict().items() if value is not None}
    if defaults.backoff is not None:
        given["backoff"] = raw(defaults.backoff)
    return given


def artifact_to_dict(artifact: Artifact) -> dict[str, Any]:
    """Serialize an artifact without its object key; the URL of a file is its download path."""
    return {
        "id": artifact.id,
        "job_id": artifact.job_id,
        "name": artifact.name,
        "size": artifact.size,
        "sha256": None if artifact.sha256 is None else artifact.sha256.hex(),
        "content_type": artifact.content_type,
        "url": artifact.url or f"/v1/jobs/{artifact.job_id}/artifacts/{artifact.id}",
        "created_at": when(artifact.created_at),
    }


def stats_to_dict(stats: QueueStats, *, now: int) -> dict[str, Any]:
    """Serialize queue statistics, with ages in seconds."""
    encoded = stats._asdict()
    oldest = encoded.pop("oldest_ready_at")
    return encoded | {
        "oldest_ready_seconds": None if oldest is None else max(now - oldest, 0) / 1_000_000,
        "paused": stats.paused_at is not None,
        "paused_at": when(stats.paused_at),
    }


def token_to_dict(token: Token) -> dict[str, Any]:
    """Serialize a token, without its secret."""
    encoded = token._asdict()
    for field in ("created_at", "expires_at", "last_used_at", "revoked_at"):
        if encoded[field] is not None:
            encoded[field] = when(encoded[field])
    return encoded


def approval_to_dict(found: Approval) -> dict[str, Any]:
    """Serialize an approval for approvers."""
    return {
        "id": found.id,
        "job_id": found.job_id,
        "status": found.status,
        "prompt": found.prompt,
        "details": raw(found.details),
        "risk": found.risk,
        "digest": found.digest,
        "schema": raw(found.schema),
        "required": found.required,
        "on_deny": found.on_deny,
        "kind": found.kind,
        "name": found.name,
        "occurrence": found.occurrence,
        "votes": [_vote(vote) for vote in found.votes],
        "comment": found.comment,
        "data": raw(found.data),
        "opened_by": found.opened_by,
        "opened_at": when(found.opened_at),
        "expires_at": when(found.expires_at),
        "closed_by": found.closed_by,
        "closed_at": when(found.closed_at),
        "link_minted_by": found.link_created_by,
        "link_minted_at": when(found.link_created_at),
    }


def decision_to_dict(found: Approval) -> dict[str, Any]:
    """Serialize a decision for the worker that resumes the job, without the identity of the approvers."""
    return {
        "id": found.id,
        "kind": found.kind,
        "name": found.name,
        "occurrence": found.occurrence,
        "decision": found.decision,
        "status": found.status,
        "prompt": found.prompt,
        "details": raw(found.details),
        "schema": raw(found.schema),
        "comment": found.comment,
        "data": raw(found.data),
        "digest": found.digest,
        "decided_at": when(found.closed_at),
    }


def _vote(vote: Vote) -> dict[str, Any]:
    return {"by": vote.voter, "decision": vote.decision, "comment": vote.comment, "at": when(vote.at)}


def subscription_to_dict(subscription: Subscription, *, now: int) -> dict[str, Any]:
    """Serialize a subscription, without its secret."""
    times = {name: when(getattr(subscription, name)) for name in ("expires_at", "ended_at", "created_at")}
    return subscription._asdict() | times | {"active": subscription.is_active(now)}


def delivery_to_dict(delivery: Delivery) -> dict[str, Any]:
    names = ("created_at", "next_try_at", "last_tried_at", "settled_at")
    return delivery._asdict() | {name: when(getattr(delivery, name)) for name in names}
