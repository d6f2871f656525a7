"""Interlock: a durable job queue and control plane for AI agents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.assemble import App as App
    from interlock.assemble import Queue as Queue
    from interlock.domain.shards import ShardSupplier as ShardSupplier
    from interlock.errors import Error as Error
    from interlock.sdk.context import Child as Child
    from interlock.sdk.context import Context as Context
    from interlock.sdk.exceptions import Fail as Fail
    from interlock.sdk.exceptions import JobCancelled as JobCancelled
    from interlock.sdk.exceptions import JobFailed as JobFailed
    from interlock.sdk.exceptions import Release as Release
    from interlock.sdk.exceptions import Retry as Retry
    from interlock.sdk.exceptions import StepMismatch as StepMismatch
    from interlock.sdk.exceptions import Suspended as Suspended
    from interlock.sdk.handle import JobHandle as JobHandle
    from interlock.sdk.replay import ApprovalResult as ApprovalResult
    from interlock.sdk.tasks import Task as Task
    from interlock.worker.loop import Worker as Worker

__version__ = "0.1.0"

# Where the public names live; each is loaded when it is first used.
_HOMES = {
    "ApprovalResult": "sdk.replay",
    "App": "assemble",
    "Child": "sdk.context",
    "Context": "sdk.context",
    "Error": "errors",
    "Fail": "sdk.exceptions",
    "JobCancelled": "sdk.exceptions",
    "JobFailed": "sdk.exceptions",
    "JobHandle": "sdk.handle",
    "Queue": "assemble",
    "Release": "sdk.exceptions",
    "Retry": "sdk.exceptions",
    "ShardSupplier": "domain.shards",
    "StepMismatch": "sdk.exceptions",
    "Suspended": "sdk.exceptions",
    "Task": "sdk.tasks",
    "Worker": "worker.loop",
}

__all__ = [*_HOMES]


if not TYPE_CHECKING:  # else every name would pass as one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
