"""Why a job does not run, decided from facts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.explain import JobSnapshot, ReasonCode, explain
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.limits import Wait
from interlock.domain.policy import ClaimFilter, fits
from interlock.domain.worker_presence import EligibleWorkers, filters_from_text, filters_to_text, wanted

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
DOCS = Path(__file__).parents[2] / "docs"


def job_snapshot(**facts: Any) -> JobSnapshot:
    """A queued job that is due and that worker w1, who takes everything, has just asked for."""
    known: dict[str, Any] = {
        "now": NOW, "id": "j", "type": "work", "status": Status.QUEUED, "run_at": NOW, "deadline": None,
        "finished_at": None, "worker": None, "lease_expires_at": None, "cancel_requested_at": None,
        "cancel_reason": None, "error": None, "requires": (), "repository": None, "affinity_key": None,
        "agent_kind": None, "agent_id": None, "awaiting": (), "awaiting_message": None, "blocked": False, "eligible_workers": (workers(ClaimFilter("")),),
    }  # fmt: skip
    return JobSnapshot(**known | facts)


def workers(*asks: ClaimFilter, names: tuple[str, ...] = ("w1",), size: int = 1, seen: int = NOW) -> EligibleWorkers:
    return EligibleWorkers(asks, names, size, seen)


LINE = {"blocked": True, "agent_kind": "bot", "agent_id": "a", "slots": 1, "busy_with": ("x",), "ahead": 2}
PAUSE = {"paused_at": NOW - SECOND, "paused_by": "user:ada", "pause_reason": None}
HELD = Wait("llm", "", None, None, None, NOW + SECOND, "429")
FULL = Wait("llm", "acme", "concurrency", 0, 1, None, ahead=2)
GATE = {"status": Status.WAITING_FOR_APPROVAL, "approval_id": "g", "votes": 0, "votes_required": 1, "asked_at": NOW,
        "approval_expires_at": NOW + SECOND}  # fmt: skip
NOTE = {"awaiting_message": '{"name":"note","after":0}', "run_at": NOW + 10 * 365 * 86_400 * SECOND}
SOON, LATER = "2027-01-15T08:00:01.000000Z", "2027-01-15T08:00:02.000000Z"


@pytest.mark.parametrize(
    ("facts", "clauses"),
    [
        ({}, ["ready"]),
        ({"eligible_workers": ()}, ["no_worker_for_type"]),
        ({"run_at": NOW + 1}, ["due_later"]),
        ({"run_at": NOW + 1, "status": Status.RETRY, "eligible_workers": ()}, ["due_later", "no_worker_for_type"]),
        ({"deadline": NOW}, ["deadline_passed"]),
        ({"deadline": NOW + 1}, ["ready"]),
        ({"deadline": NOW, "run_at": NOW + 1, "eligible_workers": (), **PAUSE}, ["deadline_passed"]),
        (PAUSE, ["paused"]),
        (LINE, ["agent_busy"]),
        ({"limits": (HELD, FULL)}, ["waiting_for_limit", "waiting_for_limit"]),
        (LINE | {"limits": (FULL,), "eligible_workers": ()}, ["agent_busy", "waiting_for_limit", "no_worker_for_type"]),
        (PAUSE | LINE | {"eligible_workers": ()}, ["paused", "agent_busy", "no_worker_for_type"]),
        (LINE | {"run_at": NOW + 1}, ["due_later"]),
        ({"awaiting": ("c",)}, ["waiting_for_children"]),
        ({"awaiting": ("c",), "run_at": NOW + 1, **PAUSE}, ["waiting_for_children", "due_later", "paused"]),
        (GATE, ["waiting_for_approval"]),
        (GATE | PAUSE | {"run_at": NOW + 1}, ["waiting_for_approval", "paused"]),
        (GATE | {"deadline": NOW}, ["deadline_passed"]),
        ({"status": Status.RUNNING, "worker": "w", "lease_expires_at": NOW + 1, **PAUSE}, ["running"]),
        *(({"status": status, "finished_at": NOW, "deadline": NOW, **PAUSE}, ["ended"]) for status in TERMINAL),
    ],
)
def test_the_deciding_reason_comes_first_and_other_reasons_follow(facts: dict[str, Any], clauses: list[str]) -> None:
    reported = explain(job_snapshot(**facts))
    assert [reported.clause, *(reason.clause for reason in reported.also)] == clauses


def test_reasons_are_in_the_order_in_which_they_decide() -> None:
    every = GATE | LINE | PAUSE | {"awaiting": ("c",), "eligible_workers": ()}
    reported = explain(job_snapshot(**every))
    order = list(ReasonCode)
    places = [order.index(reported.clause), *(order.index(reason.clause) for reason in reported.also)]
    assert places == sorted(places)
    assert len(places) == 5


@pytest.mark.parametrize(
    ("facts", "given"),
    [
        ({"awaiting": ("c",)}, "it waits until its child c has ended"),
        ({"awaiting": ("c", "d")}, "it waits until 2 children, c among them, have ended"),
        (PAUSE | {"pause_reason": "deploy"}, "jobs of type work were paused by user:ada at 2027-01-15T07:59:59.000000Z: deploy"),
        (LINE, "agent bot/a is at its concurrency limit (1): waiting for job x; 2 jobs ahead"),
        (LINE | {"slots": 3, "busy_with": ("x", "y", "z"), "ahead": 0},
         "agent bot/a is at its concurrency limit (3): waiting for job x and 2 more; it is next"),
        (LINE | {"ahead": 1}, "agent bot/a is at its concurrency limit (1): waiting for job x; 1 job ahead"),
        ({"awaiting": ("c",), "deadline": NOW + SECOND}, f"it waits until its child c has ended; its deadline at {SOON} ends it"),
        (NOTE | {"deadline": NOW + SECOND}, f"it waits for a message note; its deadline at {SOON} ends it"),
        (NOTE | {"deadline": NOW + SECOND, "run_at": NOW + 2 * SECOND},
         f"it waits for a message note, until {LATER}, but its deadline at {SOON} comes first and will end it"),
        (NOTE | {"deadline": NOW + 2 * SECOND, "run_at": NOW + SECOND}, f"it waits for a message note, until {SOON}"),
        (GATE | {"deadline": NOW + SECOND},
         f"it has 0 of 1 approvals, asked for since 2027-01-15T08:00:00.000000Z; it fails at {SOON}, but its deadline at {SOON} comes first and will end it"),
        (GATE | {"deadline": NOW + 2 * SECOND},
         f"it has 0 of 1 approvals, asked for since 2027-01-15T08:00:00.000000Z; it fails at {SOON}"),
        ({"status": Status.CANCELLED, "finished_at": NOW, "cancel_reason": "enough"}, "it has ended: cancelled (enough)"),
        ({"status": Status.FAILED, "finished_at": NOW, "error": '{"message":"boom"}'}, "it has ended: failed (boom)"),
        ({"status": Status.FAILED, "finished_at": NOW, "error": '"odd"'}, "it has ended: failed"),
        ({}, "it is ready for the next eligible worker; w1 polled 0 s ago"),
    ],
)  # fmt: skip
def test_each_reason_has_its_text(facts: dict[str, Any], given: str) -> None:
    assert explain(job_snapshot(**facts)).reason.message == given


def test_matching_workers_are_counted_and_the_latest_are_named() -> None:
    takes, other = ClaimFilter("", types=frozenset({"work"})), ClaimFilter("", types=frozenset({"other"}))
    eligible_workers = (
        workers(takes, names=("a", "b"), size=2, seen=NOW - 5 * SECOND),
        workers(other, names=("c",)),
        workers(takes, other, names=("d",), seen=NOW - SECOND),
    )
    details = explain(job_snapshot(eligible_workers=eligible_workers)).reason.details
    assert (details["workers"], details["workers_count"]) == (["d"], 3)


names = st.frozensets(st.sampled_from(("a", "b", "c")))
asks = st.builds(
    ClaimFilter, worker=st.just(""), types=st.none() | names, repositories=st.none() | names, capabilities=names,
    affinity_keys=st.none() | names, limit=st.just(1), lease_seconds=st.none(), claim_id=st.none(),
)  # fmt: skip
maybe = st.none() | st.sampled_from(("a", "b", "c"))


@given(st.lists(st.lists(asks, max_size=3), max_size=4), names, maybe, maybe)
def test_a_job_is_ready_exactly_when_a_present_worker_matches(
    eligible_workers: list[list[ClaimFilter]], requires: frozenset[str], repository: str | None, key: str | None
) -> None:
    needs: dict[str, Any] = {"requires": tuple(sorted(requires)), "repository": repository, "affinity_key": key}
    job = job_snapshot(type="a", eligible_workers=tuple(workers(*one) for one in eligible_workers), **needs)
    fitting = any(fits(ask, type="a", **needs) for one in eligible_workers for ask in one)
    assert (explain(job).clause is ReasonCode.READY) == fitting
    json.dumps(explain(job).to_dict())


@given(st.lists(asks, max_size=4))
def test_equal_filters_are_stored_as_equal_text(some: list[ClaimFilter]) -> None:
    text = filters_to_text(some)
    assert sorted(map(repr, map(_sorted, filters_from_text(text)))) == sorted(
        map(repr, map(_sorted, map(wanted, some)))
    )
    assert filters_to_text(reversed(some)) == text
    assert filters_to_text(filters_from_text(text)) == text


def _sorted(ask: ClaimFilter) -> list[Any]:
    return [sorted(value) if isinstance(value, frozenset) else value for value in ask]


@pytest.mark.parametrize("clause", list(ReasonCode))
def test_every_reason_code_is_documented(clause: ReasonCode) -> None:
    assert f"| `{clause}` |" in (DOCS / "reference/why-codes.md").read_text()
