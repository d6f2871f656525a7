"""Redrive: an ended job is done again by a new one, from the start, from its checkpoint, or after a step."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from interlock.domain.job import Enqueued, Job, Refused
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.operations import CHECKPOINT, Needs, Overrides, Redrive
from interlock.domain.registry import Agent, JobType
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, NotEnded, NotFound, UnknownAgent
from interlock.storage.contract import RegistryChanged
from tests.contract.builders import FIXED, NEVER, OPERATOR, Desk, cancel, complete, fail, new_id, save
from tests.contract.connections import Door, job_in
from tests.contract.progress import keep, step

LIVE = [status for status in Status if status not in TERMINAL]


def order(job_id: str, **fields: Any) -> Redrive:
    return Redrive(**{"id": job_id, "new_id": new_id(), "actor": OPERATOR, **fields})


async def redrive(desk: Desk, wish: Redrive, **terms: Any) -> Job:
    (answer,) = await desk.store.redrive(desk.tenant, [wish], **terms)
    assert isinstance(answer, Enqueued), answer
    assert not answer.replayed
    return await desk.job(answer.id)


async def refused(desk: Desk, wish: Redrive, **terms: Any) -> Error:
    (answer,) = await desk.store.redrive(desk.tenant, [wish], **terms)
    assert isinstance(answer, Refused), answer
    return answer.error


async def ended(desk: Desk, **fields: Any) -> Job:
    id = await desk.add(**fields)
    await desk.do(cancel(id))
    return await desk.job(id)


async def with_progress(desk: Desk) -> Job:
    """A dead letter that has got as far as three steps and a checkpoint."""
    job = await desk.running(max_attempts=1)
    for name, result in (("search", '"a"'), ("draft", '"b"'), ("send", '"c"')):
        await keep(desk, step(job, name, 1, result))
    await desk.checkpoint(save(job, 7, '{"page":7}'))
    await desk.do(fail(job))
    return await desk.job(job.id)


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_any_ended_job_can_be_redriven(desk: Desk, door: Door, status: Status) -> None:
    old = await job_in(desk, door, status)
    before = await desk.trace(old.id)
    desk.clock.advance(60)
    new = await redrive(desk, order(old.id))
    assert (new.status, new.redrive_of, new.attempt, new.fence) == (Status.QUEUED, old.id, 1, 0)
    assert (new.run_at, new.created_at, new.seq > old.seq) == (desk.clock.now, desk.clock.now, True)
    assert await desk.trace(old.id) == before
    (row,) = await desk.history(new.id)
    assert (row.verb, row.actor) == (Verb.ENQUEUE, OPERATOR)
    assert await desk.claimed(limit=10) == [new.id]
    await desk.verify()


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_that_has_not_ended_cannot_be_redriven(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status)
    error = await refused(desk, order(job.id))
    assert isinstance(error, NotEnded)
    assert (error.status, error.state) == (409, status)


async def test_an_unknown_or_foreign_job_cannot_be_redriven(desk: Desk, rival: Desk) -> None:
    theirs = await ended(rival)
    for id in (NEVER, theirs.id):
        assert isinstance(await refused(desk, order(id)), NotFound)


async def test_everything_is_copied_but_key_deadline_and_attempt(desk: Desk) -> None:
    parent = await desk.add()
    old = await ended(
        desk, type="rich", payload='{"a": 1.0}', priority=9, deadline=desk.after(3600), timeout_seconds=30.0,
        max_attempts=7, backoff=FIXED, expiry_delay_seconds=2.0, headers='{"h":"1"}', traceparent="00-x", tags=("b", "a"),
        agent_kind="planner", agent_id="7", affinity_key="k", repository="org/repo", requires=("gpu",),
        idempotency_key="once", body_sha256=b"x" * 32, webhook="https://example.test/hook", parent_id=parent,
        requested_by="somebody",
    )  # fmt: skip
    new = await redrive(desk, order(old.id))
    same = (
        "type", "payload", "priority", "timeout_seconds", "max_attempts", "backoff", "expiry_delay_seconds", "headers",
        "traceparent", "agent_kind", "agent_id", "affinity_key", "repository", "webhook", "parent_id", "requested_by",
    )  # fmt: skip
    assert {name: getattr(new, name) for name in same} == {name: getattr(old, name) for name in same}
    assert (tuple(new.tags), tuple(new.requires)) == (("b", "a"), ("gpu",))
    assert (new.idempotency_key, new.deadline, new.attempt, new.created_by) == (None, None, 1, OPERATOR)
    assert (new.result, new.error, new.cancel_requested_at, new.cancel_reason) == (None, None, None, None)


async def test_what_is_said_otherwise_is_otherwise(desk: Desk) -> None:
    old = await ended(desk, priority=1, tags=("old",), payload="1")
    at = desk.after(500)
    new = await redrive(
        desk, order(old.id, overrides=Overrides(priority=-5, run_at=at, max_attempts=9, tags=(), payload='{"n":2}'))
    )
    assert (new.priority, new.run_at, new.max_attempts, tuple(new.tags), new.payload) == (-5, at, 9, (), '{"n":2}')
    assert (await desk.job(old.id)).payload == "1"
    late = await redrive(desk, order(old.id, overrides=Overrides(delay_seconds=30.0)))
    assert (late.run_at, late.payload) == (desk.after(30), "1")


async def test_what_the_new_job_needs_takes_the_place_of_what_the_old_one_needed(desk: Desk) -> None:
    old = await ended(desk)
    new = await redrive(desk, order(old.id, overrides=Overrides(needs=Needs("acme/site", ("git", "gpu")))))
    assert (new.repository, tuple(new.requires)) == ("acme/site", ("git", "gpu"))
    assert await desk.claim() == []
    (granted,) = await desk.claim(repositories=frozenset({"acme/site"}), capabilities=frozenset({"git", "gpu"}))
    assert granted.id == new.id
    await desk.do(complete(granted))
    free = await redrive(desk, order(new.id, overrides=Overrides(needs=Needs())))
    assert [job.id for job in await desk.claim()] == [free.id]


async def test_from_the_start_means_without_what_was_saved(desk: Desk) -> None:
    old = await with_progress(desk)
    new = await redrive(desk, order(old.id))
    (steps,) = await desk.store.steps(desk.tenant, [new.id], limit=10)
    assert (steps, new.checkpoint, new.checkpoint_seq) == ([], None, None)


async def test_from_the_checkpoint_everything_saved_comes_along(desk: Desk) -> None:
    old = await with_progress(desk)
    new = await redrive(desk, order(old.id, origin=CHECKPOINT))
    assert (new.checkpoint, new.checkpoint_seq) == ('{"page":7}', 7)
    (steps,) = await desk.store.steps(desk.tenant, [new.id], limit=10)
    assert [(s.name, s.result, s.seq, s.fence) for s in steps] == [
        ("search", '"a"', 1, 0), ("draft", '"b"', 2, 0), ("send", '"c"', 3, 0),
    ]  # fmt: skip
    (granted,) = await desk.claim()
    assert (granted.id, granted.checkpoint, granted.checkpoint_seq) == (new.id, '{"page":7}', 7)
    assert await desk.checkpoint(save(granted, 8, '{"page":8}')) == 8
    assert (await desk.job(old.id)).checkpoint == '{"page":7}'


async def test_after_a_step_what_came_up_to_it_comes_along(desk: Desk) -> None:
    old = await with_progress(desk)
    new = await redrive(desk, order(old.id, origin="draft"))
    (steps,) = await desk.store.steps(desk.tenant, [new.id], limit=10)
    assert [s.name for s in steps] == ["search", "draft"]
    assert new.checkpoint is None  # it may have been saved after that step
    (granted,) = await desk.claim()
    again = await keep(desk, step(granted, "search", 1, '"other"'))
    assert again.result == '"a"'
    assert (await keep(desk, step(granted, "send", 1, '"fresh"'))).seq == 3


async def test_what_was_never_saved_cannot_be_gone_on_from(desk: Desk) -> None:
    old = await ended(desk)
    for origin in (CHECKPOINT, "search"):
        error = await refused(desk, order(old.id, origin=origin))
        assert isinstance(error, Invalid)
        assert error.pointer == "/from"


async def test_progress_goes_on_from_redrive_to_redrive(desk: Desk) -> None:
    first = await redrive(desk, order((await with_progress(desk)).id, origin=CHECKPOINT))
    await desk.do(cancel(first.id))
    second = await redrive(desk, order(first.id, origin=CHECKPOINT))
    assert (second.redrive_of, second.checkpoint_seq) == (first.id, 7)


async def test_the_same_key_answers_the_same_job_and_another_wish_is_refused(desk: Desk) -> None:
    """G12."""
    old = await with_progress(desk)
    keyed = {"key": "again", "body_sha256": sha256(b"wish").digest(), "origin": CHECKPOINT}
    first = await redrive(desk, order(old.id, **keyed))
    (answer,) = await desk.store.redrive(desk.tenant, [order(old.id, **keyed)])
    assert answer == Enqueued(first.id, first.seq, True)
    other = keyed | {"body_sha256": sha256(b"other").digest()}
    assert isinstance(await refused(desk, order(old.id, **other)), IdempotencyKeyReuse)


async def test_the_very_same_call_again_adds_nothing(desk: Desk) -> None:
    """A connection that breaks around a commit: the store calls again with the id it had."""
    old = await with_progress(desk)
    wish = order(old.id, origin=CHECKPOINT, key="again", body_sha256=sha256(b"wish").digest())
    first = await redrive(desk, wish)
    (granted,) = await desk.claim()
    await desk.checkpoint(save(granted, 9, '"newer"'))
    (again,) = await desk.store.redrive(desk.tenant, [wish])
    assert isinstance(again, Enqueued)
    assert (again.id, (await desk.job(first.id)).checkpoint) == (first.id, '"newer"')


async def test_once_means_once_however_many_ask(desk: Desk) -> None:
    old = await ended(desk)
    answers = await asyncio.gather(
        *(desk.store.redrive(desk.tenant, [order(old.id, once=True)]) for _ in range(5))
    )  # fmt: skip
    told = [answer for (answer,) in answers if isinstance(answer, Enqueued)]
    assert len({answer.id for answer in told}) == 1
    assert sorted(answer.replayed for answer in told) == [False, True, True, True, True]
    assert await desk.store.redriven(desk.tenant, [old.id, told[0].id]) == {old.id}


async def test_each_order_answers_on_its_own(desk: Desk) -> None:
    live, old = await desk.add(), await ended(desk)
    wishes = [order(NEVER), order(old.id), order(live)]
    first, second, third = await desk.store.redrive(desk.tenant, wishes)
    assert isinstance(first, Refused)
    assert isinstance(second, Enqueued)
    assert isinstance(third, Refused)
    assert [type(first.error), type(third.error)] == [NotFound, NotEnded]


@pytest.mark.parametrize("how", ["cancelled", "asked to stop", "succeeded"])
async def test_a_job_whose_parent_takes_no_more_children_is_redriven_without_one(desk: Desk, how: str) -> None:
    parent = await desk.running(type="parent")
    child = await ended(desk, parent_id=parent.id)
    await desk.do(complete(parent) if how == "succeeded" else cancel(parent.id, force=how == "cancelled"))
    new = await redrive(desk, order(child.id))
    assert (new.parent_id, new.redrive_of) == (None, child.id)


async def test_a_redriven_job_stands_in_the_line_of_its_agent(desk: Desk) -> None:
    await desk.store.set_agent(desk.tenant, Agent("planner", "7", max_concurrency=1))
    old = await ended(desk, agent_kind="planner", agent_id="7")
    busy = await desk.running(agent_kind="planner", agent_id="7")
    new = await redrive(desk, order(old.id))
    assert await desk.claimed(limit=10) == []
    await desk.do(complete(busy))
    assert await desk.claimed(limit=10) == [new.id]


async def test_an_agent_that_is_gone_is_made_again_only_where_that_is_allowed(desk: Desk) -> None:
    old = await ended(desk, agent_kind="planner", agent_id="7")
    assert await desk.store.delete_agent(desk.tenant, "planner", "7")
    version = (await desk.store.registry(desk.tenant)).version
    assert isinstance(await refused(desk, order(old.id), registry=version, implicit_agents=False), UnknownAgent)
    new = await redrive(desk, order(old.id), registry=version)
    assert await desk.claimed() == [new.id]


async def test_a_redrive_checked_against_an_old_registry_is_done_again(desk: Desk) -> None:
    old = await ended(desk)
    await desk.store.set_type(desk.tenant, JobType("work"))
    with pytest.raises(RegistryChanged):
        await desk.store.redrive(desk.tenant, [order(old.id)], registry=0)
    assert await desk.store.redriven(desk.tenant, [old.id]) == set()
