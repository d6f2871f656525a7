"""Why a job does not run: all reasons, the decisive one first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from interlock.domain import json_text
from interlock.domain.approval import ApprovalKind
from interlock.domain.budget import PREFIX, TREE
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.limits import Wait
from interlock.domain.policy import ClaimFilter, fits
from interlock.domain.retry import SECOND
from interlock.domain.timestamps import when
from interlock.domain.worker_presence import LATELY_SECONDS, EligibleWorkers

LONG_SECONDS: Final = 5 * 365 * 86_400.0  # a wait without a time limit is longer
_SEEN: Final = f"in the last {LATELY_SECONDS:.0f} s"


class ReasonCode(StrEnum):
    """Reasons why a job does not run, in order of precedence."""

    ENDED = "ended"
    RUNNING = "running"
    DEADLINE_PASSED = "deadline_passed"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_MESSAGE = "waiting_for_message"
    DUE_LATER = "due_later"
    PAUSED = "paused"
    AGENT_BUSY = "agent_busy"
    WAITING_FOR_LIMIT = "waiting_for_limit"
    BUDGET_SPENT = "budget_spent"
    NO_WORKER_FOR_TYPE = "no_worker_for_type"
    NO_WORKER_WITH_CAPABILITIES = "no_worker_with_capabilities"
    NO_WORKER_FOR_REPOSITORY = "no_worker_for_repository"
    NO_WORKER_FOR_AFFINITY_KEY = "no_worker_for_affinity_key"
    READY = "ready"


class JobSnapshot(NamedTuple):
    """A job and its approval, pause, agent and workers, read in one snapshot; fields that do not apply are None."""

    now: int
    id: str
    type: str
    status: Status
    run_at: int
    deadline: int | None
    finished_at: int | None
    worker: str | None
    lease_expires_at: int | None
    cancel_requested_at: int | None
    cancel_reason: str | None
    error: str | None  # JSON
    requires: Sequence[str]
    repository: str | None
    affinity_key: str | None
    agent_kind: str | None
    agent_id: str | None
    awaiting: Sequence[str]
    awaiting_message: str | None  # JSON
    blocked: bool
    approval_id: str | None = None
    votes: int | None = None
    votes_required: int | None = None
    approval_kind: str | None = None
    asked_at: int | None = None
    approval_expires_at: int | None = None
    paused_at: int | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    slots: int | None = None
    busy_with: Sequence[str] = ()
    ahead: int = 0
    eligible_workers: Sequence[EligibleWorkers] = ()
    cycle: Sequence[str] = ()  # jobs that wait for each other, and this one for them; the first one again at the end
    limits: Sequence[Wait] = ()


class Reason(NamedTuple):
    """One reason: a stable code, a message and its details; times are RFC 3339."""

    clause: ReasonCode
    message: str
    details: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"clause": str(self.clause), "message": self.message, "details": dict(self.details)}


class Why(NamedTuple):
    """The decisive reason, and those that would remain without it."""

    reason: Reason
    also: tuple[Reason, ...]

    @property
    def clause(self) -> ReasonCode:
        return self.reason.clause

    def to_dict(self) -> dict[str, Any]:
        """Serialize for the API and the command line."""
        return self.reason.to_dict() | {"also": [reason.to_dict() for reason in self.also]}


def explain(job: JobSnapshot) -> Why:
    """Return why a job does not run now. It is ready if an eligible worker could claim it."""
    first, *others = _reasons(job)
    return Why(first, tuple(others))


def _reasons(job: JobSnapshot) -> Iterator[Reason]:
    final = _final(job)
    if final is not None:
        yield final
        return
    waiting = [
        reason
        for clause in (_approval, _children, _message, _time, _pause, _concurrency)
        if (reason := clause(job)) is not None
    ]
    waiting += map(_limit, job.limits)
    yield from waiting
    lacking = _worker(job)
    if lacking.clause is not ReasonCode.READY or not waiting:
        yield lacking


def _final(job: JobSnapshot) -> Reason | None:
    """Return the reason that excludes all others: the job is terminal, running, or past its deadline."""
    if job.status in TERMINAL:
        return _ended(job)
    if job.status is Status.RUNNING:
        return _running(job)
    if job.deadline is not None and job.deadline <= job.now:
        message = f"its deadline passed at {when(job.deadline)}; it never starts again and will be ended"
        return Reason(ReasonCode.DEADLINE_PASSED, message, {"deadline": when(job.deadline)})
    return None


def _ended(job: JobSnapshot) -> Reason:
    details: dict[str, Any] = {"status": str(job.status), "finished_at": when(job.finished_at or 0)}
    message = f"it has ended: {job.status}"
    if job.status is Status.CANCELLED:
        details["reason"] = job.cancel_reason
        message += f" ({job.cancel_reason})" if job.cancel_reason else ""
    elif job.error is not None:
        error = json_text.loads(job.error)
        details["error"] = {name: error.get(name) for name in ("message", "kind")} if isinstance(error, dict) else error
        message += f" ({error['message']})" if isinstance(error, dict) and error.get("message") else ""
    return Reason(ReasonCode.ENDED, message, details)


def _running(job: JobSnapshot) -> Reason:
    expires = job.lease_expires_at or 0
    details: dict[str, Any] = {"worker": job.worker, "lease_expires_at": when(expires), "cancel_requested_at": None}
    message = f"it runs on worker {job.worker}, whose lease holds until {when(expires)}"
    if expires <= job.now:
        message = f"it ran on worker {job.worker}, whose lease expired at {when(expires)}; it will be retried"
    if job.cancel_requested_at is not None:
        details |= {"cancel_requested_at": when(job.cancel_requested_at), "cancel_reason": job.cancel_reason}
        message += "; cancellation is pending"
    return Reason(ReasonCode.RUNNING, message, details)


def _approval(job: JobSnapshot) -> Reason | None:
    if job.status is not Status.WAITING_FOR_APPROVAL:
        return None
    asked, expires = when(job.asked_at or 0), when(job.approval_expires_at or 0)
    is_question = job.approval_kind == ApprovalKind.QUESTION
    so_far = (
        "waits for the answer to a question" if is_question else f"has {job.votes} of {job.votes_required} approvals"
    )
    message = f"it {so_far}, asked for since {asked}; it fails at {expires}{_deadline(job, job.approval_expires_at)}"
    if (job.approval_expires_at or 0) <= job.now:
        message = f"the approval expired at {expires}; the job will fail"
    details = {
        "approval_id": job.approval_id,
        "votes": job.votes,
        "required": job.votes_required,
        "opened_at": asked,
        "expires_at": expires,
    }
    return Reason(ReasonCode.WAITING_FOR_APPROVAL, message, details)


def _children(job: JobSnapshot) -> Reason | None:
    if not job.awaiting:
        return None
    message = f"it waits until {_some(job.awaiting, 'child', 'children')} ended{_deadline(job)}"
    return _in_a_cycle(job, Reason(ReasonCode.WAITING_FOR_CHILDREN, message, {"children": list(job.awaiting)}))


def _message(job: JobSnapshot) -> Reason | None:
    if job.awaiting_message is None or job.run_at <= job.now:
        return None
    details = json_text.loads(job.awaiting_message)
    what = f"a message {details['name']}" if "name" in details else f"a message to topic {details['topic']}"
    message = f"it waits for {what}"
    if details["after"]:
        message += f" after seq {details['after']}"
    limit = job.run_at if job.run_at < job.now + LONG_SECONDS * SECOND else None
    if limit is not None:
        message += f", until {when(limit)}"
        details["until"] = when(job.run_at)
    return Reason(ReasonCode.WAITING_FOR_MESSAGE, message + _deadline(job, limit), details)


def _in_a_cycle(job: JobSnapshot, reason: Reason) -> Reason:
    """Add the jobs that wait for each other, if this one waits for them: no worker can end such a wait."""
    if not job.cycle:
        return reason
    advice = "cancel one of them, raise max_concurrency of their strict agents, or turn strict off"
    message = f"{reason.message}; jobs {' -> '.join(job.cycle)} wait for each other: {advice}"
    return reason._replace(message=message, details={**reason.details, "cycle": list(job.cycle)})


def _time(job: JobSnapshot) -> Reason | None:
    if job.run_at <= job.now or job.status is Status.WAITING_FOR_APPROVAL or job.awaiting_message is not None:
        return None
    message = f"it is due at {when(job.run_at)}"
    if job.status is Status.RETRY:
        message = f"its last attempt failed; the next one is due at {when(job.run_at)}"
    return Reason(ReasonCode.DUE_LATER, message + _deadline(job, job.run_at), {"run_at": when(job.run_at)})


def _deadline(job: JobSnapshot, before: int | None = None) -> str:
    """Return what to add about a deadline that can end the wait of a job, unless the wait ends before."""
    if job.deadline is None or (before is not None and before < job.deadline):
        return ""
    if before is None:
        return f"; its deadline at {when(job.deadline)} ends it"
    return f", but its deadline at {when(job.deadline)} comes first and will end it"


def _pause(job: JobSnapshot) -> Reason | None:
    if job.paused_at is None:
        return None
    message = f"jobs of type {job.type} were paused by {job.paused_by} at {when(job.paused_at)}"
    message += f": {job.pause_reason}" if job.pause_reason else ""
    details = {"type": job.type, "by": job.paused_by, "since": when(job.paused_at), "reason": job.pause_reason}
    return Reason(ReasonCode.PAUSED, message, details)


def _concurrency(job: JobSnapshot) -> Reason | None:
    """Return the reason of a due job without a concurrency slot; other waiting jobs do not compete for one yet."""
    if not job.blocked or job.run_at > job.now:
        return None
    agent = f"agent {job.agent_kind}/{job.agent_id}"
    message = f"{agent} is at its concurrency limit ({job.slots})" + (
        f": waiting for job {job.busy_with[0]}" if job.busy_with else ""
    )
    others = len(job.busy_with) - 1
    message += f" and {others} more" if others > 0 else ""
    message += _ahead(job.ahead)
    details = {
        "agent": {"kind": job.agent_kind, "id": job.agent_id},
        "max_concurrency": job.slots,
        "busy_with": list(job.busy_with),
        "ahead": job.ahead,
    }
    return _in_a_cycle(job, Reason(ReasonCode.AGENT_BUSY, message, details))


def _limit(wait: Wait) -> Reason:
    """Return the reason of a job that a limit or a budget does not admit."""
    if wait.name.startswith((PREFIX, TREE)):
        return _budget(wait)
    name = f"limit {wait.name}" + (f" for key {wait.key}" if wait.key else "")
    opens_at = None if wait.opens_at is None else when(wait.opens_at)
    if wait.unit is None:
        message = f"{name} is held until {opens_at}" + (f": {wait.hold_reason}" if wait.hold_reason else "")
    elif wait.unit == "concurrency":
        message = f"{name} is at its concurrency; a running job must end first"
    else:
        message = f"{name} has {wait.available:g} {wait.unit} of {wait.needed:g} needed; enough at {opens_at}"
    message += _ahead(wait.ahead)
    details = {
        "limit": wait.name,
        "key": wait.key or None,
        "unit": wait.unit,
        "available": wait.available,
        "needed": wait.needed,
        "opens_at": opens_at,
        "held": wait.unit is None,
        "hold_reason": wait.hold_reason,
        "ahead": wait.ahead,
    }
    return Reason(ReasonCode.WAITING_FOR_LIMIT, message, details)


def _budget(wait: Wait) -> Reason:
    """Return the reason of a job whose budget is spent."""
    tree = wait.name.removeprefix(TREE) if wait.name.startswith(TREE) else None
    name = "of this tree of jobs" if tree else wait.name.removeprefix(PREFIX)
    resets_at = None if wait.opens_at is None else when(wait.opens_at)
    until = "until it is raised" if resets_at is None else f"until it is raised or starts anew at {resets_at}"
    left = f"{wait.available or 0:g} {wait.unit} left, {wait.needed or 0:g} needed"
    message = f"budget {name} has {left}; the job waits {until}"
    details: dict[str, Any] = {"root_id": tree} if tree else {"budget": name}
    details |= {
        "unit": wait.unit, "available": wait.available, "needed": wait.needed, "resets_at": resets_at,
        "ahead": wait.ahead,
    }  # fmt: skip
    return Reason(ReasonCode.BUDGET_SPENT, message, details)


def _worker(job: JobSnapshot) -> Reason:
    """Filter the workers by one requirement after another; the first that leaves no worker is the reason."""
    asks = [(ask, workers) for workers in job.eligible_workers for ask in workers.asks]
    here = sum(workers.size for workers in job.eligible_workers)
    none = f"no worker seen {_SEEN}"

    left = [one for one in asks if one[0].types is None or job.type in one[0].types]
    if not left:
        message = f"{none} takes jobs of type {job.type}"
        return Reason(ReasonCode.NO_WORKER_FOR_TYPE, message, {"type": job.type, "workers_seen": here})
    those = f"{none} that takes {job.type}"

    able = [one for one in left if one[0].capabilities.issuperset(job.requires)]
    if not able:
        missing = sorted(set(job.requires).difference(*(ask.capabilities for ask, _ in left)))
        lack = f"can do {', '.join(missing)}" if missing else f"can do all of {', '.join(job.requires)}"
        details: dict[str, Any] = {"requires": list(job.requires), "missing": missing}
        return Reason(ReasonCode.NO_WORKER_WITH_CAPABILITIES, f"{those} {lack}", details)
    those += " and can do what it requires" if job.requires else ""

    allowed = [one for one in able if one[0].repositories is None or job.repository in one[0].repositories]
    if not allowed:
        message = f"{those} may have repository {job.repository}"
        if job.repository is None:
            message = f"{those} may have a job without a repository: each is bound to repositories"
        return Reason(ReasonCode.NO_WORKER_FOR_REPOSITORY, message, {"repository": job.repository})

    fitting = [one for one in allowed if _fits(one[0], job)]
    if not fitting:
        message = f"{those} names affinity key {job.affinity_key}"
        return Reason(ReasonCode.NO_WORKER_FOR_AFFINITY_KEY, message, {"affinity_key": job.affinity_key})
    return _ready(job, {workers for _, workers in fitting})


def _ready(job: JobSnapshot, eligible_workers: Iterable[EligibleWorkers]) -> Reason:
    newest = sorted(eligible_workers, key=lambda workers: (-workers.last_seen_at, workers.names))
    count, seen = sum(workers.size for workers in newest), newest[0].last_seen_at
    details = {"workers": list(newest[0].names), "workers_count": count, "last_seen_at": when(seen)}
    ago = f"{newest[0].names[0]} polled {max(job.now - seen, 0) // SECOND} s ago"
    message = f"it is ready for the next eligible worker; {ago}"
    if seen <= job.now - round(LATELY_SECONDS * SECOND):
        message = f"it is ready, but eligible workers are busy: {ago}"
    return Reason(ReasonCode.READY, message, details)


def _fits(ask: ClaimFilter, job: JobSnapshot) -> bool:
    return fits(ask, type=job.type, requires=job.requires, repository=job.repository, affinity_key=job.affinity_key)


def _ahead(jobs: int) -> str:
    return f"; {jobs} {'job' if jobs == 1 else 'jobs'} ahead" if jobs else "; it is next"


def _some(ids: Sequence[str], one: str, many: str) -> str:
    if len(ids) == 1:
        return f"its {one} {ids[0]} has"
    return f"{len(ids)} {many}, {ids[0]} among them, have"
