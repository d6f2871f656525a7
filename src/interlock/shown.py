"""Values of the domain as programs see them: the same shapes in the API and on the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.domain.registry import Agent, Defaults, JobType, QueueStats
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


def stats_to_dict(stats: QueueStats, *, now: int) -> dict[str, Any]:
    """The counts flat; ages in seconds."""
    shown = stats._asdict()
    oldest = shown.pop("oldest_ready_at")
    return shown | {
        "oldest_ready_seconds": None if oldest is None else max(now - oldest, 0) / 1_000_000,
        "paused": stats.paused_at is not None,
        "paused_at": None if stats.paused_at is None else when(stats.paused_at),
    }
