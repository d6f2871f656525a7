"""Approvals: the request, its votes, and how a vote decides it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from interlock.domain.expiry import expire_approval, pass_deadline
from interlock.domain.job import Checkpoint
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.principal import Person, Principal
from interlock.domain.retry import SECOND
from interlock.domain.transition import JobState, Transition, error_text, transition
from interlock.errors import (
    AlreadyDecided,
    ApprovalExpired,
    ApprovalVoid,
    DigestMismatch,
    Error,
    Forbidden,
    FreshSignInRequired,
    Invalid,
    NotFound,
)  # fmt: skip

DEFAULT_EXPIRY_SECONDS: Final = 86_400.0
MAX_EXPIRY_SECONDS: Final = 7 * 86_400.0
MAX_VOTES: Final = 100
RISKS: Final = ("low", "medium", "high", "critical")


class ApprovalStatus(StrEnum):
    """The status of an approval. Void: its job ended, or its deadline passed, before a decision."""

    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"


class Decision(StrEnum):
    """The decision on an approval, or one vote."""

    APPROVE = "approve"
    DENY = "deny"


class OnDeny(StrEnum):
    """The effect of a denial: fail the job, or resume it with the decision."""

    FAIL = "fail"
    RESUME = "resume"


class ApprovalKind(StrEnum):
    """What approvers are asked for: a decision, or data that the job needs."""

    APPROVAL = "approval"
    QUESTION = "question"


class RequestApproval(NamedTuple):
    """Request an approval and end the lease until it is decided; details and schema are JSON.

    A question needs one answer, and its job resumes if it is declined.
    """

    id: str
    fence: int
    worker: str
    approval_id: str
    prompt: str
    details: str | None = None
    risk: str | None = None
    schema: str | None = None
    required: int = 1
    on_deny: OnDeny = OnDeny.FAIL
    expires_in_seconds: float = DEFAULT_EXPIRY_SECONDS
    opened_by: str = ""  # the principal of the worker's credential, or the worker if there is none
    checkpoint: Checkpoint | None = None
    sanitized: bool = False
    name: str | None = None  # a later run finds the decision by it
    occurrence: int | None = None  # of the name in a run, from 1; None: the job's next one
    kind: ApprovalKind = ApprovalKind.APPROVAL
    verb: Verb = Verb.REQUEST_APPROVAL


class Vote(NamedTuple):
    """The vote of one principal."""

    voter: str
    decision: Decision
    comment: str | None
    at: int


class Approval(NamedTuple):
    """The current state of an approval; details, schema and data are JSON. Only the hash of a link token is stored."""

    tenant: str
    id: str
    job_id: str
    fence: int
    status: ApprovalStatus
    prompt: str
    details: str | None
    risk: str | None
    schema: str | None
    digest: str
    required: int
    on_deny: OnDeny
    kind: ApprovalKind
    name: str | None
    occurrence: int
    opened_by: str
    opened_at: int
    expires_at: int
    closed_by: str | None
    closed_at: int | None
    comment: str | None
    data: str | None
    token_sha256: bytes | None
    link_created_by: str | None
    link_created_at: int | None
    votes: Sequence[Vote]

    @property
    def decision(self) -> Decision | None:
        """The decision, or None."""
        return {ApprovalStatus.APPROVED: Decision.APPROVE, ApprovalStatus.DENIED: Decision.DENY}.get(self.status)


class CastVote(NamedTuple):
    """Vote on an approval; data is JSON. `token_sha256` authenticates the bearer of an approval link."""

    id: str
    actor: str
    decision: Decision
    comment: str | None = None
    data: str | None = None
    digest: str | None = None
    token_sha256: bytes | None = None
    person: Person | None = None


class CreateApprovalLink(NamedTuple):
    """Create a link token for an approval and invalidate the previous one."""

    id: str
    actor: str
    token_sha256: bytes


class ApprovalFilter(NamedTuple):
    """A filter and page of approvals: newest first, continued before the position (opened_at, id)."""

    status: ApprovalStatus | None = None
    job_id: str | None = None
    fence: int | None = None  # with job_id: the approval that the lease with this fence requested
    before: tuple[int, str] | None = None
    limit: int = 50
    urgent: bool = False  # open ones, earliest expiry first, continued after the position (expires_at, id)

    def cursor_of(self, approval: Approval) -> tuple[int, str]:
        """Return the position that continues a page ending with this approval."""
        return (approval.expires_at if self.urgent else approval.opened_at), approval.id


class ApprovalLink(NamedTuple):
    """A new approval link; its token is shown only once."""

    approval: Approval
    token: str


class VoteOutcome(NamedTuple):
    """The result of a vote: the updated approval, the vote and the transition of the job to write, if any.

    A refusal together with a change means that the approval had already expired or become void.
    """

    approval: Approval
    vote: Vote | None = None
    change: Transition | None = None
    refusal: Error | None = None


def digest(payload: str, prompt: str, details: str | None, schema: str | None) -> str:
    """Return the SHA-256 of the texts, each as length:text with the length in bytes, or a dash for null."""
    parts = ("-" if text is None else f"{len(text.encode())}:{text}" for text in (payload, prompt, details, schema))
    return sha256("".join(parts).encode()).hexdigest()


def refuse_approver(who: Principal) -> Error | None:
    """Return why this caller may not decide or create links. Workers request approvals and must not decide them."""
    if who.unchecked:
        return None
    if not who.may("approve"):
        return Forbidden("this needs the role approve")
    return Forbidden("a credential that works cannot approve") if who.may("work") else None


class StepUp(NamedTuple):
    """Approvals from a risk on need a person who signed in within the last seconds."""

    risk: str
    seconds: int

    def covers(self, risk: str | None) -> bool:
        """Return whether a risk is at or above the limit; an unknown risk counts as the highest."""
        if risk is None:
            return False
        return risk.lower() not in RISKS or RISKS.index(risk.lower()) >= RISKS.index(self.risk)

    def refuse(self, risk: str | None, who: Principal | None, now: int) -> Error | None:
        """Return why this caller may not decide now; None for the bearer of a link is never enough."""
        if not self.covers(risk) or (who is not None and who.unchecked):
            return None
        at = None if who is None or who.person is None else who.person.authenticated_at
        if at is not None and now - at <= self.seconds * SECOND:
            return None
        return FreshSignInRequired(risk or "", self.seconds)


def refuse_link(approval: Approval, actor: str, now: int) -> Error | None:
    """Return why this caller cannot create a link for the approval, or None."""
    if actor == approval.opened_by:
        return Forbidden("the principal that requested an approval cannot create its link")
    if approval.required > 1:
        return Invalid(
            "an approval with several required votes has no link: principals with the approve role decide it"
        )
    if approval.decision is not None:
        return AlreadyDecided(approval.id, approval.status)
    if approval.status is ApprovalStatus.VOID:
        return ApprovalVoid(approval.id)
    if approval.status is ApprovalStatus.EXPIRED or approval.expires_at <= now:
        return ApprovalExpired(approval.id)
    return None


def judge(command: CastVote, approval: Approval, job: JobState, now: int) -> VoteOutcome | Error:
    """Decide the effect of a vote on an approval and its job, both read under the job's lock."""
    if (fault := _fault(command, approval)) is not None:
        return fault
    mine = next((vote for vote in approval.votes if vote.voter == command.actor), None)
    if approval.status is not ApprovalStatus.OPEN:
        return _judge_closed(command, approval, mine)
    if mine is not None:
        return (
            VoteOutcome(approval)
            if mine.decision is command.decision
            else AlreadyDecided(approval.id, "you have voted")
        )
    if job.approval_id != approval.id:
        return ApprovalVoid(approval.id)
    for overdue, status, refusal in (
        (pass_deadline, ApprovalStatus.VOID, ApprovalVoid(approval.id)),
        (expire_approval, ApprovalStatus.EXPIRED, ApprovalExpired(approval.id)),
    ):
        if isinstance(change := overdue(job, now), Transition):
            return VoteOutcome(approval._replace(status=status, closed_at=now), change=change, refusal=refusal)
    vote = Vote(command.actor, command.decision, command.comment, now)
    return _counted(command, approval._replace(votes=(*approval.votes, vote)), vote, job, now)


