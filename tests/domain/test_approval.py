"""What a ballot does to a gate and its job, as tables and properties."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.approval import (
    Approval,
    Ballot,
    Decision,
    GateStatus,
    OnDeny,
    OpenGate,
    Ruling,
    Vote,
    digest,
    judge,
    refuse_approver,
    refuse_link,
)  # fmt: skip
from interlock.domain.decide import Expire, PassDeadline, decide
from interlock.domain.edit import Edit
from interlock.domain.lifecycle import EDGES, Status, Verb
from interlock.domain.principal import ROLES, Principal, local
from interlock.domain.retry import SECOND
from interlock.domain.timestamps import when
from interlock.domain.transition import Change, Standing, Unchanged
from interlock.errors import (
    AlreadyDecided,
    AlreadyFinished,
    CancelRequested,
    DigestMismatch,
    Error,
    Forbidden,
    GateExpired,
    GateVoid,
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


def job(status: Status = Status.WAITING_FOR_APPROVAL, **fields: Any) -> Standing:
    waits = status is Status.WAITING_FOR_APPROVAL
    held = status is Status.RUNNING
    return Standing(
        **{
            "id": "j", "status": status, "attempt": 2, "max_attempts": 3, "version": 4, "fence": 7,
            "worker": "w" if held else None, "run_at": 0, "deadline": None, "lease_expires_at": LATER if held else None,
            "run_started_at": NOW, "timeout_seconds": None, "backoff": None, "expiry_delay_seconds": None, "releases": 0,
            "cancel_requested_at": None, "cancel_reason": None, "error": None, "gate_id": "g" if waits else None,
            "gate_expires_at": LATER if waits else None, **fields,
        }
    )  # fmt: skip


def gate(*votes: Vote, **fields: Any) -> Approval:
    return Approval(
        **{
            "tenant": "t", "id": "g", "job_id": "j", "fence": 7, "status": GateStatus.OPEN, "prompt": "Go on?",
            "details": None, "risk": None, "schema": None, "digest": DIGEST, "required": 1, "on_deny": OnDeny.FAIL,
            "name": None, "occurrence": 1,
            "opened_by": "worker:w", "opened_at": 0, "expires_at": LATER, "closed_by": None, "closed_at": None,
            "comment": None, "data": None, "token_sha256": None, "token_minted_by": None, "token_minted_at": None,
            "votes": votes, **fields,
        }
    )  # fmt: skip


def ballot(decision: Decision = APPROVE, actor: str = "user:a", **fields: Any) -> Ballot:
    return Ballot("g", actor, decision, **fields)


def ruled(vote: Ballot, approval: Approval, standing: Standing | None = None) -> Ruling:
    ruling = judge(vote, approval, standing or job(), NOW)
    assert isinstance(ruling, Ruling), ruling
    return ruling


def test_an_approval_queues_the_job_now_with_the_same_attempt() -> None:
    ruling = ruled(ballot(comment="fine", data="1"), gate())
    assert (ruling.approval.status, ruling.approval.closed_by) == (GateStatus.APPROVED, "user:a")
    assert (ruling.approval.comment, ruling.approval.data, ruling.refusal) == ("fine", "1", None)
    assert ruling.vote == Vote("user:a", APPROVE, "fine", NOW)
    change = ruling.change
    assert change is not None
    assert (change.status, change.verb, change.attempt, change.run_at) == (Status.QUEUED, Verb.DECIDE, 2, NOW)
    assert (change.actor, change.reason, change.error, change.gate_id) == ("user:a", "fine", None, None)


@pytest.mark.parametrize(("on_deny", "status"), [(OnDeny.FAIL, Status.FAILED), (OnDeny.RESUME, Status.QUEUED)])
def test_a_denial_ends_the_job_or_lets_it_go_on(on_deny: OnDeny, status: Status) -> None:
    ruling = ruled(ballot(DENY), gate(on_deny=on_deny))
    assert ruling.approval.status is GateStatus.DENIED
    assert ruling.change is not None
    assert (ruling.change.status, ruling.change.error is not None) == (status, on_deny is OnDeny.FAIL)


CLOSED = {"closed_at": NOW, "closed_by": "user:a"}
FIRST = Vote("user:a", APPROVE, None, 5)
AGAINST = Vote("user:a", DENY, None, 5)
SECRET = b"s" * 32

REFUSALS: dict[str, tuple[Ballot, Approval, type[Error]]] = {
    "the opener itself": (ballot(actor="worker:w"), gate(), Forbidden),
    "another digest": (ballot(digest="0" * 64), gate(), DigestMismatch),
    "an empty digest": (ballot(digest=""), gate(), DigestMismatch),
    "a digest that is no ASCII": (ballot(digest="é"), gate(), DigestMismatch),
    "a token where there is none": (ballot(token_sha256=SECRET), gate(), NotFound),
    "another token": (ballot(token_sha256=b"x" * 32), gate(token_sha256=SECRET), NotFound),
    "data with a denial": (ballot(DENY, data="1"), gate(), Invalid),
    "data with several votes": (ballot(data="1"), gate(required=2), Invalid),
    "an expired gate": (ballot(), gate(status=GateStatus.EXPIRED, closed_at=NOW), GateExpired),
    "a void gate": (ballot(), gate(status=GateStatus.VOID, closed_at=NOW), GateVoid),
    "a denial after one's approval": (ballot(DENY), gate(FIRST, status=GateStatus.APPROVED, **CLOSED), AlreadyDecided),
    "an approval after a denial": (ballot(), gate(AGAINST, status=GateStatus.DENIED, **CLOSED), AlreadyDecided),
    "somebody else's approval": (
        ballot(actor="user:b"), gate(FIRST, status=GateStatus.APPROVED, **CLOSED), AlreadyDecided,
    ),
    "other data": (ballot(data="2"), gate(FIRST, status=GateStatus.APPROVED, data="1", **CLOSED), AlreadyDecided),
    "a change of mind": (ballot(DENY), gate(FIRST, required=2), AlreadyDecided),
}  # fmt: skip


@pytest.mark.parametrize(("vote", "approval", "error"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_ballot_is_refused(vote: Ballot, approval: Approval, error: type[Error]) -> None:
    waits = approval.status is GateStatus.OPEN
    assert isinstance(judge(vote, approval, job() if waits else job(Status.QUEUED), NOW), error)


REPEATS = {
    "an approval": (ballot(), gate(FIRST, status=GateStatus.APPROVED, **CLOSED)),
    "an approval with data": (ballot(data="1"), gate(FIRST, status=GateStatus.APPROVED, data="1", **CLOSED)),
    "a denial": (ballot(DENY), gate(AGAINST, status=GateStatus.DENIED, **CLOSED)),
    "one of several votes": (ballot(comment="again"), gate(FIRST, required=2)),
}


@pytest.mark.parametrize(("vote", "approval"), REPEATS.values(), ids=list(REPEATS))
def test_the_same_vote_again_changes_nothing(vote: Ballot, approval: Approval) -> None:
    assert ruled(vote, approval) == Ruling(approval)


def test_what_the_clock_has_closed_is_closed_by_a_late_ballot() -> None:
    late = ruled(ballot(), gate(), job(gate_expires_at=NOW))
    assert isinstance(late.refusal, GateExpired)
    assert (late.vote, late.change and late.change.verb) == (None, Verb.EXPIRE)
    passed = ruled(ballot(), gate(), job(deadline=NOW))
    assert isinstance(passed.refusal, GateVoid)
    assert (passed.vote, passed.change and passed.change.verb) == (None, Verb.PASS_DEADLINE)


@pytest.mark.parametrize("other", [job(Status.QUEUED), job(Status.RUNNING), job(gate_id="g2")])
def test_a_gate_that_no_job_waits_for_decides_nothing(other: Standing) -> None:
    other = other._replace(deadline=NOW, gate_expires_at=NOW)
    assert isinstance(judge(ballot(), gate(), other, NOW), GateVoid)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Decision)), max_size=12), st.integers(1, 4))
def test_votes_are_counted_once_each_and_one_denial_decides(cast: list[tuple[int, Decision]], required: int) -> None:
    approval, standing = gate(required=required), job()
    heard: dict[int, Decision] = {}
    for voter, decision in cast:
        ruling = judge(ballot(decision, actor=f"user:{voter}"), approval, standing, NOW)
        over = approval.status is not GateStatus.OPEN
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
            assert ruling.change.verb in EDGES[standing.status, ruling.change.status]
            standing = job(ruling.change.status, error="{}")
    in_favour = sum(decision is APPROVE for decision in heard.values())
    if DENY in heard.values():
        assert approval.status is GateStatus.DENIED
        assert in_favour < required
    else:
        assert approval.status is (GateStatus.APPROVED if in_favour >= required else GateStatus.OPEN)
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
        (gate(), None),
        (gate(required=2), Invalid),
        (gate(opened_by="user:a"), Forbidden),
        (gate(expires_at=NOW), GateExpired),
        (gate(status=GateStatus.EXPIRED), GateExpired),
        (gate(status=GateStatus.VOID), GateVoid),
        (gate(status=GateStatus.APPROVED), AlreadyDecided),
        (gate(status=GateStatus.DENIED), AlreadyDecided),
    ],
)
def test_only_an_open_gate_for_one_vote_has_a_link(approval: Approval, error: type[Error] | None) -> None:
    fault = refuse_link(approval, "user:a", NOW)
    assert fault is None if error is None else isinstance(fault, error)


OPEN = OpenGate("j", 7, "w", "g", "Go on?")


def test_opening_a_gate_ends_the_grant_and_spends_no_attempt() -> None:
    change = decide(OPEN, job(Status.RUNNING), now=NOW, chance=0.5)
    assert isinstance(change, Change)
    assert (change.status, change.verb, change.attempt) == (Status.WAITING_FOR_APPROVAL, Verb.OPEN_GATE, 2)
    assert (change.actor, change.gate_id) == ("worker:w", "g")
    assert json.loads(change.metadata or "") == {"gate_id": "g"}


def test_a_pending_cancel_beats_a_gate() -> None:
    asked = job(Status.RUNNING, cancel_requested_at=1, cancel_reason="stop")
    assert isinstance(decide(OPEN, asked, now=NOW, chance=0.5), CancelRequested)


@pytest.mark.parametrize("standing", [job(), job(Status.QUEUED), job(Status.RUNNING, fence=8)])
def test_only_the_current_grant_opens_a_gate(standing: Standing) -> None:
    assert isinstance(decide(OPEN, standing, now=NOW, chance=0.5), LeaseLost)


def test_a_gate_expires_exactly_at_its_time() -> None:
    assert decide(Expire("j"), job(gate_expires_at=NOW + 1), now=NOW, chance=0.5) == Unchanged()
    assert decide(Expire("j"), job(gate_expires_at=None), now=NOW, chance=0.5) == Unchanged()
    change = decide(Expire("j"), job(gate_expires_at=NOW), now=NOW, chance=0.5)
    assert isinstance(change, Change)
    assert (change.status, json.loads(change.error or "")["kind"]) == (Status.FAILED, "approval_expired")
    assert json.loads(change.metadata or "")["gate_id"] == "g"


def test_a_waiting_job_fails_at_its_deadline() -> None:
    change = decide(PassDeadline("j"), job(deadline=NOW), now=NOW, chance=0.5)
    assert isinstance(change, Change)
    assert (change.status, json.loads(change.error or "")["kind"]) == (Status.FAILED, "deadline")


EDITS: dict[str, tuple[Edit, Standing, dict[str, Any] | type[Error] | None]] = {
    "one field": (Edit("j", "a", priority=3), job(Status.QUEUED), {"priority": 3}),
    "several": (
        Edit("j", "a", run_at=9, max_attempts=2, tags=("x",)), job(Status.RETRY),
        {"run_at": 9, "max_attempts": 2, "tags": ["x"]},
    ),
    "only what differs": (Edit("j", "a", priority=0, max_attempts=4), job(Status.QUEUED), {"max_attempts": 4}),
    "no deadline any more": (Edit("j", "a", drop_deadline=True), job(Status.QUEUED, deadline=LATER), {"deadline": None}),
    "nothing": (Edit("j", "a"), job(Status.QUEUED), None),
    "the same": (Edit("j", "a", run_at=0, tags=()), job(Status.QUEUED), None),
    "the right version": (Edit("j", "a", priority=1, expected_version=4), job(Status.QUEUED), {"priority": 1}),
    "another version": (Edit("j", "a", priority=1, expected_version=3), job(Status.QUEUED), PreconditionFailed),
    "another version of an ended job": (Edit("j", "a", expected_version=3), job(Status.SUCCEEDED), PreconditionFailed),
    "a running job": (Edit("j", "a", priority=1), job(Status.RUNNING), NotEditable),
    "a waiting job": (Edit("j", "a", priority=1), job(), NotEditable),
    "an ended job": (Edit("j", "a", priority=1), job(Status.FAILED), AlreadyFinished),
    "too few attempts": (Edit("j", "a", max_attempts=1), job(Status.QUEUED), Invalid),
    "a deadline that is now": (Edit("j", "a", deadline=NOW), job(Status.QUEUED), Invalid),
}  # fmt: skip


@pytest.mark.parametrize(("order", "standing", "expected"), EDITS.values(), ids=list(EDITS))
def test_an_edit_changes_what_differs_or_says_why_not(
    order: Edit, standing: Standing, expected: dict[str, Any] | type[Error] | None
) -> None:
    outcome = decide(order, standing, now=NOW, chance=0.5)
    if expected is None:
        assert outcome == Unchanged()
    elif isinstance(expected, dict):
        assert isinstance(outcome, Change)
        times = {name: when(expected[name]) for name in ("run_at", "deadline") if expected.get(name) is not None}
        assert json.loads(outcome.metadata or "") == expected | times
        assert (outcome.status, outcome.verb, outcome.attempt) == (standing.status, Verb.EDIT, 2)
        assert outcome.run_at == expected.get("run_at")
        assert outcome.edited is not None
        for field, value in expected.items():
            assert getattr(outcome.edited, field) == (tuple(value) if isinstance(value, list) else value)
    else:
        assert isinstance(outcome, expected)
