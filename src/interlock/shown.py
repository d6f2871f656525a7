"""Values of the domain as programs see them: the same shapes in the API and on the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.domain.artifact import Artifact
from interlock.domain.presence import Presence, ask_to_dict
from interlock.domain.registry import Agent, Defaults, JobType, QueueStats
from interlock.domain.token import Token
from interlock.wire import when


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
        "asks": [ask_to_dict(ask) for ask in seen.asks],
        "first_seen_at": None if seen.first_seen_at is None else when(seen.first_seen_at),
        "last_seen_at": None if seen.last_seen_at is None else when(seen.last_seen_at),
        "running": seen.running,
        "jobs": list(seen.job_ids),
    }


def type_to_dict(type: JobType) -> dict[str, Any]:
    return {
        "name": type.name,
        "schema": None if type.schema is None else msgspec.Raw(type.schema.encode()),
        "requires": list(type.requires),
        "defaults": defaults_to_dict(type.defaults),
        "created_at": when(type.created_at),
        "updated_at": when(type.updated_at),
    }


def defaults_to_dict(defaults: Defaults) -> dict[str, Any]:
    """Only what is said."""
    said: dict[str, Any] = {name: value for name, value in defaults._asdict().items() if value is not None}
    if defaults.backoff is not None:
        said["backoff"] = msgspec.Raw(defaults.backoff.encode())
    return said


def artifact_to_dict(artifact: Artifact) -> dict[str, Any]:
    """A file or link of a job, without the key of its bytes."""
    return {
        "id": artifact.id,
        "job_id": artifact.job_id,
        "name": artifact.name,
        "size": artifact.size,
        "sha256": None if artifact.sha256 is None else artifact.sha256.hex(),
        "content_type": artifact.content_type,
        "url": artifact.url,
        "created_at": when(artifact.created_at),
    }


def stats_to_dict(stats: QueueStats, *, now: int) -> dict[str, Any]:
    """The counts flat; ages in seconds."""
    shown = stats._asdict()
    oldest = shown.pop("oldest_ready_at")
    return shown | {
        "oldest_ready_seconds": None if oldest is None else max(now - oldest, 0) / 1_000_000,
        "paused": stats.paused_at is not None,
        "paused_at": None if stats.paused_at is None else when(stats.paused_at),
    }


def token_to_dict(token: Token) -> dict[str, Any]:
    """A token as the API shows it, without its text."""
    shown = token._asdict()
    for field in ("created_at", "expires_at", "last_used_at", "revoked_at"):
        if shown[field] is not None:
            shown[field] = when(shown[field])
    return shown
