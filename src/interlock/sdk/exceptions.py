"""Exceptions that a task raises to end its run, and those that the SDK raises for the outcome of a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from interlock.domain.limits import MAX_HOLD_SECONDS
from interlock.domain.retry import MAX_RETRY_AFTER_SECONDS
from interlock.errors import Error


class Retry(Exception):
    """Fail this attempt and retry, after the given delay or else by the job's backoff."""

    def __init__(self, message: str = "retry requested", *, delay: float | timedelta | None = None) -> None:
        self.after_seconds = _ahead(delay, MAX_RETRY_AFTER_SECONDS)
        super().__init__(message)


class Fail(Exception):
    """Fail the job permanently, regardless of attempts left."""

    def __init__(self, message: str = "failed permanently", *, kind: str | None = None, details: object = None) -> None:
        self.kind, self.details = kind, details
        super().__init__(message)


class Suspended(BaseException):
    """The run ends and a later one resumes. A BaseException, so that `except Exception` does not catch it."""


class Release(Suspended):
    """Release the job, to run now, at a time or after a delay, without using an attempt."""

    def __init__(
        self,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        if run_at is not None and delay is not None:
            raise ValueError("run_at and delay are both set: expected one of them")
        if run_at is not None and run_at.tzinfo is None:
            raise ValueError(f"run_at is {run_at!r}: expected a time with a UTC offset")
        self.until, self.after_seconds, self.reason = run_at, _ahead(delay, math.inf), reason
        super().__init__(reason or "released")


class RateLimited(Suspended):
    """Hold a limit until a time and release the job without using an attempt, as after a rejection by a provider.

    The job must name the limit. Other jobs that name it wait as well, on all workers.
    """

    def __init__(
        self,
        limit: str,
        *,
        until: datetime | None = None,
        delay: float | timedelta | None = None,
        reason: str | None = None,
    ) -> None:
        if (until is None) == (delay is None):
            raise ValueError("until and delay: expected one of them")
        if until is not None and until.tzinfo is None:
            raise ValueError(f"until is {until!r}: expected a time with a UTC offset")
        self.limit, self.until, self.after_seconds, self.reason = limit, until, _ahead(delay, MAX_HOLD_SECONDS), reason
        self.is_held = False  # set by the worker
        super().__init__(reason or f"limit {limit} is held")


class BudgetExceeded(Suspended):
    """A budget of the job is spent: the run ends at a step without using an attempt, and waits for more budget.

    `ctx.step` raises it before it begins a step that has no saved result.
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__("a budget of the job is spent")


class AwaitsChildren(Suspended):
    """The run waits for children; it resumes when all of them are terminal."""

    def __init__(self, children: Sequence[str]) -> None:
        self.children = tuple(children)
        super().__init__(f"waits for {len(self.children)} children")


class AwaitsMessage(Suspended):
    """The run waits for a message; it resumes when one has arrived, or at the end of the time limit."""

    def __init__(self, name: str | None, after: int, until: int | None = None, topic: str | None = None) -> None:
        self.name, self.after, self.until, self.topic = name, after, until, topic
        super().__init__(f"waits for message {name!r}" if topic is None else f"waits for topic {topic!r}")


class AwaitsApproval(Suspended):
    """The run waits for an approval; requesting it has ended the lease."""


class Declined(Exception):
    """An approver declined to answer a question of the job."""

    def __init__(self, prompt: str, comment: str | None = None) -> None:
        self.prompt, self.comment = prompt, comment
        super().__init__(f"declined: {comment}" if comment else f"the question was declined: {prompt}")


class JobFailed(Error):
    """A job whose result was awaited has failed; error holds message, kind and details."""

    code = "job_failed"

    def __init__(self, job_id: str, status: str, error: dict[str, object]) -> None:
        self.job_id, self.job_status, self.error = job_id, status, error
        super().__init__(f"job {job_id} ended as {status}: {error.get('message', 'no reason was given')}")


class JobCancelled(Error):
    """A job whose result was awaited has been cancelled."""

    code = "job_cancelled"

    def __init__(self, job_id: str, reason: str | None) -> None:
        self.job_id, self.reason = job_id, reason
        super().__init__(f"job {job_id} was cancelled" + (f": {reason}" if reason else ""))


class StepMismatch(Error):
    """A replay uses a name for a different operation than an earlier run of the same job."""

    code = "step_mismatch"

    def __init__(self, job_id: str, step: str, occurrence: int, recorded: str, asked: str) -> None:
        self.job_id, self.step, self.occurrence, self.recorded, self.asked = job_id, step, occurrence, recorded, asked
        super().__init__(
            f"job {job_id}: {step!r}, occurrence {occurrence}, was recorded as {recorded}, and the code now asks for "
            f"{asked}; give it another name, keep the old code for jobs in progress with ctx.patched(), or redrive the "
            "job from the start"
        )


def _ahead(span: float | timedelta | None, longest: float) -> float | None:
    """Return a delay in seconds. A past time means now: the clock of a provider may be behind ours."""
    seconds = in_seconds(span)
    if seconds is not None and math.isnan(seconds):
        raise ValueError("a duration must be a finite number of seconds or a timedelta")
    return None if seconds is None else min(max(seconds, 0.0), longest)


def in_seconds(span: float | timedelta | None) -> float | None:
    """Return a duration in seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else span
