"""Pure decisions: commands and the transitions they cause.

Every change with more than one outcome (retry or dead letter, cancel now or on request) is a command. A store reads
the job state under a row lock, calls `decide` and writes the transition, so both engines behave the same.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from interlock.domain import json_text, principal
from interlock.domain.approval import RequestApproval
from interlock.domain.edit import EditJob, edit
from interlock.domain.expiry import SWEEP, expire_approval, pass_deadline
from interlock.domain.job import ANY_FENCE, MAX_DELAY_SECONDS, MAX_RELEASES, HistoryRow, Receipt
from interlock.domain.lifecycle import TERMINAL, UNRESOLVED, Status, Verb
from interlock.domain.message import AwaitMessage
from interlock.domain.retry import DEFAULT_BACKOFF, SECOND, Backoff, after_expiry, after_failure
from interlock.domain.timestamps import micros
from interlock.domain.transition import JobState, NoChange, Transition, error_text, transition
from interlock.errors import (
    AlreadyFinished,
    CancelRequested,
    Error,
    LeaseLost,
    NoCancelRequested,
    NotFailed,
    NotRunning,
)

MAX_CHILDREN: Final = 1000  # that a job waits for at a time; its row lists them until they are terminal


class CompleteJob(NamedTuple):
    """Finish a run successfully; result and usage are JSON."""

    id: str
    fence: int
    worker: str
    result: str | None = None
    result_summary: str | None = None
    usage: str | None = None
    sanitized: bool = False
    verb: Verb = Verb.COMPLETE


class FailJob(NamedTuple):
    """Finish a run with a failure; error is JSON with message, kind and details.

    A failure that is not retryable may also store a partial result, as JSON.
    """

    id: str
    fence: int
    worker: str
    error: str
    retryable: bool = True
    retry_after_seconds: float | None = None
    sanitized: bool = False
    result: str | None = None
    verb: Verb = Verb.FAIL


class ReleaseJob(NamedTuple):
    """Release a job: due immediately, at a time, after a delay, or when the listed children are terminal.

    With a message, the time or delay is the limit of the wait for it.
    """

    id: str
    fence: int
    worker: str
    reason: str | None = None
    run_at: int | None = None
    delay_seconds: float | None = None
    children: tuple[str, ...] = ()
    message: AwaitMessage | None = None
    verb: Verb = Verb.RELEASE


class AcknowledgeCancel(NamedTuple):
    """Acknowledge a cancellation: the worker has stopped its run."""

    id: str
    fence: int
    worker: str
    verb: Verb = Verb.CANCEL_ACK


class CancelJob(NamedTuple):
    """Cancel a job: immediately unless it runs; a running job gets a cancellation request unless `force` is set."""

    id: str
    actor: str
    reason: str | None = None
    force: bool = False
    verb: Verb = Verb.CANCEL


class RevokeLease(NamedTuple):
    """End a lease immediately, as if it had expired; with `below`, only if its fence is lower."""

    id: str
    actor: str
    reason: str | None = None
    below: int | None = None
    verb: Verb = Verb.REVOKE


class ExpireLease(NamedTuple):
    """Expire the lease, or the approval, of a job if it is overdue."""

    id: str
    verb: Verb = Verb.EXPIRE


class EnforceDeadline(NamedTuple):
    """Cancel or fail a waiting job if its deadline has passed."""

    id: str
    verb: Verb = Verb.PASS_DEADLINE


class AcknowledgeJob(NamedTuple):
    """Record that an operator has seen a failed or dead-letter job; it needs no attention from then on."""

    id: str
    actor: str
    comment: str | None = None
    verb: Verb = Verb.ACKNOWLEDGE


Finish = CompleteJob | FailJob | ReleaseJob | AcknowledgeCancel
WorkerCommand = Finish | RequestApproval  # every command that ends a worker's lease
Command = WorkerCommand | CancelJob | RevokeLease | ExpireLease | EnforceDeadline | EditJob | AcknowledgeJob
STOPS: Final = (CancelJob, RevokeLease)  # commands that a worker must learn of before its next heartbeat


def decide(order: Command, job: JobState, *, now: int, chance: float) -> Transition | NoChange | Error:
    """Return the effect of a command on a job in this state; chance is a random number in [0, 1)."""
    match order:
        case CompleteJob() | FailJob() | ReleaseJob() | AcknowledgeCancel() | RequestApproval():
            if not holds(job, order.fence, order.worker):
                return LeaseLost(order.id, order.fence)
            return _finish(order, job, now, chance)
        case CancelJob():
            return _cancel(order, job, now)
        case RevokeLease():
            if job.status is not Status.RUNNING:
                return AlreadyFinished(job.id, f"it is {job.status}, no worker holds its lease")
            if order.below is not None and job.fence >= order.below:
                return NoChange()
            return _lose_lease(order.verb, order.actor, "revoked", order.reason, job, now)
        case ExpireLease():
            if job.status is Status.WAITING_FOR_APPROVAL:
                return expire_approval(job, now)
            if job.status is not Status.RUNNING or job.lease_expires_at is None or job.lease_expires_at > now:
                return NoChange()
            kind = "timeout" if _timed_out(job, job.lease_expires_at) else "lease_expired"
            return _lose_lease(order.verb, SWEEP, kind, kind, job, now)
        case EnforceDeadline():
            return pass_deadline(job, now)
        case EditJob():
            return edit(order, job, now)
        case AcknowledgeJob():
            if job.status not in UNRESOLVED:
                return NotFailed(job.id, job.status)
            if job.acknowledged_at is not None:
                return NoChange()
            return transition(job, job.status, order.verb, order.actor, order.comment)


def holds(job: JobState, fence: int, worker: str) -> bool:
    """Return whether this worker holds the current lease."""
    return job.status is Status.RUNNING and fence in (job.fence, ANY_FENCE) and job.worker == worker


def result_of_repeat(
    ended: HistoryRow | None, verb: Verb | None, job_id: str, fence: int, worker: str
) -> Receipt | Error:
    """Return the result for a worker whose lease has ended, from the history row that ended it.

    A repeated operation gets its first receipt; verb None means a heartbeat or checkpoint.
    """
    if ended is None or not ended.ended_by_worker or ended.actor != principal.worker(worker):
        return LeaseLost(job_id, fence)
    if verb is None:
        return NotRunning(job_id, fence)
    if ended.verb != verb:
        return AlreadyFinished(job_id, f"by {ended.verb}")
    return receipt_of(ended)


def receipt_of(row: HistoryRow) -> Receipt:
    """Return the receipt of the operation that wrote a history row."""
    facts = json_text.loads(row.metadata) if row.metadata else {}
    run_at = facts.get("run_at")
    return Receipt(
        id=row.job_id,
        fence=row.fence,
        status=row.to_status,
        attempt=facts.get("attempt", row.attempt),
        version=row.version,
        run_at=None if run_at is None else micros(datetime.fromisoformat(run_at)),
        finished_at=row.at if row.to_status in TERMINAL and row.from_status != row.to_status else None,
    )


def _finish(order: WorkerCommand, job: JobState, now: int, chance: float) -> Transition | Error:
    actor = principal.worker(order.worker)
    if isinstance(order, CompleteJob):
        return transition(job, Status.SUCCEEDED, order.verb, actor)._replace(
            result=order.result, result_summary=order.result_summary, usage=order.usage, sanitized=order.sanitized
        )
    if isinstance(order, AcknowledgeCancel):
        if job.cancel_requested_at is None:
            return NoCancelRequested(job.id)
        return _cancelled(job, order.verb, actor)
    if isinstance(order, FailJob) and not order.retryable:
        change = transition(job, Status.FAILED, order.verb, actor, error=order.error, sanitized=order.sanitized)
        return change._replace(result=order.result)
    if job.cancel_requested_at is not None:
        if isinstance(order, RequestApproval):
            return CancelRequested(job.id)
        if isinstance(order, FailJob):
            return _cancelled(job, order.verb, actor, order.error)._replace(sanitized=order.sanitized)
        return _cancelled(job, order.verb, actor)
    if isinstance(order, RequestApproval):
        change = transition(
            job, Status.WAITING_FOR_APPROVAL, order.verb, actor,
            facts={"approval_id": order.approval_id}, sanitized=order.sanitized,
        )  # fmt: skip
        return change._replace(approval_id=order.approval_id)
    backoff = Backoff.from_text(job.backoff) if job.backoff else DEFAULT_BACKOFF
    if isinstance(order, FailJob):
        delay = after_failure(backoff, job.attempt, chance, order.retry_after_seconds)
        change = _try_again(job, order.verb, actor, None, order.error, now + delay)
        return change._replace(sanitized=order.sanitized)
    if order.delay_seconds is not None:
        run_at = now + round(order.delay_seconds * SECOND)
    elif order.run_at is None and order.message is not None:
        run_at = now + MAX_DELAY_SECONDS * SECOND
    else:
        run_at = now if order.run_at is None else max(order.run_at, now)
    waits = (
        run_at > now or bool(order.children) or order.message is not None
    )  # only releases that are due immediately are counted and limited
    if not waits and job.releases >= MAX_RELEASES:
        error = error_text(f"released more than {MAX_RELEASES} times", "too_many_releases")
        return _try_again(job, order.verb, actor, order.reason, error, now + backoff.delay(job.attempt, chance))
    facts: dict[str, object] = {"run_at": run_at}
    if order.children:
        facts["awaiting_children"] = len(set(order.children))
    if order.message is not None:
        facts["awaiting_message"] = order.message.name or order.message.topic
    change = transition(job, Status.QUEUED, order.verb, actor, order.reason, run_at=run_at, facts=facts)
    return change._replace(releases=job.releases + (not waits), children=order.children)


def _cancel(order: CancelJob, job: JobState, now: int) -> Transition | NoChange | Error:
    if job.status is Status.CANCELLED:
        return NoChange()
    if job.status in TERMINAL:
        return AlreadyFinished(job.id, f"it has ended as {job.status}")
    if job.status is not Status.RUNNING or order.force:
        return transition(
            job, Status.CANCELLED, order.verb, order.actor, order.reason,
            facts={"why": order.reason}, cancel_requested_at=job.cancel_requested_at or now,
            cancel_reason=order.reason or job.cancel_reason,
        )  # fmt: skip
    if job.cancel_requested_at is not None:
        return NoChange()
    return transition(
        job, Status.RUNNING, order.verb, order.actor, order.reason,
        facts={"why": order.reason}, cancel_requested_at=now, cancel_reason=order.reason,
    )  # fmt: skip


def _cancelled(job: JobState, verb: Verb, actor: str, error: str | None = None) -> Transition:
    facts = {"why": job.cancel_reason}
    return transition(job, Status.CANCELLED, verb, actor, job.cancel_reason, facts=facts, error=error)


def _lose_lease(verb: Verb, actor: str, kind: str, reason: str | None, job: JobState, now: int) -> Transition:
    if job.cancel_requested_at is not None:
        return _cancelled(job, verb, actor)
    message = {
        "timeout": f"the run took longer than {job.timeout_seconds} s",
        "lease_expired": f"lease expired: no heartbeat from worker {job.worker}",
        "revoked": f"the lease of worker {job.worker} was revoked",
    }[kind]
    run_at = now + after_expiry(job.expiry_delay_seconds)
    return _try_again(job, verb, actor, reason, error_text(message, kind), run_at)


def _try_again(job: JobState, verb: Verb, actor: str, reason: str | None, error: str, run_at: int) -> Transition:
    if job.attempt >= job.max_attempts:
        return transition(job, Status.DEAD_LETTER, verb, actor, reason, error=error)
    facts = {"attempt": job.attempt + 1, "run_at": run_at}
    change = transition(job, Status.RETRY, verb, actor, reason, error=error, run_at=run_at, facts=facts)
    return change._replace(attempt=job.attempt + 1)


def _timed_out(job: JobState, lease_expires_at: int) -> bool:
    """Return whether the run reached its timeout, as opposed to losing its worker earlier."""
    if job.timeout_seconds is None or job.run_started_at is None:
        return False
    return job.run_started_at + round(job.timeout_seconds * SECOND) <= lease_expires_at + 1  # databases round too
