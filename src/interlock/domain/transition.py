"""The job state that `decide` reads, and the transition that it returns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock.domain.lifecycle import Status, Verb
from interlock.domain.timestamps import when


class JobState(NamedTuple):
    """The locked columns of a job that decisions read."""

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
    approval_id: str | None = None
    approval_expires_at: int | None = None
    acknowledged_at: int | None = None
    priority: int = 0  # this and the tags are read only for an edit
    tags: tuple[str, ...] = ()

    @classmethod
    def from_row(cls, values: Sequence[Any]) -> JobState:
        """Build a job state from the columns of `READ_FOR_DECISIONS`, in order."""
        if len(values) != len(READ_FOR_DECISIONS):
            raise TypeError(f"a job state has {len(READ_FOR_DECISIONS)} columns, not {len(values)}")
        id, status, *others = values
        return cls(id, Status(status), *others)


# The columns that every decision reads; an edit also reads the others.
READ_FOR_DECISIONS: Final = JobState._fields[: JobState._fields.index("priority")]


class EditedFields(NamedTuple):
    """The new values of all editable fields of a job."""

    priority: int
    run_at: int
    deadline: int | None
    max_attempts: int
    tags: tuple[str, ...]


class Transition(NamedTuple):
    """A decided transition; None leaves a field unchanged."""

    id: str
    version: int  # the version of the job that the decision read
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
    approval_id: str | None = None  # the approval to wait for; every other transition clears it
    edited: EditedFields | None = None


class NoChange(NamedTuple):
    """No transition: the job already is in the requested state, or it is not overdue."""


def error_text(message: str, kind: str) -> str:
    """Return an error of Interlock itself, as stored."""
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
    """Return a transition whose metadata is the error, as reported, then the facts; times are encoded as RFC 3339."""
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
