"""Calls of workers and operators. Hypothesis draws them; their jobs are picked when they are made."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from interlock.domain.decide import (
    AcknowledgeCancel,
    AcknowledgeJob,
    CancelJob,
    CompleteJob,
    EnforceDeadline,
    ExpireLease,
    FailJob,
    ReleaseJob,
    RevokeLease,
)
from interlock.domain.job import Checkpoint, Heartbeat
from interlock.domain.progress import Event, Report, Step

T = TypeVar("T")
Draw = st.SearchStrategy[Any]


class LeaseRef(NamedTuple):
    """What a worker remembers of a lease."""

    id: str
    fence: int
    worker: str


class Pick(NamedTuple):
    """Which one: of what kind, and the how manieth of those there are."""

    kind: str
    number: int


class PlannedCall(NamedTuple):
    """Calls that still need a pick."""

    make: Callable[..., Any]
    pick: Pick
    rest: tuple[Any, ...]

    @property
    def of_a_lease(self) -> bool:
        return "lease_ref" in signature(self.make).parameters


def complete(lease_ref: LeaseRef, result: str | None, summary: str | None, usage: str | None, odd: bool) -> CompleteJob:
    return CompleteJob(
        lease_ref.id, lease_ref.fence, lease_ref.worker, result, summary, usage, odd and result is not None
    )


def fail(lease_ref: LeaseRef, error: str, retryable: bool, after: float | None, odd: bool) -> FailJob:
    return FailJob(lease_ref.id, lease_ref.fence, lease_ref.worker, error, retryable, after, odd)


def release(lease_ref: LeaseRef, reason: str | None, delay: float | None, at: int | None) -> ReleaseJob:
    return ReleaseJob(lease_ref.id, lease_ref.fence, lease_ref.worker, reason, at if delay is None else None, delay)


def cancel_ack(lease_ref: LeaseRef) -> AcknowledgeCancel:
    return AcknowledgeCancel(lease_ref.id, lease_ref.fence, lease_ref.worker)


def cancel(id: str, actor: str, reason: str | None, force: bool) -> CancelJob:
    return CancelJob(id, actor, reason, force)


def revoke(id: str, actor: str, reason: str | None) -> RevokeLease:
    return RevokeLease(id, actor, reason)


def acknowledge(id: str, actor: str, comment: str | None) -> AcknowledgeJob:
    return AcknowledgeJob(id, actor, comment)


def expire(id: str) -> ExpireLease:
    return ExpireLease(id)


def pass_deadline(id: str) -> EnforceDeadline:
    return EnforceDeadline(id)


def checkpoint(lease_ref: LeaseRef, seq: int, data: str, odd: bool) -> Checkpoint:
    return Checkpoint(lease_ref.id, lease_ref.fence, lease_ref.worker, seq, data, odd)


def heartbeat(lease_ref: LeaseRef, seconds: float | None) -> Heartbeat:
    return Heartbeat(lease_ref.id, lease_ref.fence, lease_ref.worker, seconds)


def heartbeat_and_save(lease_ref: LeaseRef, seconds: float | None, seq: int, data: str, odd: bool) -> Heartbeat:
    return Heartbeat(lease_ref.id, lease_ref.fence, lease_ref.worker, seconds, checkpoint(lease_ref, seq, data, odd))


def heartbeat_and_append(lease_ref: LeaseRef, seconds: float | None, events: tuple[Event, ...]) -> Heartbeat:
    return Heartbeat(lease_ref.id, lease_ref.fence, lease_ref.worker, seconds, events=events)


def append_events(lease_ref: LeaseRef, events: tuple[Event, ...]) -> Report:
    return Report(lease_ref.id, lease_ref.fence, lease_ref.worker, events)


def save_step(lease_ref: LeaseRef, name: str, occurrence: int, result: str, function: str | None, odd: bool) -> Step:
    return Step(lease_ref.id, lease_ref.fence, lease_ref.worker, name, occurrence, result, function, odd)


def planned_call(
    make: Callable[..., Any], pick: st.SearchStrategy[Pick], *rest: Draw
) -> st.SearchStrategy[PlannedCall]:
    return st.builds(PlannedCall, st.just(make), pick, st.tuples(*rest))


def picks(*kinds: str) -> st.SearchStrategy[Pick]:
    return st.builds(Pick, st.sampled_from(kinds), st.integers(0, 30))


def optional(*values: Any) -> Draw:
    return st.sampled_from((None, *values))


def built(kind: Callable[..., T], fields: dict[str, Draw], **fixed: Any) -> st.SearchStrategy[T]:
    """Like st.builds, which would also make up the fields that are left out."""
    return st.fixed_dictionaries(fields).map(lambda drawn: kind(**fixed, **drawn))


def subset(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), unique=True).map(lambda chosen: tuple(sorted(chosen)))
