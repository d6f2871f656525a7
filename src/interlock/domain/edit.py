"""Edits of a job that waits for a worker."""

from __future__ import annotations

from typing import NamedTuple

from interlock.domain.lifecycle import CLAIMABLE, TERMINAL, Verb
from interlock.domain.transition import EditedFields, JobState, NoChange, Transition, transition
from interlock.errors import AlreadyFinished, Error, Invalid, NotEditable, PreconditionFailed


class EditJob(NamedTuple):
    """Edit a waiting job; None leaves a field unchanged."""

    id: str
    actor: str
    priority: int | None = None
    run_at: int | None = None
    deadline: int | None = None
    drop_deadline: bool = False
    max_attempts: int | None = None
    tags: tuple[str, ...] | None = None
    expected_version: int | None = None
    due_now: bool = False  # only moves run_at earlier: a later one would cost the job its position
    verb: Verb = Verb.EDIT


def edit(order: EditJob, job: JobState, now: int) -> Transition | NoChange | Error:
    """Return the transition of an edit, or why it is rejected; an edit without effect is NoChange."""
    if order.expected_version is not None and order.expected_version != job.version:
        return PreconditionFailed(job.id, order.expected_version, job.version)
    if job.status in TERMINAL:
        return AlreadyFinished(job.id, f"it has ended as {job.status}")
    if job.status not in CLAIMABLE:
        return NotEditable(job.id, job.status)
    if order.max_attempts is not None and order.max_attempts < job.attempt:
        return Invalid(f"max_attempts cannot be below the attempt, {job.attempt}", pointer="/max_attempts")
    if order.deadline is not None and order.deadline <= now:
        return Invalid("the deadline is in the past", pointer="/deadline")
    current = EditedFields(job.priority, job.run_at, job.deadline, job.max_attempts, job.tags)
    wanted = {name: value for name in EditedFields._fields if (value := getattr(order, name)) is not None}
    if order.due_now and job.run_at > now:
        wanted["run_at"] = now
    if order.drop_deadline:
        wanted["deadline"] = None
    edited = current._replace(**wanted)
    if edited == current:
        return NoChange()
    facts = {name: value for name, value in edited._asdict().items() if value != getattr(current, name)}
    change = transition(job, job.status, order.verb, order.actor, facts=facts)
    return change._replace(edited=edited, run_at=None if edited.run_at == job.run_at else edited.run_at)