def _fault(command: CastVote, approval: Approval) -> Error | None:
    """Return why a vote is invalid regardless of the status of the approval."""
    if command.token_sha256 is not None and not compare_digest(command.token_sha256, approval.token_sha256 or b""):
        return NotFound("", resource="approval")
    if command.actor == approval.opened_by:
        return Forbidden("the principal that requested an approval cannot decide it")
    if command.digest is not None and not compare_digest(
        command.digest.lower().encode(errors="replace"), approval.digest.encode()
    ):
        return DigestMismatch(approval.id)
    if command.data is not None and (approval.required > 1 or command.decision is Decision.DENY):
        return Invalid("data goes with an approval by one person alone; use the comment", pointer="/data")
    return None


def _judge_closed(command: CastVote, approval: Approval, mine: Vote | None) -> VoteOutcome | Error:
    if approval.status is ApprovalStatus.EXPIRED:
        return ApprovalExpired(approval.id)
    if approval.status is ApprovalStatus.VOID:
        return ApprovalVoid(approval.id)
    same = mine is not None and mine.decision is command.decision and command.data == approval.data
    return VoteOutcome(approval) if same else AlreadyDecided(approval.id, approval.status)


def _counted(command: CastVote, approval: Approval, vote: Vote, job: JobState, now: int) -> VoteOutcome:
    """Count a vote: one denial decides, approvals decide once there are enough."""
    in_favour = sum(v.decision is Decision.APPROVE for v in approval.votes)
    if vote.decision is Decision.APPROVE and in_favour < approval.required:
        return VoteOutcome(approval, vote)
    status = ApprovalStatus.APPROVED if vote.decision is Decision.APPROVE else ApprovalStatus.DENIED
    closed = approval._replace(
        status=status, closed_by=command.actor, closed_at=now, comment=command.comment, data=command.data
    )
    facts: dict[str, Any] = {"approval_id": approval.id, "decision": str(command.decision)}
    if command.person is not None:
        known = {"name": command.person.name, "email": command.person.email}
        facts["person"] = {name: value for name, value in known.items() if value is not None}
    if status is ApprovalStatus.DENIED and approval.on_deny is OnDeny.FAIL:
        error = error_text(f"denied by {command.actor}", "approval_denied")
        change = transition(job, Status.FAILED, Verb.DECIDE, command.actor, command.comment, error=error, facts=facts)
    else:
        change = transition(
            job, Status.QUEUED, Verb.DECIDE, command.actor, command.comment, run_at=now, facts=facts | {"run_at": now}
        )
    return VoteOutcome(closed, vote, change)
