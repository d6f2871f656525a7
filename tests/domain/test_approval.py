"""The effect of a vote on an approval and its job, as tables and properties."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.approval import (
    Approval,
    ApprovalKind,
    ApprovalStatus,
    CastVote,
    Decision,
    OnDeny,
    RequestApproval,
    Vote,
    VoteOutcome,
    digest,
    judge,
    refuse_approver,
    refuse_link,
)  # fmt: skip
from interlock.domain.decide import EnforceDeadline, ExpireLease, decide
from interlock.domain.edit import EditJob
from interlock.domain.lifecycle import EDGES, Status, Verb
from interlock.domain.principal import ROLES, Principal, local
from interlock.domain.retry import SECOND
from interlock.domain.timestamps import when
from interlock.domain.transition import JobState, NoChange, Transition
from interlock.errors import (
    AlreadyDecided,
    AlreadyFinished,
    ApprovalExpired,
    ApprovalVoid,
    CancelRequested,
    DigestMismatch,
    Error,
    Forbidden,
    Invalid,
    LeaseLost,
    NotEditable,
    NotFound,
    PreconditionFailed,
)  # fmt: skip

NOW = 1_000 * SECOND
LATER = NOW + 60 * SECOND
APPROVE, DENY = Decision.APPROVE, Decision.DENY
DIGEST = digest("{}", "Go on?", None, None)


def job(status: Status = Status.WAITING_FOR_APPROVAL, **fields: Any) -> JobState:
    waits = status is Status.WAITING_FOR_APPROVAL
    held = status is Status.RUNNING
    return JobState(
        **{
            "id": "j", "status": status, "attempt": 2, "max_attempts": 3, "version": 4, "fence": 7,
            "worker": "w" if held else None, "run_at": 0, "deadline": None, "lease_expires_at": LATER if held else None,
            "run_started_at": NOW, "timeout_seconds": None, "backoff": None, "expiry_delay_seconds": None, "releases": 0,
            "cancel_requested_at": None, "cancel_reason": None, "error": None, "approval_id": "g" if waits else None,
            "approval_expires_at": LATER if waits else None, **fields,
        }
    )  # fmt: skip


def an_approval(*votes: Vote, **fields: Any) -> Approval:
    return Approval(
        **{
            "tenant": "t", "id": "g", "job_id": "j", "fence": 7, "status": ApprovalStatus.OPEN, "prompt": "Go on?",
            "details": None, "risk": None, "schema": None, "digest": DIGEST, "required": 1, "on_deny": OnDeny.FAIL,
            "kind": ApprovalKind.APPROVAL, "name": None, "occurrence": 1,
            "opened_by": "worker:w", "opened_at": 0, "expires_at": LATER, "closed_by": None, "closed_at": None,
            "comment": None, "data": None, "token_sha256": None, "link_created_by": None, "link_created_at": None,
            "votes": votes, **fields,
        }
    )  # fmt: skip


def command(decision: Decision = APPROVE, actor: str = "user:a", **fields: Any) -> CastVote:
    return CastVote("g", actor, decision, **fields)


def ruled(vote: CastVote, approval: Approval, state: JobState | None = None) -> VoteOutcome:
    ruling = judge(vote, approval, state or job(), NOW)
    assert isinstance(ruling, VoteOutcome), ruling
    return ruling


def test_an_approve_queues_the_job_now_with_the_same_attempt() -> None:
    ruling = ruled(command(comment="fine", data="1"), an_approval())
    assert (ruling.approval.status, ruling.approval.closed_by) == (ApprovalStatus.APPROVED, "user:a")
    assert (ruling.approval.comment, ruling.approval.data, ruling.refusal) == ("fine", "1", None)
    assert ruling.vote == Vote("user:a", APPROVE, "fine", NOW)
    change = ruling.change
    assert change is not None
    assert (change.status, change.verb, change.attempt, change.run_at) == (Status.QUEUED, Verb.DECIDE, 2, NOW)
    assert (change.actor, change.reason, change.error, change.approval_id) == ("user:a", "fine", None, None)


@pytest.mark.parametrize(("on_deny", "status"), [(OnDeny.FAIL, Status.FAILED), (OnDeny.RESUME, Status.QUEUED)])
def test_a_denial_ends_the_job_or_resumes_it(on_deny: OnDeny, status: Status) -> None:
    ruling = ruled(command(DENY), an_approval(on_deny=on_deny))
    assert ruling.approval.status is ApprovalStatus.DENIED
    assert ruling.change is not None
    assert (ruling.change.status, ruling.change.error is not None) == (status, on_deny is OnDeny.FAIL)


CLOSED = {"closed_at": NOW, "closed_by": "user:a"}
FIRST = Vote("user:a", APPROVE, None, 5)
AGAINST = Vote("user:a", DENY, None, 5)
SECRET = b"s" * 32

REFUSALS: dict[str, tuple[CastVote, Approval, type[Error]]] = {
    "the opener itself": (command(actor="worker:w"), an_approval(), Forbidden),
    "another digest": (command(digest="0" * 64), an_approval(), DigestMismatch),
    "an empty digest": (command(digest=""), an_approval(), DigestMismatch),
    "a digest that is not ASCII": (command(digest="é"), an_approval(), DigestMismatch),
    "a token where there is none": (command(token_sha256=SECRET), an_approval(), NotFound),
    "another token": (command(token_sha256=b"x" * 32), an_approval(token_sha256=SECRET), NotFound),
    "data with a denial": (command(DENY, data="1"), an_approval(), Invalid),
    "data with several votes": (command(data="1"), an_approval(required=2), Invalid),
    "an expired approval": (command(), an_approval(status=ApprovalStatus.EXPIRED, closed_at=NOW), ApprovalExpired),
    "a void approval": (command(), an_approval(status=ApprovalStatus.VOID, closed_at=NOW), ApprovalVoid),
    "a denial after one's approval": (command(DENY), an_approval(FIRST, status=ApprovalStatus.APPROVED, **CLOSED), AlreadyDecided),
    "an approval after a denial": (command(), an_approval(AGAINST, status=ApprovalStatus.DENIED, **CLOSED), AlreadyDecided),
    "somebody else's approval": (
        command(actor="user:b"), an_approval(FIRST, status=ApprovalStatus.APPROVED, **CLOSED), AlreadyDecided,
    ),
    "other data": (command(data="2"), an_approval(FIRST, status=ApprovalStatus.APPROVED, data="1", **CLOSED), AlreadyDecided),
    "a change of mind": (command(DENY), an_approval(FIRST, required=2), AlreadyDecided),
}  # fmt: skip


@pytest.mark.parametrize(("vote", "approval", "error"), REFUSALS.values(), ids=list(REFUSALS))
def test_an_invalid_vote_is_rejected(vote: CastVote, approval: Approval, error: type[Error]) -> None:
    waits = approval.status is ApprovalStatus.OPEN
    assert isinstance(judge(vote, approval, job() if waits else job(Status.QUEUED), NOW), error)


REPEATS = {
    "an approval": (command(), an_approval(FIRST, status=ApprovalStatus.APPROVED, **CLOSED)),
    "an approval with data": (
        command(data="1"),
        an_approval(FIRST, status=ApprovalStatus.APPROVED, data="1", **CLOSED),
    ),
    "a denial": (command(DENY), an_approval(AGAINST, status=ApprovalStatus.DENIED, **CLOSED)),
    "one of several votes": (command(comment="again"), an_approval(FIRST, required=2)),
}


@pytest.mark.parametrize(("vote", "approval"), REPEATS.values(), ids=list(REPEATS))
def test_the_same_vote_again_changes_nothing(vote: CastVote, approval: Approval) -> None:
    assert ruled(vote, approval) == VoteOutcome(approval)


def test_a_late_vote_closes_an_expired_approval() -> None:
    late = ruled(command(), an_approval(), job(approval_expires_at=NOW))
    assert isinstance(late.refusal, ApprovalExpired)
    assert (late.vote, late.change and late.change.verb) == (None, Verb.EXPIRE)
    passed = ruled(command(), an_approval(), job(deadline=NOW))
    assert isinstance(passed.refusal, ApprovalVoid)
    assert (passed.vote, passed.change and passed.change.verb) == (None, Verb.PASS_DEADLINE)


@pytest.mark.parametrize("other", [job(Status.QUEUED), job(Status.RUNNING), job(approval_id="g2")])
def test_an_approval_without_a_waiting_job_decides_nothing(other: JobState) -> None:
    other = other._replace(deadline=NOW, approval_expires_at=NOW)
    assert isinstance(judge(command(), an_approval(), other, NOW), ApprovalVoid)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Decision)), max_size=12), st.integers(1, 4))
def test_votes_are_counted_once_each_and_one_denial_decides(cast: list[tuple[int, Decision]], required: int) -> None:
    approval, state = an_approval(required=required), job()
    heard: dict[int, Decision] = {}
    for voter, decision in cast:
        ruling = judge(command(decision, actor=f"user:{voter}"), approval, state, NOW)
        over = approval.status is not ApprovalStatus.OPEN
        if isinstance(ruling, Error):
            assert isinstance(ruling, AlreadyDecided)
            assert over or heard[voter] is not decision
            continue
        assert (ruling.vote is not None) == (voter not in heard)
        if ruling.vote is not None:
            assert not over
            heard[voter] = decision
        assert (ruling.change is not None) == (ruling.approval.status is not approval.status)
        approval = ruling.approval
        if ruling.change is not None:
            assert ruling.change.verb in EDGES[state.status, ruling.change.status]
            state = job(ruling.change.status, error="{}")
    in_favour = sum(decision is APPROVE for decision in heard.values())
    if DENY in heard.values():
        assert approval.status is ApprovalStatus.DENIED
        assert in_favour < required
    else:
        assert approval.status is (ApprovalStatus.APPROVED if in_favour >= required else ApprovalStatus.OPEN)
        assert in_favour <= required


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)


@given(*[st.tuples(TEXTS, TEXTS, st.none() | TEXTS, st.none() | TEXTS)] * 2)
def test_different_requests_have_different_digests(one: Any, other: Any) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_the_digest_is_sha256_over_length_and_text() -> None:
    expected = hashlib.sha256("2:{}7:é?😀-4:true".encode()).hexdigest()
    assert digest("{}", "é?😀", None, "true") == expected


def principal(*roles: str, actor: str = "user:a") -> Principal:
    return Principal("t", actor, frozenset(roles))


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        (principal("approve"), True),
        (principal("approve", "admin", "operate", "read", "produce"), True),
        (principal("admin", "operate", "read", "produce"), False),
        (principal("approve", "work"), False),
        (principal(*ROLES), False),
        (local("t"), True),  # auth is off
    ],
)
def test_only_a_principal_that_approves_and_does_not_work_may_decide(who: Principal, allowed: bool) -> None:
    fault = refuse_approver(who)
    assert fault is None if allowed else isinstance(fault, Forbidden)


@pytest.mark.parametrize(
    ("approval", "error"),
    [
        (an_approval(), None),
        (an_approval(required=2), Invalid),
        (an_approval(opened_by="user:a"), Forbidden),
        (an_approval(expires_at=NOW), ApprovalExpired),
        (an_approval(status=ApprovalStatus.EXPIRED), ApprovalExpired),
        (an_approval(status=ApprovalStatus.VOID), ApprovalVoid),
        (an_approval(status=ApprovalStatus.APPROVED), AlreadyDecided),
        (an_approval(status=ApprovalStatus.DENIED), AlreadyDecided),
    ],
)
def test_only_a_pending_approval_with_one_vote_has_a_link(approval: Approval, error: type[Error] | None) -> None:
    fault = refuse_link(approval, "user:a", NOW)
    assert fault is None if error is None else isinstance(fault, error)


OPEN = RequestApproval("j", 7, "w", "g", "Go on?")


def test_requesting_approval_ends_the_lease_and_uses_no_attempt() -> None:
    change = decide(OPEN, job(Status.RUNNING), now=NOW, chance=0.5)
    assert isinstance(change, Transition)
    assert (change.status, change.verb, change.attempt) == (Status.WAITING_FOR_APPROVAL, Verb.REQUEST_APPROVAL, 2)
    assert (change.actor, change.approval_id) == ("worker:w", "g")
    assert json.loads(change.metadata or "") == {"approval_id": "g"}


def test_a_pending_cancel_rejects_an_approval_request() -> None:
    asked = job(Status.RUNNING, cancel_requested_at=1, cancel_reason="stop")
    assert isinstance(decide(OPEN, asked, now=NOW, chance=0.5), CancelRequested)


@pytest.mark.parametrize("state", [job(), job(Status.QUEUED), job(Status.RUNNING, fence=8)])
def test_only_the_current_lease_can_request_approval(state: JobState) -> None:
    assert isinstance(decide(OPEN, state, now=NOW, chance=0.5), LeaseLost)


def test_an_approval_expires_exactly_at_its_time() -> None:
    assert decide(ExpireLease("j"), job(approval_expires_at=NOW + 1), now=NOW, chance=0.5) == NoChange()
    assert decide(ExpireLease("j"), job(approval_expires_at=None), now=NOW, chance=0.5) == NoChange()
    change = decide(ExpireLease("j"), job(approval_expires_at=NOW), now=NOW, chance=0.5)
    assert isinstance(change, Transition)
    assert (change.status, json.loads(change.error or "")["kind"]) == (Status.FAILED, "approval_expired")
    assert json.loads(change.metadata or "")["approval_id"] == "g"


def test_a_waiting_job_fails_at_its_deadline() -> None:
    change = decide(EnforceDeadline("j"), job(deadline=NOW), now=NOW, chance=0.5)
    assert isinstance(change, Transition)
    assert (change.status, json.loads(change.error or "")["kind"]) == (Status.FAILED, "deadline")


EDITS: dict[str, tuple[EditJob, JobState, dict[str, Any] | type[Error] | None]] = {
    "one field": (EditJob("j", "a", priority=3), job(Status.QUEUED), {"priority": 3}),
    "several": (
        EditJob("j", "a", run_at=9, max_attempts=2, tags=("x",)), job(Status.RETRY),
        {"run_at": 9, "max_attempts": 2, "tags": ["x"]},
    ),
    "only what differs": (EditJob("j", "a", priority=0, max_attempts=4), job(Status.QUEUED), {"max_attempts": 4}),
    "no deadline any more": (EditJob("j", "a", drop_deadline=True), job(Status.QUEUED, deadline=LATER), {"deadline": None}),
    "nothing": (EditJob("j", "a"), job(Status.QUEUED), None),
    "the same": (EditJob("j", "a", run_at=0, tags=()), job(Status.QUEUED), None),
    "the right version": (EditJob("j", "a", priority=1, expected_version=4), job(Status.QUEUED), {"priority": 1}),
    "another version": (EditJob("j", "a", priority=1, expected_version=3), job(Status.QUEUED), PreconditionFailed),
    "another version of an ended job": (EditJob("j", "a", expected_version=3), job(Status.SUCCEEDED), PreconditionFailed),
    "a running job": (EditJob("j", "a", priority=1), job(Status.RUNNING), NotEditable),
    "a waiting job": (EditJob("j", "a", priority=1), job(), NotEditable),
    "an ended job": (EditJob("j", "a", priority=1), job(Status.FAILED), AlreadyFinished),
    "too few attempts": (EditJob("j", "a", max_attempts=1), job(Status.QUEUED), Invalid),
    "a deadline that is now": (EditJob("j", "a", deadline=NOW), job(Status.QUEUED), Invalid),
}  # fmt: skip


@pytest.mark.parametrize(("order", "state", "expected"), EDITS.values(), ids=list(EDITS))
def test_an_edit_changes_what_differs_or_explains_why_not(
    order: EditJob, state: JobState, expected: dict[str, Any] | type[Error] | None
) -> None:
    outcome = decide(order, state, now=NOW, chance=0.5)
    if expected is None:
        assert outcome == NoChange()
    elif isinstance(expected, dict):
        assert isinstance(outcome, Transition)
        times = {name: when(expected[name]) for name in ("run_at", "deadline") if expected.get(name) is not None}
        assert json.loads(outcome.metadata or "") == expected | times
        assert (outcome.status, outcome.verb, outcome.attempt) == (state.status, Verb.EDIT, 2)
        assert outcome.run_at == expected.get("run_at")
        assert outcome.edited is not None
        for field, value in expected.items():
            assert getattr(outcome.edited, field) == (tuple(value) if isinstance(value, list) else value)
    else:
        assert isinstance(outcome, expected)
