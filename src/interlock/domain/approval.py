"""Gates: a pause of a job until people have decided. What is asked, who has voted, and what a vote does."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

from interlock.domain.expiry import expire_approval, pass_deadline
from interlock.domain.job import Checkpoint
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.principal import Principal
from interlock.domain.transition import JobState, Transition, error_text, transition
from interlock.errors import (
    AlreadyDecided,
    ApprovalExpired,
    ApprovalVoid,
    DigestMismatch,
    Error,
    Forbidden,
    Invalid,
    NotFound,
)  # fmt: skip

DEFAULT_EXPIRY_SECONDS: Final = 86_400.0
MAX_EXPIRY_SECONDS: Final = 7 * 86_400.0
MAX_VOTES: Final = 100


class ApprovalStatus(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"


class Decision(StrEnum):
    APPROVE = "approve"
    DENY = "deny"


class OnDeny(StrEnum):
    """What a denial does to the job: end it, or let it go on and know."""

    FAIL = "fail"
    RESUME = "resume"


class RequestApproval(NamedTuple):
    """A worker gives up its lease until people have decided; details and schema are JSON."""

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
    opened_by: str = ""  # the credential behind the worker; the worker itself where there is none
    checkpoint: Checkpoint | None = None
    sanitized: bool = False
    name: str | None = None  # by which a later run finds the decision
    occurrence: int | None = None  # of the name in a run, from 1; None: the next of this job
    verb: Verb = Verb.REQUEST_APPROVAL


class Vote(NamedTuple):
    """The vote of one principal."""

    voter: str
    decision: Decision
    comment: str | None
    at: int


class Approval(NamedTuple):
    """A gate as it is now; details, schema and data are JSON. Of a link token only the SHA-256 is known."""

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
        """How it was decided, if it was."""
        return {ApprovalStatus.APPROVED: Decision.APPROVE, ApprovalStatus.DENIED: Decision.DENY}.get(self.status)


class CastVote(NamedTuple):
    """A decision about the gate with this id; data is JSON. A bearer of a link proves it by the hash of its token."""

    id: str
    actor: str
    decision: Decision
    comment: str | None = None
    data: str | None = None
    digest: str | None = None
    token_sha256: bytes | None = None


class CreateApprovalLink(NamedTuple):
    """A new link token for the gate with this id; the one before is void."""

    id: str
    actor: str
    token_sha256: bytes


class ApprovalFilter(NamedTuple):
    """Which gates a list shows: newest first, from the place (opened_at, id) on; if urgent, open ones by their end."""

    status: ApprovalStatus | None = None
    job_id: str | None = None
    fence: int | None = None  # with a job: the gate that its grant with this fence opened
    before: tuple[int, str] | None = None
    limit: int = 50
    urgent: bool = False  # open ones, those that end first, from the place (expires_at, id) on

    def cursor_of(self, approval: Approval) -> tuple[int, str]:
        """Where a page that ends with this gate is gone on from."""
        return (approval.expires_at if self.urgent else approval.opened_at), approval.id


class VoteOutcome(NamedTuple):
    """What a ballot does: the approval as it is afterwards, the vote and the change of the job to write, if any.

    A refusal beside a change means that the clock had closed the gate already.
    """

    approval: Approval
    vote: Vote | None = None
    change: Transition | None = None
    refusal: Error | None = None


def digest(payload: str, prompt: str, details: str | None, schema: str | None) -> str:
    """SHA-256 over each text as length:text, where a null is a dash; lengths count bytes."""
    parts = ("-" if text is None else f"{len(text.encode())}:{text}" for text in (payload, prompt, details, schema))
    return sha256("".join(parts).encode()).hexdigest()


def refuse_approver(who: Principal) -> Error | None:
    """Why this caller may neither decide nor hand out links: whoever works asks, and must not answer."""
    if who.unchecked:
        return None
    if not who.may("approve"):
        return Forbidden("this needs the role approve")
    return Forbidden("a credential that works cannot approve") if who.may("work") else None


def refuse_link(approval: Approval, actor: str, now: int) -> Error | None:
    """Why this gate can have no link token, or not from this caller."""
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
    """What a ballot does to a gate and its job, both read under the lock of the job."""
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
    """What is wrong with a ballot whatever the gate has become."""
    if command.token_sha256 is not None and not compare_digest(command.token_sha256, approval.token_sha256 or b""):
        return NotFound("", what="approval")
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
    """One denial decides; approvals decide when there are enough."""
    in_favour = sum(v.decision is Decision.APPROVE for v in approval.votes)
    if vote.decision is Decision.APPROVE and in_favour < approval.required:
        return VoteOutcome(approval, vote)
    status = ApprovalStatus.APPROVED if vote.decision is Decision.APPROVE else ApprovalStatus.DENIED
    closed = approval._replace(
        status=status, closed_by=command.actor, closed_at=now, comment=command.comment, data=command.data
    )
    facts = {"approval_id": approval.id, "decision": str(command.decision)}
    if status is ApprovalStatus.DENIED and approval.on_deny is OnDeny.FAIL:
        error = error_text(f"denied by {command.actor}", "approval_denied")
        change = transition(job, Status.FAILED, Verb.DECIDE, command.actor, command.comment, error=error, facts=facts)
    else:
        change = transition(
            job, Status.QUEUED, Verb.DECIDE, command.actor, command.comment, run_at=now, facts=facts | {"run_at": now}
        )
    return VoteOutcome(closed, vote, change)
