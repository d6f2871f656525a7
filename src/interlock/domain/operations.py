"""Operations beyond a single transition: redrive, cancel trees of jobs, prune."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from interlock.domain.job import REDRIVEN, Job, NewJob, Receipt
from interlock.domain.lifecycle import TERMINAL
from interlock.errors import Error, Invalid, NotTerminal

START: Final = "start"
CHECKPOINT: Final = "checkpoint"


class Action(StrEnum):
    """Bulk operations on jobs."""

    CANCEL = "cancel"
    REDRIVE = "redrive"
    ACKNOWLEDGE = "acknowledge"


class Needs(NamedTuple):
    """The repository and capabilities that a job needs from its worker."""

    repository: str | None = None
    requires: tuple[str, ...] = ()


class Overrides(NamedTuple):
    """Fields in which a redriven job differs from the original; None keeps a field."""

    priority: int | None = None
    run_at: int | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    tags: tuple[str, ...] | None = None
    payload: str | None = None  # JSON
    needs: Needs | None = None


NO_OVERRIDES: Final = Overrides()


class Redrive(NamedTuple):
    """Create a new job from a terminal one.

    `origin` is where the new job starts: the start, the checkpoint, or after the step of that name. With `once`, a job
    that was already redriven returns its existing successor.
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
    def step(self) -> str | None:
        """The step after which the new job starts, or None."""
        return None if self.origin in (START, CHECKPOINT) else self.origin


class Past(NamedTuple):
    """The locked original of a redrive, and what the new job can start from."""

    job: Job
    has_checkpoint: bool
    has_step: bool


class Child(NamedTuple):
    """A child of a job in a tree, and whether it still needs a cancellation request."""

    id: str
    parent_id: str
    seq: int
    live: bool
    asked_to_stop: bool


class PruneCommand(NamedTuple):
    """Delete jobs that finished before `cutoff`: at most `most` of the next `step` jobs after `after_seq`."""

    id: str  # of the prune record
    actor: str
    cutoff: int
    after_seq: int
    step: int
    dry_run: bool = False
    most: int | None = None


class PrunedStep(NamedTuple):
    """The result of one step of a prune; the next step starts after `last_seq` unless `at_end`."""

    deleted: int
    last_seq: int
    at_end: bool


class Prune(NamedTuple):
    """The record of deleted jobs: how many, by whom, and a hash over their chain heads."""

    id: str
    at: int
    actor: str
    cutoff: int
    jobs: int
    first_seq: int
    last_seq: int
    hash: bytes


def redriven(order: Redrive, past: Past, *, under_parent: bool) -> NewJob | Error:
    """Return the new job of a redrive, by default due immediately, or why it is rejected."""
    old, changed = past.job, order.overrides
    if old.status not in TERMINAL:
        return NotTerminal(old.id, old.status)
    if order.origin == CHECKPOINT and not past.has_checkpoint:
        return Invalid(f"job {old.id} has no checkpoint to start from", pointer="/from")
    if order.step is not None and not past.has_step:
        return Invalid(f"job {old.id} has no step named {order.step!r}", pointer="/from")
    values = {name: getattr(old, name) for name in REDRIVEN}
    values |= {name: tuple(values[name]) for name in ("tags", "requires")}
    values |= {name: value for name, value in changed._asdict().items() if value is not None and name != "needs"}
    if changed.needs is not None:
        values |= changed.needs._asdict()
    if not under_parent:
        values["parent_id"] = None
    return NewJob(
        id=order.new_id, redrive_of=old.id, created_by=order.actor, idempotency_key=order.key,
        body_sha256=order.body_sha256, **values,
    )  # fmt: skip


class Cascade(NamedTuple):
    """The result of cancelling a job, and how many descendants were cancelled or have a pending cancel request."""

    receipt: Receipt
    descendants: int


class Bulk(NamedTuple):
    """The result of a bulk action: how many jobs matched, how many were changed, and whether there are more.

    `before_seq` is where a filter resumes; `refused` lists rejected jobs and why; `ids` are the jobs that matched.
    """

    matched: int
    done: int
    more: bool
    before_seq: int | None = None
    refused: tuple[tuple[str, Error], ...] = ()
    ids: tuple[str, ...] = ()


class Pruned(NamedTuple):
    """How many jobs were deleted, and whether more may be left; they come after `last_seq`."""

    deleted: int
    more: bool
    last_seq: int
