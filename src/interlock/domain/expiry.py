"""What the clock alone does to a job that waits: its deadline, and the expiry of its gate."""

from __future__ import annotations

from typing import Final

from interlock.domain import principal
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.transition import JobState, NoChange, Transition, error_text, transition

SWEEP: Final = principal.system("sweep")


def pass_deadline(job: JobState, now: int) -> Transition | NoChange:
    """A job that has not started by its deadline never will; a run under way is not touched."""
    if job.deadline is None or job.deadline > now:
        return NoChange()
    if job.status is Status.QUEUED:
        return transition(
            job, Status.CANCELLED, Verb.PASS_DEADLINE, SWEEP, "deadline",
            facts={"why": "deadline"}, cancel_requested_at=now, cancel_reason="deadline",
        )  # fmt: skip
    if job.status in (Status.RETRY, Status.WAITING_FOR_APPROVAL):
        error = error_text("the deadline passed before the next run could start", "deadline")
        return transition(job, Status.FAILED, Verb.PASS_DEADLINE, SWEEP, "deadline", error=error)
    return NoChange()


def expire_approval(job: JobState, now: int) -> Transition | NoChange:
    """A job whose gate nobody decided in time has failed."""
    if (
        job.status is not Status.WAITING_FOR_APPROVAL
        or job.approval_expires_at is None
        or job.approval_expires_at > now
    ):
        return NoChange()
    error = error_text("the approval expired before a decision", "approval_expired")
    return transition(
        job, Status.FAILED, Verb.EXPIRE, SWEEP, "approval_expired", error=error, facts={"approval_id": job.approval_id}
    )
