"""Decisions as tables: a command and a job state in, a transition or an error out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.decide import (
    AcknowledgeCancel,
    CancelJob,
    Command,
    CompleteJob,
    EnforceDeadline,
    ExpireLease,
    FailJob,
    ReleaseJob,
    RevokeLease,
    decide,
    receipt_of,
    result_of_repeat,
)  # fmt: skip
from interlock.domain.job import MAX_RELEASES, HistoryRow, Receipt
from interlock.domain.lifecycle import EDGES, FINISHES, TERMINAL, Status, Verb
from interlock.domain.retry import SECOND, Backoff
from interlock.domain.timestamps import when
from interlock.domain.transition import JobState, NoChange, Transition
from interlock.errors import AlreadyFinished, Error, LeaseLost, NoCancelRequested, NotRunning

NOW = 1_000 * SECOND
ERROR = '{"message":"boom"}'
LEASE: dict[str, Any] = {"id": "j", "fence": 7, "worker": "w"}
FIXED = Backoff("fixed", base_seconds=5.0).to_text()


def state(status: Status = Status.RUNNING, **fields: Any) -> JobState:
    held = status is Status.RUNNING
    return JobState(
        **{
            "id": "j", "status": status, "attempt": 1, "max_attempts": 3, "version": 4, "fence": 7, "worker": "w" if held else None,
            "run_at": 0, "deadline": None, "lease_expires_at": NOW + SECOND if held else None,
            "run_started_at": NOW - 60 * SECOND, "timeout_seconds": None, "backoff": FIXED, "expiry_delay_seconds": None,
            "releases": 0, "cancel_requested_at": None, "cancel_reason": None, "error": None, **fields,
        }
    )  # fmt: skip


def decided(order: Command, job: JobState) -> Transition:
    change = decide(order, job, now=NOW, chance=0.5)
    assert isinstance(change, Transition), change
    return change


ASKED: dict[str, Any] = {"cancel_requested_at": NOW - 1, "cancel_reason": "stop"}
LAST: dict[str, Any] = {"attempt": 3}
OFTEN: dict[str, Any] = {"releases": MAX_RELEASES}
OVER: dict[str, Any] = {"lease_expires_at": NOW}

# Command, the special fields of the running job, and the outcome.
RUNNING: list[tuple[Command, dict[str, Any], Status, int]] = [
    (CompleteJob(**LEASE), {}, Status.SUCCEEDED, 1),
    (CompleteJob(**LEASE), LAST, Status.SUCCEEDED, 3),
    (CompleteJob(**LEASE), ASKED, Status.SUCCEEDED, 1),
    (CompleteJob(**LEASE), OVER, Status.SUCCEEDED, 1),
    (FailJob(**LEASE, error=ERROR), {}, Status.RETRY, 2),
    (FailJob(**LEASE, error=ERROR), LAST, Status.DEAD_LETTER, 3),
    (FailJob(**LEASE, error=ERROR), ASKED, Status.CANCELLED, 1),
    (FailJob(**LEASE, error=ERROR), LAST | ASKED, Status.CANCELLED, 3),
    (FailJob(**LEASE, error=ERROR, retryable=False), {}, Status.FAILED, 1),
    (FailJob(**LEASE, error=ERROR, retryable=False), ASKED, Status.FAILED, 1),
    (FailJob(**LEASE, error=ERROR, retryable=False), LAST, Status.FAILED, 3),
    (ReleaseJob(**LEASE), {}, Status.QUEUED, 1),
    (ReleaseJob(**LEASE), LAST, Status.QUEUED, 3),
    (ReleaseJob(**LEASE), ASKED, Status.CANCELLED, 1),
    (ReleaseJob(**LEASE), {"releases": MAX_RELEASES - 1}, Status.QUEUED, 1),
    (ReleaseJob(**LEASE), OFTEN, Status.RETRY, 2),
    (ReleaseJob(**LEASE), OFTEN | LAST, Status.DEAD_LETTER, 3),
    (ReleaseJob(**LEASE), OFTEN | ASKED, Status.CANCELLED, 1),
    (AcknowledgeCancel(**LEASE), ASKED, Status.CANCELLED, 1),
    (CancelJob("j", "user:a"), {}, Status.RUNNING, 1),
    (CancelJob("j", "user:a", force=True), {}, Status.CANCELLED, 1),
    (CancelJob("j", "user:a", force=True), ASKED, Status.CANCELLED, 1),
    (RevokeLease("j", "user:a"), {}, Status.RETRY, 2),
    (RevokeLease("j", "user:a"), LAST, Status.DEAD_LETTER, 3),
    (RevokeLease("j", "user:a"), ASKED, Status.CANCELLED, 1),
    (ExpireLease("j"), OVER, Status.RETRY, 2),
    (ExpireLease("j"), OVER | LAST, Status.DEAD_LETTER, 3),
    (ExpireLease("j"), OVER | ASKED, Status.CANCELLED, 1),
]


@pytest.mark.parametrize(("order", "special", "status", "attempt"), RUNNING)
def test_each_command_has_its_effect_on_a_running_job(
    order: Command, special: dict[str, Any], status: Status, attempt: int
) -> None:
    change = decided(order, state(**special))
    assert (change.status, change.attempt, change.verb, change.version) == (status, attempt, order.verb, 4)
    assert order.verb in EDGES[Status.RUNNING, status]


@pytest.mark.parametrize("status", Status)
def test_a_cancel_has_its_effect_in_each_status(status: Status) -> None:
    outcome = decide(CancelJob("j", "user:a", "why"), state(status), now=NOW, chance=0.5)
    if status is Status.CANCELLED:
        assert isinstance(outcome, NoChange)
    elif status in TERMINAL:
        assert isinstance(outcome, AlreadyFinished)
    else:
        assert isinstance(outcome, Transition)
        assert outcome.status is (Status.RUNNING if status is Status.RUNNING else Status.CANCELLED)
        assert (outcome.cancel_requested_at, outcome.cancel_reason, outcome.actor) == (NOW, "why", "user:a")
        assert outcome.metadata == '{"why":"why"}'


@pytest.mark.parametrize("status", Status)
def test_a_passed_deadline_has_its_effect_in_each_status(status: Status) -> None:
    outcome = decide(EnforceDeadline("j"), state(status, deadline=NOW), now=NOW, chance=0.5)
    ends = {Status.QUEUED: Status.CANCELLED, Status.RETRY: Status.FAILED, Status.WAITING_FOR_APPROVAL: Status.FAILED}
    if status in ends:
        assert isinstance(outcome, Transition)
        assert (outcome.status, outcome.reason, outcome.actor) == (ends[status], "deadline", "system:sweep")
    else:
        assert isinstance(outcome, NoChange)


@pytest.mark.parametrize("deadline", [None, NOW + 1])
def test_a_missing_or_future_deadline_does_nothing(deadline: int | None) -> None:
    job = state(Status.QUEUED, deadline=deadline)
    assert isinstance(decide(EnforceDeadline("j"), job, now=NOW, chance=0.5), NoChange)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
def test_revoke_and_expire_do_not_affect_jobs_that_are_not_running(status: Status) -> None:
    assert isinstance(decide(RevokeLease("j", "user:a"), state(status), now=NOW, chance=0.5), AlreadyFinished)
    assert isinstance(decide(ExpireLease("j"), state(status), now=NOW, chance=0.5), NoChange)


def test_a_lease_expires_at_its_time_and_not_before() -> None:
    early = state(lease_expires_at=NOW + 1)
    assert isinstance(decide(ExpireLease("j"), early, now=NOW, chance=0.5), NoChange)
    assert decided(ExpireLease("j"), state(lease_expires_at=NOW)).status is Status.RETRY


@pytest.mark.parametrize(
    ("timeout", "kind"), [(None, "lease_expired"), (60.0, "timeout"), (59.0, "timeout"), (60.00001, "lease_expired")]
)
def test_an_expiry_records_whether_the_run_reached_its_timeout(timeout: float | None, kind: str) -> None:
    change = decided(ExpireLease("j"), state(timeout_seconds=timeout, **OVER))
    assert change.reason == kind
    assert json.loads(change.error or "")["kind"] == kind


FINISH: list[Command] = [
    CompleteJob(**LEASE),
    FailJob(**LEASE, error=ERROR),
    ReleaseJob(**LEASE),
    AcknowledgeCancel(**LEASE),
]


@pytest.mark.parametrize("order", FINISH)
@pytest.mark.parametrize(
    "job",
    [
        *(state(status) for status in Status if status is not Status.RUNNING),
        state(fence=8, **ASKED),
        state(fence=6, **ASKED),
        state(worker="other", **ASKED),
    ],
)
def test_only_the_current_lease_finishes(order: Command, job: JobState) -> None:
    assert isinstance(decide(order, job, now=NOW, chance=0.5), LeaseLost)


def test_an_acknowledgement_needs_a_cancel_request() -> None:
    assert isinstance(decide(AcknowledgeCancel(**LEASE), state(), now=NOW, chance=0.5), NoCancelRequested)


def test_a_second_cancel_request_changes_nothing() -> None:
    assert isinstance(decide(CancelJob("j", "user:b", "again"), state(**ASKED), now=NOW, chance=0.5), NoChange)


@pytest.mark.parametrize(
    ("release", "run_at"),
    [
        (ReleaseJob(**LEASE), NOW),
        (ReleaseJob(**LEASE, delay_seconds=2.5), NOW + 2_500_000),
        (ReleaseJob(**LEASE, run_at=NOW + 7), NOW + 7),
        (ReleaseJob(**LEASE, run_at=NOW - 7), NOW),
    ],
)
def test_the_due_time_of_a_released_job(release: ReleaseJob, run_at: int) -> None:
    change = decided(release, state())
    assert (change.run_at, change.releases, change.attempt) == (run_at, int(run_at == NOW), 1)


def test_a_failure_and_an_expiry_use_the_delays_of_the_job() -> None:
    job = state(expiry_delay_seconds=3.0, **OVER)
    assert decided(FailJob(**LEASE, error=ERROR), job).run_at == NOW + 5 * SECOND
    assert decided(FailJob(**LEASE, error=ERROR, retry_after_seconds=9.0), job).run_at == NOW + 9 * SECOND
    assert decided(ExpireLease("j"), job).run_at == decided(RevokeLease("j", "user:a"), job).run_at == NOW + 3 * SECOND


def test_metadata_has_the_error_as_reported_and_the_next_attempt() -> None:
    odd = '{"message": "\\u0000", "n": 1.0}'
    change = decided(FailJob(**LEASE, error=odd), state())
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
def test_the_error_of_an_ended_lease_names_its_end(verb: Verb) -> None:
    row = ended_by(verb)
    for asked in sorted(FINISHES):
        answer = result_of_repeat(row, asked, "j", 7, "w")
        if verb not in FINISHES:
            assert isinstance(answer, LeaseLost)
        elif verb is asked:
            assert answer == Receipt("j", 7, Status.QUEUED, 1, 5, 12, None)
        else:
            assert isinstance(answer, AlreadyFinished)
    heartbeat = result_of_repeat(row, None, "j", 7, "w")
    assert type(heartbeat) is (NotRunning if verb in FINISHES else LeaseLost)


def test_a_lease_of_another_worker_or_of_none_is_lost() -> None:
    assert isinstance(result_of_repeat(ended_by(Verb.COMPLETE), Verb.COMPLETE, "j", 7, "other"), LeaseLost)
    assert isinstance(result_of_repeat(None, Verb.COMPLETE, "j", 7, "w"), LeaseLost)


orders = st.one_of(
    st.just(CompleteJob(**LEASE)),
    st.builds(FailJob, **{k: st.just(v) for k, v in LEASE.items()}, error=st.just(ERROR), retryable=st.booleans(),
              retry_after_seconds=st.none() | st.floats(0, 1e6), sanitized=st.booleans(), verb=st.just(Verb.FAIL)),
    st.builds(ReleaseJob, **{k: st.just(v) for k, v in LEASE.items()}, reason=st.none() | st.text(), run_at=st.none() | st.integers(0, 2 * NOW),
              delay_seconds=st.none(), children=st.just(()), verb=st.just(Verb.RELEASE)),
    st.just(AcknowledgeCancel(**LEASE)),
    st.builds(CancelJob, id=st.just("j"), actor=st.just("user:a"), reason=st.none() | st.text(), force=st.booleans(), verb=st.just(Verb.CANCEL)),
    st.just(RevokeLease("j", "user:a")),
    st.just(ExpireLease("j")),
    st.just(EnforceDeadline("j")),
)  # fmt: skip


@st.composite
def job_states(draw: st.DrawFn) -> JobState:
    status = draw(st.sampled_from(Status))
    max_attempts = draw(st.integers(1, 5))
    return state(
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


@given(orders, job_states(), st.floats(0, 1, exclude_max=True))
def test_no_decision_leaves_the_table_or_breaks_a_row(order: Command, job: JobState, chance: float) -> None:
    outcome = decide(order, job, now=NOW, chance=chance)
    if not isinstance(outcome, Transition):
        assert isinstance(outcome, NoChange | Error)
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
