"""What the clock alone does to a job that waits: its deadline, and the expiry of its gate."""

from __future__ import annotations

from typing import Final

from interlock.domain import principal
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.transition import Change, Standing, Unchanged, error_text, move

SWEEP: Final = principal.system("sweep")


def pass_deadline(job: Standing, now: int) -> Change | Unchanged:
    """A job that has not started by its deadline never will; a run under way is not touched."""
    if job.deadline is None or job.deadline > now:
        return Unchanged()
    if job.status is Status.QUEUED:
        return move(
            job, Status.CANCELLED, Verb.PASS_DEADLINE, SWEEP, "deadline",
            facts={"why": "deadline"}, cancel_requested_at=now, cancel_reason="deadline",
        )  # fmt: skip
    if job.status in (Status.RETRY, Status.WAITING_FOR_APPROVAL):
        error = error_text("the deadline passed before the next run could start", "deadline")
        return move(job, Status.FAILED, Verb.PASS_DEADLINE, SWEEP, "deadline", error=error)
    return Unchanged()


def expire_gate(job: Standing, now: int) -> Change | Unchanged:
    """A job whose gate nobody decided in time has failed."""
    if job.status is not Status.WAITING_FOR_APPROVAL or job.gate_expires_at is None or job.gate_expires_at > now:
        return Unchanged()
    error = error_text("the approval expired before a decision", "approval_expired")
    return move(job, Status.FAILED, Verb.EXPIRE, SWEEP, "approval_expired", error=error, facts={"gate_id": job.gate_id})
