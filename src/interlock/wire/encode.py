"""Serialization of domain values, shared by the API and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, UnsetType

from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.registry import Agent, Defaults, JobType, QueueStats
from interlock.domain.token import Token
from interlock.domain.webhook_format import format_of
from interlock.domain.worker_presence import Presence, filter_to_dict
from interlock.wire import when

NOT_LISTED: Final = frozenset({"payload", "checkpoint", "result", "error", "awaiting"})


class JobBody(msgspec.Struct, gc=False):
    """A job as returned by the API."""

    id: str
    seq: int
    tenant: str
    type: str
    status: str
    location: str
    priority: int
    payload: Raw | UnsetType | None
    headers: Raw | None
    traceparent: str | None
    tags: Sequence[str]
    agent: dict[str, Any] | None
    affinity_key: str | None
    repository: str | None
    requires: Sequence[str]
    idempotency_key: str | None
    webhook: str | None
    parent_id: str | None
    redrive_of: str | None
    created_by: str
    requested_by: str | None
    run_at: str
    deadline: str | None
    timeout_seconds: float | None
    backoff: Raw | None
    expiry_delay_seconds: float | None
    attempt: int
    max_attempts: int
    retry_count: int
    lease: dict[str, Any] | None
    approval_id: str | None
    awaiting: Sequence[str] | UnsetType
    cancel_requested_at: str | None
    cancel_reason: str | None
    checkpoint: Raw | UnsetType | None
    checkpoint_seq: int | None
    usage: Raw | None
    result: Raw | UnsetType | None
    result_summary: str | None
    error: Raw | UnsetType | None
    sanitized: bool
    version: int
    releases: int
    created_at: str
    updated_at: str
    started_at: str | None
    run_started_at: str | None
    heartbeat_at: str | None
    finished_at: str | None


class EnqueuedJobBody(JobBody, gc=False):
    """A job of a batch, and whether it already existed."""

    replayed: bool


class LeasedJobBody(JobBody, gc=False):
    """A claimed job with the steps and approvals of its earlier runs."""

    steps: Sequence[Mapping[str, Any]]
    approval: Mapping[str, Any] | None
    approvals: Sequence[Mapping[str, Any]]


def job_fields(job: Job, *, now: int) -> tuple[Any, ...]:
    """Return the fields of a job in the order of `JobBody`; JSON text is not parsed."""
    # A response may contain hundreds of jobs. Attribute access or a function call per field would take longer than
    # the rest of the serialization.
    (
        tenant, id, seq, type, status, priority, payload, headers, traceparent, tags, agent_kind, agent_id,
        affinity_key, repository, requires, idempotency_key, webhook, parent_id, redrive_of, created_by, requested_by,
        run_at, deadline, timeout_seconds, backoff, expiry_delay_seconds, attempt, max_attempts, worker, fence,
        lease_expires_at, heartbeat_at, approval_id, awaiting, cancel_requested_at, cancel_reason, checkpoint,
        checkpoint_seq, usage, result, result_summary, error, sanitized, version, releases, created_at, updated_at,
        started_at, run_started_at, finished_at, _,
    ) = job  # fmt: skip
    agent = None if agent_kind is None else {"kind": agent_kind, "id": agent_id}
    lease = None
    if status is Status.RUNNING and lease_expires_at is not None:
        lease = {"worker": worker, "fence": fence, "expires_at": when(lease_expires_at)}
    return (
        id, seq, tenant, type, status, job.location(now), priority,
        None if payload is None else Raw(payload.encode()),
        None if headers is None else Raw(headers.encode()),
        traceparent, tags, agent, affinity_key, repository, requires, idempotency_key,
        None if webhook is None else format_of(webhook)[1],
        parent_id, redrive_of, created_by, requested_by, when(run_at),
        None if deadline is None else when(deadline),
        timeout_seconds,
        None if backoff is None else Raw(backoff.encode()),
        expiry_delay_seconds, attempt, max_attempts, attempt - 1, lease, approval_id, awaiting,
        None if cancel_requested_at is None else when(cancel_requested_at),
        cancel_reason,
        None if checkpoint is None else Raw(checkpoint.encode()),
        checkpoint_seq,
        None if usage is None else Raw(usage.encode()),
        None if result is None else Raw(result.encode()),
        result_summary,
        None if error is None else Raw(error.encode()),
        sanitized, version, releases, when(created_at), when(updated_at),
        None if started_at is None else when(started_at),
        None if run_started_at is None else when(run_started_at),
        None if heartbeat_at is None else when(heartbeat_at),
        None if finished_at is None else when(finished_at),
    )  # fmt: skip


def job_to_dict(job: Job, *, now: int) -> dict[str, Any]:
    """Serialize a job as a dictionary that the caller can extend."""
    return dict(zip(JobBody.__struct_fields__, job_fields(job, now=now), strict=True))


def listed_job_to_dict(job: Job, *, now: int) -> dict[str, Any]:
    """Serialize a job of a list. Omit the fields that lists do not load: null would mean that they have no value."""
    return {name: value for name, value in job_to_dict(job, now=now).items() if name not in NOT_LISTED}


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
        "first_seen_at": None if seen.first_seen_at is None else when(seen.first_seen_at),
        "last_seen_at": None if seen.last_seen_at is None else when(seen.last_seen_at),
        "running": seen.running,
        "jobs": list(seen.job_ids),
    }


def type_to_dict(type: JobType) -> dict[str, Any]:
    return {
        "name": type.name,
        "schema": None if type.schema is None else Raw(type.schema.encode()),
        "requires": list(type.requires),
        "defaults": defaults_to_dict(type.defaults),
        "created_at": when(type.created_at),
        "updated_at": when(type.updated_at),
    }


def defaults_to_dict(defaults: Defaults) -> dict[str, Any]:
    """Serialize the fields that are set."""
    given: dict[str, Any] = {name: value for name, value in defaults._asdict().items() if value is not None}
    if defaults.backoff is not None:
        given["backoff"] = Raw(defaults.backoff.encode())
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
        "paused_at": None if stats.paused_at is None else when(stats.paused_at),
    }


def token_to_dict(token: Token) -> dict[str, Any]:
    """Serialize a token, which never includes its text."""
    encoded = token._asdict()
    for field in ("created_at", "expires_at", "last_used_at", "revoked_at"):
        if encoded[field] is not None:
            encoded[field] = when(encoded[field])
    return encoded
