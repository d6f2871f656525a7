"""Small facts of the job record, and turns: several items for one job take effect one after another."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain import principal
from interlock.domain.job import HistoryRow, NewJob
from interlock.domain.lifecycle import FINISHES, Status, Verb
from interlock.storage.batch_split import split_by_job


@pytest.mark.parametrize("verb", Verb)
def test_a_lease_was_ended_by_its_worker_exactly_if_the_operation_is_a_finish(verb: Verb) -> None:
    row = HistoryRow("j", 2, Status.RUNNING, Status.QUEUED, verb, "worker:w", 1, 1, None, None, 0, b"")
    assert row.ended_by_worker is (verb in FINISHES)


def test_a_new_job_has_three_attempts_and_an_empty_payload() -> None:
    job = NewJob("id", "type")
    assert (job.payload, job.priority, job.max_attempts, job.run_at) == ("{}", 0, 3, None)


def test_actors_describe_themselves() -> None:
    assert [
        principal.user("a"), principal.worker("a"), principal.token("a"), principal.bearer("a"), principal.system("a"),
    ] == ["user:a", "worker:a", "token:a", "bearer:a", "system:a"]  # fmt: skip


def test_the_caller_of_an_embedded_engine_may_do_everything() -> None:
    who = principal.local()
    assert (who.tenant, who.actor) == ("default", "user:local")
    assert all(who.may(role) for role in ("read", "produce", "work", "operate", "approve", "admin"))
    assert not who.may("root")


class Item(NamedTuple):
    id: str
    place: int


@given(st.lists(st.sampled_from("abc")))
def test_a_round_has_each_job_at_most_once_and_items_keep_their_order(ids: list[str]) -> None:
    items = [Item(id, place) for place, id in enumerate(ids)]
    taken = list(split_by_job(items))
    assert sorted(i for commit_seq in taken for i in commit_seq) == list(range(len(items)))
    for commit_seq in taken:
        assert len({items[i].id for i in commit_seq}) == len(commit_seq)
    for id in "abc":
        places = [i for commit_seq in taken for i in commit_seq if items[i].id == id]
        assert places == sorted(places)
