"""Decisions as tables: an order and a standing in, a change or a refusal out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.decide import (
    Cancel,
    CancelAck,
    Complete,
    Expire,
    Fail,
    Order,
    PassDeadline,
    Release,
    Revoke,
    answer_repeat,
    decide,
    receipt_of,
)  # fmt: skip
from interlock.domain.job import MAX_RELEASES, HistoryRow, Receipt
from interlock.domain.lifecycle import EDGES, FINISHES, TERMINAL, Status, Verb
from interlock.domain.retry import SECOND, Backoff
from interlock.domain.timestamps import when
from interlock.domain.transition import Change, Standing, Unchanged
from interlock.errors import AlreadyFinished, Error, LeaseLost, NoCancelRequested, NotRunning

NOW = 1_000 * SECOND
ERROR = '{"message":"boom"}'
GRANT: dict[str, Any] = {"id": "j", "fence": 7, "worker": "w"}
FIXED = Backoff("fixed", base_seconds=5.0).to_text()


def standing(status: Status = Status.RUNNING, **fields: Any) -> Standing:
    held = status is Status.RUNNING
    return Standing(
        **{
            "id": "j", "status": status, "attempt": 1, "max_attempts": 3, "version": 4, "fence": 7, "worker": "w" if held else None,
            "run_at": 0, "deadline": None, "lease_expires_at": NOW + SECOND if held else None,
            "run_started_at": NOW - 60 * SECOND, "timeout_seconds": None, "backoff": FIXED, "expiry_delay_seconds": None,
            "releases": 0, "cancel_requested_at": None, "cancel_reason": None, "error": None, **fields,
        }
    )  # fmt: skip


def decided(order: Order, job: Standing) -> Change:
    change = decide(order, job, now=NOW, chance=0.5)
    assert isinstance(change, Change), change
    return change


ASKED: dict[str, Any] = {"cancel_requested_at": NOW - 1, "cancel_reason": "stop"}
LAST: dict[str, Any] = {"attempt": 3}
OFTEN: dict[str, Any] = {"releases": MAX_RELEASES}
OVER: dict[str, Any] = {"lease_expires_at": NOW}

# Order, what is special about the running job, and what becomes of it.
RUNNING: list[tuple[Order, dict[str, Any], Status, int]] = [
    (Complete(**GRANT), {}, Status.SUCCEEDED, 1),
    (Complete(**GRANT), LAST, Status.SUCCEEDED, 3),
    (Complete(**GRANT), ASKED, Status.SUCCEEDED, 1),
    (Complete(**GRANT), OVER, Status.SUCCEEDED, 1),
    (Fail(**GRANT, error=ERROR), {}, Status.RETRY, 2),
    (Fail(**GRANT, error=ERROR), LAST, Status.DEAD_LETTER, 3),
    (Fail(**GRANT, error=ERROR), ASKED, Status.CANCELLED, 1),
    (Fail(**GRANT, error=ERROR), LAST | ASKED, Status.CANCELLED, 3),
    (Fail(**GRANT, error=ERROR, retryable=False), {}, Status.FAILED, 1),
    (Fail(**GRANT, error=ERROR, retryable=False), ASKED, Status.FAILED, 1),
    (Fail(**GRANT, error=ERROR, retryable=False), LAST, Status.FAILED, 3),
    (Release(**GRANT), {}, Status.QUEUED, 1),
    (Release(**GRANT), LAST, Status.QUEUED, 3),
    (Release(**GRANT), ASKED, Status.CANCELLED, 1),
    (Release(**GRANT), {"releases": MAX_RELEASES - 1}, Status.QUEUED, 1),
    (Release(**GRANT), OFTEN, Status.RETRY, 2),
    (Release(**GRANT), OFTEN | LAST, Status.DEAD_LETTER, 3),
    (Release(**GRANT), OFTEN | ASKED, Status.CANCELLED, 1),
    (CancelAck(**GRANT), ASKED, Status.CANCELLED, 1),
    (Cancel("j", "user:a"), {}, Status.RUNNING, 1),
    (Cancel("j", "user:a", force=True), {}, Status.CANCELLED, 1),
    (Cancel("j", "user:a", force=True), ASKED, Status.CANCELLED, 1),
    (Revoke("j", "user:a"), {}, Status.RETRY, 2),
    (Revoke("j", "user:a"), LAST, Status.DEAD_LETTER, 3),
    (Revoke("j", "user:a"), ASKED, Status.CANCELLED, 1),
    (Expire("j"), OVER, Status.RETRY, 2),
    (Expire("j"), OVER | LAST, Status.DEAD_LETTER, 3),
    (Expire("j"), OVER | ASKED, Status.CANCELLED, 1),
]


@pytest.mark.parametrize(("order", "special", "status", "attempt"), RUNNING)
def test_what_an_order_makes_of_a_running_job(
    order: Order, special: dict[str, Any], status: Status, attempt: int
) -> None:
    change = decided(order, standing(**special))
    assert (change.status, change.attempt, change.verb, change.version) == (status, attempt, order.verb, 4)
    assert order.verb in EDGES[Status.RUNNING, status]


@pytest.mark.parametrize("status", Status)
def test_what_a_cancel_makes_of_each_status(status: Status) -> None:
    outcome = decide(Cancel("j", "user:a", "why"), standing(status), now=NOW, chance=0.5)
    if status is Status.CANCELLED:
        assert isinstance(outcome, Unchanged)
    elif status in TERMINAL:
        assert isinstance(outcome, AlreadyFinished)
    else:
        assert isinstance(outcome, Change)
        assert outcome.status is (Status.RUNNING if status is Status.RUNNING else Status.CANCELLED)
        assert (outcome.cancel_requested_at, outcome.cancel_reason, outcome.actor) == (NOW, "why", "user:a")
        assert outcome.metadata == '{"why":"why"}'


@pytest.mark.parametrize("status", Status)
def test_what_a_passed_deadline_makes_of_each_status(status: Status) -> None:
    outcome = decide(PassDeadline("j"), standing(status, deadline=NOW), now=NOW, chance=0.5)
    ends = {Status.QUEUED: Status.CANCELLED, Status.RETRY: Status.FAILED, Status.WAITING_FOR_APPROVAL: Status.FAILED}
    if status in ends:
        assert isinstance(outcome, Change)
        assert (outcome.status, outcome.reason, outcome.actor) == (ends[status], "deadline", "system:sweep")
    else:
        assert isinstance(outcome, Unchanged)


@pytest.mark.parametrize("deadline", [None, NOW + 1])
def test_a_deadline_that_is_not_there_or_not_passed_does_nothing(deadline: int | None) -> None:
    job = standing(Status.QUEUED, deadline=deadline)
    assert isinstance(decide(PassDeadline("j"), job, now=NOW, chance=0.5), Unchanged)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
def test_revoke_and_expire_leave_what_does_not_run_alone(status: Status) -> None:
    assert isinstance(decide(Revoke("j", "user:a"), standing(status), now=NOW, chance=0.5), AlreadyFinished)
    assert isinstance(decide(Expire("j"), standing(status), now=NOW, chance=0.5), Unchanged)


def test_a_lease_expires_at_its_time_and_not_before() -> None:
    early = standing(lease_expires_at=NOW + 1)
    assert isinstance(decide(Expire("j"), early, now=NOW, chance=0.5), Unchanged)
    assert decided(Expire("j"), standing(lease_expires_at=NOW)).status is Status.RETRY


@pytest.mark.parametrize(
    ("timeout", "kind"), [(None, "lease_expired"), (60.0, "timeout"), (59.0, "timeout"), (60.00001, "lease_expired")]
)
def test_an_expiry_says_whether_the_run_took_too_long(timeout: float | None, kind: str) -> None:
    change = decided(Expire("j"), standing(timeout_seconds=timeout, **OVER))
    assert change.reason == kind
    assert json.loads(change.error or "")["kind"] == kind


FINISH: list[Order] = [Complete(**GRANT), Fail(**GRANT, error=ERROR), Release(**GRANT), CancelAck(**GRANT)]


@pytest.mark.parametrize("order", FINISH)
@pytest.mark.parametrize(
    "job",
    [
        *(standing(status) for status in Status if status is not Status.RUNNING),
        standing(fence=8, **ASKED),
        standing(fence=6, **ASKED),
        standing(worker="other", **ASKED),
    ],
)
def test_only_the_current_grant_finishes(order: Order, job: Standing) -> None:
    assert isinstance(decide(order, job, now=NOW, chance=0.5), LeaseLost)


def test_an_ack_needs_a_request() -> None:
    assert isinstance(decide(CancelAck(**GRANT), standing(), now=NOW, chance=0.5), NoCancelRequested)


def test_a_second_request_to_cancel_changes_nothing() -> None:
    assert isinstance(decide(Cancel("j", "user:b", "again"), standing(**ASKED), now=NOW, chance=0.5), Unchanged)


@pytest.mark.parametrize(
    ("release", "run_at"),
    [
        (Release(**GRANT), NOW),
        (Release(**GRANT, delay_seconds=2.5), NOW + 2_500_000),
        (Release(**GRANT, run_at=NOW + 7), NOW + 7),
        (Release(**GRANT, run_at=NOW - 7), NOW),
    ],
)
def test_when_a_released_job_is_due(release: Release, run_at: int) -> None:
    change = decided(release, standing())
    assert (change.run_at, change.releases, change.attempt) == (run_at, 1, 1)


def test_a_failure_waits_as_the_job_says_and_an_expiry_as_the_job_says() -> None:
    job = standing(expiry_delay_seconds=3.0, **OVER)
    assert decided(Fail(**GRANT, error=ERROR), job).run_at == NOW + 5 * SECOND
    assert decided(Fail(**GRANT, error=ERROR, retry_after_seconds=9.0), job).run_at == NOW + 9 * SECOND
    assert decided(Expire("j"), job).run_at == decided(Revoke("j", "user:a"), job).run_at == NOW + 3 * SECOND


def test_metadata_has_the_error_as_reported_and_the_next_try() -> None:
    odd = '{"message": "\\u0000", "n": 1.0}'
    change = decided(Fail(**GRANT, error=odd), standing())
    assert change.metadata == f'{{"error":{odd},"attempt":2,"run_at":"{when(NOW + 5 * SECOND)}"}}'


def ended_by(verb: Verb, actor: str = "worker:w", **fields: Any) -> HistoryRow:
    row = HistoryRow(
        "j",
        5,
        Status.RUNNING,
        Status.QUEUED,
        verb,
        actor,
        1,
        7,
        None,
        '{"run_at":"1970-01-01T00:00:00.000012Z"}',
        99,
        b"",
    )
    return row._replace(**fields)


@pytest.mark.parametrize("verb", Verb)
def test_what_a_worker_hears_of_a_grant_that_is_over(verb: Verb) -> None:
    row = ended_by(verb)
    for asked in sorted(FINISHES):
        answer = answer_repeat(row, asked, "j", 7, "w")
        if verb not in FINISHES:
            assert isinstance(answer, LeaseLost)
        elif verb is asked:
            assert answer == Receipt("j", 7, Status.QUEUED, 1, 5, 12, None)
        else:
            assert isinstance(answer, AlreadyFinished)
    beat = answer_repeat(row, None, "j", 7, "w")
    assert type(beat) is (NotRunning if verb in FINISHES else LeaseLost)


def test_a_grant_of_another_worker_or_of_nobody_is_lost() -> None:
    assert isinstance(answer_repeat(ended_by(Verb.COMPLETE), Verb.COMPLETE, "j", 7, "other"), LeaseLost)
    assert isinstance(answer_repeat(None, Verb.COMPLETE, "j", 7, "w"), LeaseLost)


orders = st.one_of(
    st.just(Complete(**GRANT)),
    st.builds(Fail, **{k: st.just(v) for k, v in GRANT.items()}, error=st.just(ERROR), retryable=st.booleans(),
              retry_after_seconds=st.none() | st.floats(0, 1e6), sanitized=st.booleans(), verb=st.just(Verb.FAIL)),
    st.builds(Release, **{k: st.just(v) for k, v in GRANT.items()}, reason=st.none() | st.text(), run_at=st.none() | st.integers(0, 2 * NOW),
              delay_seconds=st.none(), children=st.just(()), verb=st.just(Verb.RELEASE)),
    st.just(CancelAck(**GRANT)),
    st.builds(Cancel, id=st.just("j"), actor=st.just("user:a"), reason=st.none() | st.text(), force=st.booleans(), verb=st.just(Verb.CANCEL)),
    st.just(Revoke("j", "user:a")),
    st.just(Expire("j")),
    st.just(PassDeadline("j")),
)  # fmt: skip


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    status = draw(st.sampled_from(Status))
    max_attempts = draw(st.integers(1, 5))
    return standing(
        status,
        max_attempts=max_attempts,
        attempt=draw(st.integers(1, max_attempts)),
        fence=draw(st.sampled_from((6, 7))),
        deadline=draw(st.none() | st.integers(NOW - 5, NOW + 5)),
        lease_expires_at=draw(st.integers(NOW - 5, NOW + 5)) if status is Status.RUNNING else None,
        timeout_seconds=draw(st.none() | st.floats(0.1, 120)),
        releases=draw(st.sampled_from((0, MAX_RELEASES - 1, MAX_RELEASES))),
        cancel_requested_at=draw(st.none() | st.just(NOW - 1)),
        error=draw(st.none() | st.just(ERROR)) if status not in (Status.FAILED, Status.DEAD_LETTER) else ERROR,
    )


@given(orders, standings(), st.floats(0, 1, exclude_max=True))
def test_no_decision_leaves_the_table_or_breaks_a_row(order: Order, job: Standing, chance: float) -> None:
    outcome = decide(order, job, now=NOW, chance=chance)
    if not isinstance(outcome, Change):
        assert isinstance(outcome, Unchanged | Error)
        return
    assert outcome.verb in EDGES[job.status, outcome.status]
    assert 1 <= outcome.attempt <= job.max_attempts
    assert outcome.attempt == job.attempt + (outcome.status is Status.RETRY)
    assert outcome.version == job.version
    if outcome.status in (Status.FAILED, Status.DEAD_LETTER, Status.RETRY):
        assert outcome.error is not None
    if outcome.status is Status.RETRY or (outcome.status is Status.QUEUED and job.status is Status.RUNNING):
        assert outcome.run_at is not None
        assert outcome.run_at >= NOW
    row = HistoryRow(
        "j", job.version + 1, job.status, outcome.status, outcome.verb, outcome.actor, job.attempt, job.fence, outcome.reason,
        outcome.metadata, NOW, b"",
    )  # fmt: skip
    receipt = receipt_of(row)
    assert (receipt.status, receipt.attempt) == (outcome.status, outcome.attempt)
    assert receipt.run_at == outcome.run_at
    assert receipt.finished_at == (NOW if outcome.status in TERMINAL else None)
