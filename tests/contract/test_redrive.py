"""Redrive: an ended job is done again by a new one, from the start, from its checkpoint, or after a step."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from interlock.domain.job import Enqueued, Job, Rejected
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.operations import CHECKPOINT, Needs, Overrides, Redrive
from interlock.domain.registry import Agent, JobType
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, NotFound, NotTerminal, UnknownAgent
from interlock.storage.contract import RegistryChanged
from tests.contract.builders import FIXED, NEVER, OPERATOR, Desk, cancel, complete, fail, new_id, save
from tests.contract.connections import Door, job_in
from tests.contract.progress import keep, step

LIVE = [status for status in Status if status not in TERMINAL]


def order(job_id: str, **fields: Any) -> Redrive:
    return Redrive(**{"id": job_id, "new_id": new_id(), "actor": OPERATOR, **fields})


async def redrive(remote: Desk, wish: Redrive, **terms: Any) -> Job:
    (answer,) = await remote.store.redrive(remote.tenant, [wish], **terms)
    assert isinstance(answer, Enqueued), answer
    assert not answer.replayed
    return await remote.job(answer.id)


async def refused(remote: Desk, wish: Redrive, **terms: Any) -> Error:
    (answer,) = await remote.store.redrive(remote.tenant, [wish], **terms)
    assert isinstance(answer, Rejected), answer
    return answer.error


async def ended(remote: Desk, **fields: Any) -> Job:
    id = await remote.add(**fields)
    await remote.do(cancel(id))
    return await remote.job(id)


async def with_progress(remote: Desk) -> Job:
    """A dead letter that has got as far as three steps and a checkpoint."""
    job = await remote.running(max_attempts=1)
    for name, result in (("search", '"a"'), ("draft", '"b"'), ("send", '"c"')):
        await keep(remote, step(job, name, 1, result))
    await remote.checkpoint(save(job, 7, '{"page":7}'))
    await remote.do(fail(job))
    return await remote.job(job.id)


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_any_ended_job_can_be_redriven(remote: Desk, adapter: Door, status: Status) -> None:
    old = await job_in(remote, adapter, status)
    before = await remote.trace(old.id)
    remote.clock.advance(60)
    new = await redrive(remote, order(old.id))
    assert (new.status, new.redrive_of, new.attempt, new.fence) == (Status.QUEUED, old.id, 1, 0)
    assert (new.run_at, new.created_at, new.seq > old.seq) == (remote.clock.now, remote.clock.now, True)
    assert await remote.trace(old.id) == before
    (row,) = await remote.history(new.id)
    assert (row.verb, row.actor) == (Verb.ENQUEUE, OPERATOR)
    assert await remote.claimed(limit=10) == [new.id]
    await remote.verify()


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_that_has_not_ended_cannot_be_redriven(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    error = await refused(remote, order(job.id))
    assert isinstance(error, NotTerminal)
    assert (error.status, error.state) == (409, status)


async def test_an_unknown_or_foreign_job_cannot_be_redriven(remote: Desk, rival: Desk) -> None:
    theirs = await ended(rival)
    for id in (NEVER, theirs.id):
        assert isinstance(await refused(remote, order(id)), NotFound)


async def test_everything_is_copied_but_key_deadline_and_attempt(remote: Desk) -> None:
    parent = await remote.add()
    old = await ended(
        remote, type="rich", payload='{"a": 1.0}', priority=9, deadline=remote.after(3600), timeout_seconds=30.0,
        max_attempts=7, backoff=FIXED, expiry_delay_seconds=2.0, headers='{"h":"1"}', traceparent="00-x", tags=("b", "a"),
        agent_kind="planner", agent_id="7", affinity_key="k", repository="org/repo", requires=("gpu",),
        idempotency_key="once", body_sha256=b"x" * 32, webhook="https://example.test/hook", parent_id=parent,
        requested_by="somebody",
    )  # fmt: skip
    new = await redrive(remote, order(old.id))
    same = (
        "type", "payload", "priority", "timeout_seconds", "max_attempts", "backoff", "expiry_delay_seconds", "headers",
        "traceparent", "agent_kind", "agent_id", "affinity_key", "repository", "webhook", "parent_id", "requested_by",
    )  # fmt: skip
    assert {name: getattr(new, name) for name in same} == {name: getattr(old, name) for name in same}
    assert (tuple(new.tags), tuple(new.requires)) == (("b", "a"), ("gpu",))
    assert (new.idempotency_key, new.deadline, new.attempt, new.created_by) == (None, None, 1, OPERATOR)
    assert (new.result, new.error, new.cancel_requested_at, new.cancel_reason) == (None, None, None, None)


async def test_what_is_said_otherwise_is_otherwise(remote: Desk) -> None:
    old = await ended(remote, priority=1, tags=("old",), payload="1")
    at = remote.after(500)
    new = await redrive(
        remote, order(old.id, overrides=Overrides(priority=-5, run_at=at, max_attempts=9, tags=(), payload='{"n":2}'))
    )
    assert (new.priority, new.run_at, new.max_attempts, tuple(new.tags), new.payload) == (-5, at, 9, (), '{"n":2}')
    assert (await remote.job(old.id)).payload == "1"
    late = await redrive(remote, order(old.id, overrides=Overrides(delay_seconds=30.0)))
    assert (late.run_at, late.payload) == (remote.after(30), "1")


async def test_what_the_new_job_needs_takes_the_place_of_what_the_old_one_needed(remote: Desk) -> None:
    old = await ended(remote)
    new = await redrive(remote, order(old.id, overrides=Overrides(needs=Needs("acme/site", ("git", "gpu")))))
    assert (new.repository, tuple(new.requires)) == ("acme/site", ("git", "gpu"))
    assert await remote.claim() == []
    (leased,) = await remote.claim(repositories=frozenset({"acme/site"}), capabilities=frozenset({"git", "gpu"}))
    assert leased.id == new.id
    await remote.do(complete(leased))
    free = await redrive(remote, order(new.id, overrides=Overrides(needs=Needs())))
    assert [job.id for job in await remote.claim()] == [free.id]


async def test_from_the_start_means_without_what_was_saved(remote: Desk) -> None:
    old = await with_progress(remote)
    new = await redrive(remote, order(old.id))
    (steps,) = await remote.store.steps(remote.tenant, [new.id], limit=10)
    assert (steps, new.checkpoint, new.checkpoint_seq) == ([], None, None)


async def test_from_the_checkpoint_everything_saved_comes_along(remote: Desk) -> None:
    old = await with_progress(remote)
    new = await redrive(remote, order(old.id, origin=CHECKPOINT))
    assert (new.checkpoint, new.checkpoint_seq) == ('{"page":7}', 7)
    (steps,) = await remote.store.steps(remote.tenant, [new.id], limit=10)
    assert [(s.name, s.result, s.seq, s.fence) for s in steps] == [
        ("search", '"a"', 1, 0), ("draft", '"b"', 2, 0), ("send", '"c"', 3, 0),
    ]  # fmt: skip
    (leased,) = await remote.claim()
    assert (leased.id, leased.checkpoint, leased.checkpoint_seq) == (new.id, '{"page":7}', 7)
    assert await remote.checkpoint(save(leased, 8, '{"page":8}')) == 8
    assert (await remote.job(old.id)).checkpoint == '{"page":7}'


async def test_after_a_step_what_came_up_to_it_comes_along(remote: Desk) -> None:
    old = await with_progress(remote)
    new = await redrive(remote, order(old.id, origin="draft"))
    (steps,) = await remote.store.steps(remote.tenant, [new.id], limit=10)
    assert [s.name for s in steps] == ["search", "draft"]
    assert new.checkpoint is None  # it may have been saved after that step
    (leased,) = await remote.claim()
    again = await keep(remote, step(leased, "search", 1, '"other"'))
    assert again.result == '"a"'
    assert (await keep(remote, step(leased, "send", 1, '"fresh"'))).seq == 3


async def test_what_was_never_saved_cannot_be_gone_on_from(remote: Desk) -> None:
    old = await ended(remote)
    for origin in (CHECKPOINT, "search"):
        error = await refused(remote, order(old.id, origin=origin))
        assert isinstance(error, Invalid)
        assert error.pointer == "/from"


async def test_progress_goes_on_from_redrive_to_redrive(remote: Desk) -> None:
    first = await redrive(remote, order((await with_progress(remote)).id, origin=CHECKPOINT))
    await remote.do(cancel(first.id))
    second = await redrive(remote, order(first.id, origin=CHECKPOINT))
    assert (second.redrive_of, second.checkpoint_seq) == (first.id, 7)


async def test_the_same_key_answers_the_same_job_and_another_wish_is_refused(remote: Desk) -> None:
    """G12."""
    old = await with_progress(remote)
    keyed = {"key": "again", "body_sha256": sha256(b"wish").digest(), "origin": CHECKPOINT}
    first = await redrive(remote, order(old.id, **keyed))
    (answer,) = await remote.store.redrive(remote.tenant, [order(old.id, **keyed)])
    assert answer == Enqueued(first.id, first.seq, True)
    other = keyed | {"body_sha256": sha256(b"other").digest()}
    assert isinstance(await refused(remote, order(old.id, **other)), IdempotencyKeyReuse)


async def test_the_very_same_call_again_adds_nothing(remote: Desk) -> None:
    """A connection that breaks around a commit: the store calls again with the id it had."""
    old = await with_progress(remote)
    wish = order(old.id, origin=CHECKPOINT, key="again", body_sha256=sha256(b"wish").digest())
    first = await redrive(remote, wish)
    (leased,) = await remote.claim()
    await remote.checkpoint(save(leased, 9, '"newer"'))
    (again,) = await remote.store.redrive(remote.tenant, [wish])
    assert isinstance(again, Enqueued)
    assert (again.id, (await remote.job(first.id)).checkpoint) == (first.id, '"newer"')


async def test_once_means_once_however_many_ask(remote: Desk) -> None:
    old = await ended(remote)
    answers = await asyncio.gather(
        *(remote.store.redrive(remote.tenant, [order(old.id, once=True)]) for _ in range(5))
    )  # fmt: skip
    reported = [answer for (answer,) in answers if isinstance(answer, Enqueued)]
    assert len({answer.id for answer in reported}) == 1
    assert sorted(answer.replayed for answer in reported) == [False, True, True, True, True]
    assert await remote.store.redriven(remote.tenant, [old.id, reported[0].id]) == {old.id}


async def test_each_order_answers_on_its_own(remote: Desk) -> None:
    live, old = await remote.add(), await ended(remote)
    options = [order(NEVER), order(old.id), order(live)]
    first, second, third = await remote.store.redrive(remote.tenant, options)
    assert isinstance(first, Rejected)
    assert isinstance(second, Enqueued)
    assert isinstance(third, Rejected)
    assert [type(first.error), type(third.error)] == [NotFound, NotTerminal]


@pytest.mark.parametrize("how", ["cancelled", "asked to stop", "succeeded"])
async def test_a_job_whose_parent_takes_no_more_children_is_redriven_without_one(remote: Desk, how: str) -> None:
    parent = await remote.running(type="parent")
    child = await ended(remote, parent_id=parent.id)
    await remote.do(complete(parent) if how == "succeeded" else cancel(parent.id, force=how == "cancelled"))
    new = await redrive(remote, order(child.id))
    assert (new.parent_id, new.redrive_of) == (None, child.id)


async def test_a_redriven_job_stands_in_the_line_of_its_agent(remote: Desk) -> None:
    await remote.store.set_agent(remote.tenant, Agent("planner", "7", max_concurrency=1))
    old = await ended(remote, agent_kind="planner", agent_id="7")
    busy = await remote.running(agent_kind="planner", agent_id="7")
    new = await redrive(remote, order(old.id))
    assert await remote.claimed(limit=10) == []
    await remote.do(complete(busy))
    assert await remote.claimed(limit=10) == [new.id]


async def test_an_agent_that_is_gone_is_made_again_only_where_that_is_allowed(remote: Desk) -> None:
    old = await ended(remote, agent_kind="planner", agent_id="7")
    assert await remote.store.delete_agent(remote.tenant, "planner", "7")
    version = (await remote.store.registry(remote.tenant)).version
    assert isinstance(await refused(remote, order(old.id), registry=version, implicit_agents=False), UnknownAgent)
    new = await redrive(remote, order(old.id), registry=version)
    assert await remote.claimed() == [new.id]


async def test_a_redrive_checked_against_an_old_registry_is_done_again(remote: Desk) -> None:
    old = await ended(remote)
    await remote.store.set_type(remote.tenant, JobType("work"))
    with pytest.raises(RegistryChanged):
        await remote.store.redrive(remote.tenant, [order(old.id)], registry=0)
    assert await remote.store.redriven(remote.tenant, [old.id]) == set()
