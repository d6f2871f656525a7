"""The table of edges, held against the words of the specification."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import CLAIMABLE, EDGES, FINISHES, TERMINAL, Location, Status, Verb, locate

# The specification, section 2, in its own order; edits keep the status.
SPECIFIED = """
(new) -> queued
queued, retry -> running
running -> running
running -> succeeded
running -> failed
running -> retry
running -> dead_letter
running -> queued
running -> waiting_for_approval
waiting_for_approval -> queued
waiting_for_approval -> failed
queued, retry -> failed
queued, retry, waiting_for_approval -> cancelled
running -> cancelled
queued -> queued
retry -> retry
failed -> failed
dead_letter -> dead_letter
"""


def specified() -> set[tuple[Status | None, Status]]:
    found: set[tuple[Status | None, Status]] = set()
    for line in SPECIFIED.strip().splitlines():
        origins, target = line.split(" -> ")
        for origin in origins.split(", "):
            found.add((None if origin == "(new)" else Status(origin), Status(target)))
    return found


def test_the_edges_are_those_of_the_specification() -> None:
    assert set(EDGES) == specified()


def test_every_edge_has_an_operation_and_every_operation_an_edge() -> None:
    assert all(EDGES.values())
    assert {verb for verbs in EDGES.values() for verb in verbs} == set(Verb)


def test_terminal_statuses_have_no_exit() -> None:
    exits = [(edge, verbs) for edge, verbs in EDGES.items() if edge[0] in TERMINAL]
    assert all(origin == target and verbs == {Verb.ACKNOWLEDGE} for (origin, target), verbs in exits)
    assert {Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED} == TERMINAL


def test_every_live_status_can_reach_every_outcome_it_needs() -> None:
    """No state without a way out: each can end, and each can be cancelled."""
    for status in set(Status) - TERMINAL:
        assert (status, Status.CANCELLED) in EDGES
        reached = {status}
        while more := {t for o, t in EDGES if o in reached} - reached:
            reached |= more
        assert reached >= TERMINAL


def test_every_status_is_reached_from_creation() -> None:
    reached: set[Status | None] = {None}
    while more := {t for o, t in EDGES if o in reached} - reached:
        reached |= more
    assert reached == {None, *Status}


def test_a_claim_starts_from_exactly_the_claimable_statuses() -> None:
    assert {origin for (origin, _), verbs in EDGES.items() if Verb.CLAIM in verbs} == CLAIMABLE
    assert {target for (_, target), verbs in EDGES.items() if Verb.CLAIM in verbs} == {Status.RUNNING}


@pytest.mark.parametrize("verb", sorted(FINISHES))
def test_a_finish_starts_from_running_and_never_stays_there(verb: Verb) -> None:
    edges = [edge for edge, verbs in EDGES.items() if verb in verbs]
    assert {origin for origin, _ in edges} == {Status.RUNNING}
    assert Status.RUNNING not in {target for _, target in edges}


LATER, NOW, EARLIER = 11, 10, 9


@pytest.mark.parametrize(
    ("status", "run_at", "awaits", "location"),
    [
        (Status.QUEUED, EARLIER, False, Location.READY),
        (Status.QUEUED, NOW, False, Location.READY),
        (Status.QUEUED, LATER, False, Location.DELAYED),
        (Status.QUEUED, EARLIER, True, Location.BLOCKED),
        (Status.QUEUED, LATER, True, Location.BLOCKED),
        (Status.RETRY, NOW, False, Location.READY),
        (Status.RETRY, LATER, False, Location.DELAYED),
        (Status.WAITING_FOR_APPROVAL, EARLIER, False, Location.BLOCKED),
        (Status.RUNNING, LATER, True, Location.IN_PROGRESS),
        (Status.SUCCEEDED, LATER, True, Location.NONE),
        (Status.FAILED, LATER, True, Location.NONE),
        (Status.CANCELLED, LATER, True, Location.NONE),
        (Status.DEAD_LETTER, LATER, True, Location.DEAD_LETTER),
    ],
)
def test_the_location_of_a_job(status: Status, run_at: int, awaits: bool, location: Location) -> None:
    assert locate(status, run_at=run_at, now=NOW, awaits=awaits) is location
