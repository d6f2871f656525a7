"""What a decision looks at, and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from interlock.domain.lifecycle import Status, Verb
from interlock.domain.timestamps import when


class JobState(NamedTuple):
    """The part of a job that decisions look at."""

    id: str
    status: Status
    attempt: int
    max_attempts: int
    version: int
    fence: int
    worker: str | None
    run_at: int
    deadline: int | None
    lease_expires_at: int | None
    run_started_at: int | None
    timeout_seconds: float | None
    backoff: str | None
    expiry_delay_seconds: float | None
    releases: int
    cancel_requested_at: int | None
    cancel_reason: str | None
    error: str | None
    priority: int = 0
    tags: tuple[str, ...] = ()
    approval_id: str | None = None
    approval_expires_at: int | None = None


class EditedFields(NamedTuple):
    """What can be edited of a job, as it is to be."""

    priority: int
    run_at: int
    deadline: int | None
    max_attempts: int
    tags: tuple[str, ...]


class Transition(NamedTuple):
    """A decided move; None leaves a field as it is."""

    id: str
    version: int  # the one it was decided on
    status: Status
    verb: Verb
    actor: str
    attempt: int
    releases: int
    reason: str | None = None
    metadata: str | None = None  # JSON
    run_at: int | None = None
    error: str | None = None  # JSON
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    children: tuple[str, ...] = ()
    result: str | None = None  # JSON
    result_summary: str | None = None
    usage: str | None = None  # JSON
    sanitized: bool = False
    approval_id: str | None = None  # the gate it is to wait for; any other change leaves the gate
    edited: EditedFields | None = None


class NoChange(NamedTuple):
    """Nothing to do: the job already is as the order wants it, or the clock was wrong."""


def error_text(message: str, kind: str) -> str:
    """An error of our own making, as stored."""
    return json.dumps({"message": message, "kind": kind}, separators=(",", ":"))


_TIMES: Final = frozenset({"run_at", "deadline"})


def transition(
    job: JobState,
    status: Status,
    verb: Verb,
    actor: str,
    reason: str | None = None,
    *,
    facts: Mapping[str, object] | None = None,
    error: str | None = None,
    run_at: int | None = None,
    cancel_requested_at: int | None = None,
    cancel_reason: str | None = None,
    sanitized: bool = False,
) -> Transition:
    """A change whose metadata is the facts, with the error in front as it was reported; times are told as text."""
    parts = [] if error is None else [f'"error":{error}']
    if facts:
        encoded = {
            name: when(fact) if name in _TIMES and isinstance(fact, int) else fact for name, fact in facts.items()
        }
        parts.append(json.dumps(encoded, separators=(",", ":"))[1:-1])
    return Transition(
        id=job.id,
        version=job.version,
        status=status,
        verb=verb,
        actor=actor,
        attempt=job.attempt,
        releases=job.releases,
        reason=reason,
        metadata="{" + ",".join(parts) + "}" if parts else None,
        run_at=run_at,
        error=error,
        cancel_requested_at=cancel_requested_at,
        cancel_reason=cancel_reason,
        sanitized=sanitized,
    )
