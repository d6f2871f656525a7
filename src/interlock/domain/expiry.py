"""Time-based transitions of a waiting job: its deadline, and the expiry of its approval."""

from __future__ import annotations

from typing import Final

from interlock.domain import principal
from interlock.domain.lifecycle import CLAIMABLE, Status, Verb
from interlock.domain.transition import JobState, NoChange, Transition, error_text, transition

SWEEP: Final = principal.system("sweep")
BUDGETS: Final = principal.system("budgets")


def pass_deadline(job: JobState, now: int) -> Transition | NoChange:
    """Cancel or fail a job that has not started by its deadline; a running job is not affected."""
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


def exceed_budget(job: JobState, budget: str) -> Transition | NoChange:
    """Fail a waiting job whose budget is spent."""
    if job.status not in CLAIMABLE:
        return NoChange()
    error = error_text(f"budget {budget} is spent", "budget_exceeded")
    return transition(
        job, Status.FAILED, Verb.EXCEED_BUDGET, BUDGETS, "budget_exceeded", error=error, facts={"budget": budget}
    )


def expire_approval(job: JobState, now: int) -> Transition | NoChange:
    """Fail a job whose approval expired before a decision."""
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
