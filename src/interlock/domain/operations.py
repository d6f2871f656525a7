"""What operators do to jobs beyond a single move: do them again, stop whole trees, delete what is old."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from interlock.domain.job import NewJob
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Error, Invalid, NotTerminal

START: Final = "start"
CHECKPOINT: Final = "checkpoint"


class Action(StrEnum):
    """What can be done to many jobs at once."""

    CANCEL = "cancel"
    REDRIVE = "redrive"


class Needs(NamedTuple):
    """What a worker must be allowed and able to do to get a job."""

    repository: str | None = None
    requires: tuple[str, ...] = ()


class Overrides(NamedTuple):
    """What a redriven job has otherwise than the job it does again; None leaves a field as it was."""

    priority: int | None = None
    run_at: int | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    tags: tuple[str, ...] | None = None
    payload: str | None = None  # JSON
    needs: Needs | None = None


NO_OVERRIDES: Final = Overrides()


class Redrive(NamedTuple):
    """Somebody wants an ended job done again, by a new one.

    `origin` says where it begins: at the start, at the checkpoint, or after a step of that name. With `once` a job that
    was redriven before is not redriven again: the answer is the job that came of it.
    """

    id: str
    new_id: str
    actor: str
    origin: str = START
    overrides: Overrides = NO_OVERRIDES
    key: str | None = None
    body_sha256: bytes | None = None
    once: bool = False

    @property
    def changes_work(self) -> bool:
        """Whether there is something new that the type of the job has a say in."""
        return self.overrides.payload is not None or self.overrides.needs is not None

    @property
    def step(self) -> str | None:
        """The step after which the new job begins, if one is named."""
        return None if self.origin in (START, CHECKPOINT) else self.origin


class Past(NamedTuple):
    """A job as its redrive sees it, held as it is; the last fields tell what there is to go on from."""

    id: str
    status: Status
    type: str
    payload: str
    priority: int
    timeout_seconds: float | None
    max_attempts: int
    backoff: str | None
    expiry_delay_seconds: float | None
    headers: str | None
    traceparent: str | None
    tags: tuple[str, ...]
    agent_kind: str | None
    agent_id: str | None
    affinity_key: str | None
    repository: str | None
    requires: tuple[str, ...]
    webhook: str | None
    parent_id: str | None
    requested_by: str | None
    has_checkpoint: bool
    has_step: bool


class Child(NamedTuple):
    """A job under another, and whether it still has to be told to stop."""

    id: str
    parent_id: str
    seq: int
    live: bool
    asked_to_stop: bool


class PruneCommand(NamedTuple):
    """Delete what ended before the cutoff, at most `most` of so many jobs after a place in the order of arrival."""

    id: str  # of the row that tells of it
    actor: str
    cutoff: int
    after_seq: int
    step: int
    dry_run: bool = False
    most: int | None = None


class PrunedStep(NamedTuple):
    """What one step of a prune did, and where the next begins; none is needed at the end."""

    deleted: int
    last_seq: int
    at_end: bool


class Prune(NamedTuple):
    """What is kept of jobs that were deleted: how many, by whom, and a hash over the ends of their histories."""

    id: str
    at: int
    actor: str
    cutoff: int
    jobs: int
    first_seq: int
    last_seq: int
    hash: bytes


def redriven(order: Redrive, past: Past, *, under_parent: bool) -> NewJob | Error:
    """The job that does an ended one again, due now unless said otherwise; why not, if it cannot be done."""
    if past.status not in TERMINAL:
        return NotTerminal(past.id, past.status)
    if order.origin == CHECKPOINT and not past.has_checkpoint:
        return Invalid(f"job {past.id} has no checkpoint to start from", pointer="/from")
    if order.step is not None and not past.has_step:
        return Invalid(f"job {past.id} has no step named {order.step!r}", pointer="/from")
    changed = order.overrides
    needs = Needs(past.repository, past.requires) if changed.needs is None else changed.needs
    return NewJob(
        id=order.new_id,
        type=past.type,
        payload=past.payload if changed.payload is None else changed.payload,
        priority=past.priority if changed.priority is None else changed.priority,
        run_at=changed.run_at,
        delay_seconds=changed.delay_seconds,
        timeout_seconds=past.timeout_seconds,
        max_attempts=past.max_attempts if changed.max_attempts is None else changed.max_attempts,
        backoff=past.backoff,
        expiry_delay_seconds=past.expiry_delay_seconds,
        headers=past.headers,
        traceparent=past.traceparent,
        tags=past.tags if changed.tags is None else changed.tags,
        agent_kind=past.agent_kind,
        agent_id=past.agent_id,
        affinity_key=past.affinity_key,
        repository=needs.repository,
        requires=needs.requires,
        idempotency_key=order.key,
        body_sha256=order.body_sha256,
        webhook=past.webhook,
        parent_id=past.parent_id if under_parent else None,
        redrive_of=past.id,
        created_by=order.actor,
        requested_by=past.requested_by,
    )
