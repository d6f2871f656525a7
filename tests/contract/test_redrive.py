"""Redrive: a new job repeats a terminal one, from the start, from its checkpoint, or after a step."""

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
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import FIXED, NEVER, OPERATOR, TenantQueue, cancel, complete, fail, new_id, save
from tests.contract.connections import SqlConnection, job_in
from tests.contract.progress import keep, step

LIVE = [status for status in Status if status not in TERMINAL]


def order(job_id: str, **fields: Any) -> Redrive:
    return Redrive(**{"id": job_id, "new_id": new_id(), "actor": OPERATOR, **fields})


async def redrive(queue: TenantQueue, wish: Redrive, **terms: Any) -> Job:
    (answer,) = await queue.store.redrive(queue.tenant, [wish], **terms)
    assert isinstance(answer, Enqueued), answer
    assert not answer.replayed
    return await queue.job(answer.id)


async def refused(queue: TenantQueue, wish: Redrive, **terms: Any) -> Error:
    (answer,) = await queue.store.redrive(queue.tenant, [wish], **terms)
    assert isinstance(answer, Rejected), answer
    return answer.error


async def ended(queue: TenantQueue, **fields: Any) -> Job:
    id = await queue.add(**fields)
    await queue.do(cancel(id))
    return await queue.job(id)


async def with_progress(queue: TenantQueue) -> Job:
    """A dead letter that has got as far as three steps and a checkpoint."""
    job = await queue.running(max_attempts=1)
    for name, result in (("search", '"a"'), ("draft", '"b"'), ("send", '"c"')):
        await keep(queue, step(job, name, 1, result))
    await queue.checkpoint(save(job, 7, '{"page":7}'))
    await queue.do(fail(job))
    return await queue.job(job.id)


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_any_terminal_job_can_be_redriven(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    old = await job_in(queue, sql, status)
    before = await queue.trace(old.id)
    queue.clock.advance(60)
    new = await redrive(queue, order(old.id))
    assert (new.status, new.redrive_of, new.attempt, new.fence) == (Status.QUEUED, old.id, 1, 0)
    assert (new.run_at, new.created_at, new.seq > old.seq) == (queue.clock.now, queue.clock.now, True)
    assert await queue.trace(old.id) == before
    (row,) = await queue.history(new.id)
    assert (row.verb, row.actor) == (Verb.ENQUEUE, OPERATOR)
    assert await queue.claimed(limit=10) == [new.id]
    await queue.verify()


@pytest.mark.parametrize("status", LIVE)
async def test_a_job_that_is_not_terminal_cannot_be_redriven(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    job = await job_in(queue, sql, status)
    error = await refused(queue, order(job.id))
    assert isinstance(error, NotTerminal)
    assert (error.status, error.state) == (409, status)


async def test_an_unknown_or_foreign_job_cannot_be_redriven(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await ended(rival)
    for id in (NEVER, theirs.id):
        assert isinstance(await refused(queue, order(id)), NotFound)


async def test_everything_is_copied_except_key_deadline_and_attempt(queue: TenantQueue) -> None:
    parent = await queue.add()
    old = await ended(
        queue, type="rich", payload='{"a": 1.0}', priority=9, deadline=queue.after(3600), timeout_seconds=30.0,
        max_attempts=7, backoff=FIXED, expiry_delay_seconds=2.0, headers='{"h":"1"}', traceparent="00-x", tags=("b", "a"),
        agent_kind="planner", agent_id="7", affinity_key="k", repository="org/repo", requires=("gpu",),
        idempotency_key="once", body_sha256=b"x" * 32, webhook="https://example.test/hook", parent_id=parent,
        requested_by="somebody",
    )  # fmt: skip
    new = await redrive(queue, order(old.id))
    same = (
        "type", "payload", "priority", "timeout_seconds", "max_attempts", "backoff", "expiry_delay_seconds", "headers",
        "traceparent", "agent_kind", "agent_id", "affinity_key", "repository", "webhook", "parent_id", "requested_by",
    )  # fmt: skip
    assert {name: getattr(new, name) for name in same} == {name: getattr(old, name) for name in same}
    assert (tuple(new.tags), tuple(new.requires)) == (("b", "a"), ("gpu",))
    assert (new.idempotency_key, new.deadline, new.attempt, new.created_by) == (None, None, 1, OPERATOR)
    assert (new.result, new.error, new.cancel_requested_at, new.cancel_reason) == (None, None, None, None)


async def test_overrides_replace_copied_values(queue: TenantQueue) -> None:
    old = await ended(queue, priority=1, tags=("old",), payload="1")
    at = queue.after(500)
    new = await redrive(
        queue, order(old.id, overrides=Overrides(priority=-5, run_at=at, max_attempts=9, tags=(), payload='{"n":2}'))
    )
    assert (new.priority, new.run_at, new.max_attempts, tuple(new.tags), new.payload) == (-5, at, 9, (), '{"n":2}')
    assert (await queue.job(old.id)).payload == "1"
    late = await redrive(queue, order(old.id, overrides=Overrides(delay_seconds=30.0)))
    assert (late.run_at, late.payload) == (queue.after(30), "1")


async def test_overridden_requirements_replace_those_of_the_old_job(queue: TenantQueue) -> None:
    old = await ended(queue)
    new = await redrive(queue, order(old.id, overrides=Overrides(needs=Needs("acme/site", ("git", "gpu")))))
    assert (new.repository, tuple(new.requires)) == ("acme/site", ("git", "gpu"))
    assert await queue.claim() == []
    (leased,) = await queue.claim(repositories=frozenset({"acme/site"}), capabilities=frozenset({"git", "gpu"}))
    assert leased.id == new.id
    await queue.do(complete(leased))
    free = await redrive(queue, order(new.id, overrides=Overrides(needs=Needs())))
    assert [job.id for job in await queue.claim()] == [free.id]


async def test_a_redrive_from_the_start_has_no_progress(queue: TenantQueue) -> None:
    old = await with_progress(queue)
    new = await redrive(queue, order(old.id))
    (steps,) = await queue.store.steps(queue.tenant, [new.id], limit=10)
    assert (steps, new.checkpoint, new.checkpoint_seq) == ([], None, None)


async def test_a_redrive_from_the_checkpoint_has_all_progress(queue: TenantQueue) -> None:
    old = await with_progress(queue)
    new = await redrive(queue, order(old.id, origin=CHECKPOINT))
    assert (new.checkpoint, new.checkpoint_seq) == ('{"page":7}', 7)
    (steps,) = await queue.store.steps(queue.tenant, [new.id], limit=10)
    assert [(s.name, s.result, s.seq, s.fence) for s in steps] == [
        ("search", '"a"', 1, 0), ("draft", '"b"', 2, 0), ("send", '"c"', 3, 0),
    ]  # fmt: skip
    (leased,) = await queue.claim()
    assert (leased.id, leased.checkpoint, leased.checkpoint_seq) == (new.id, '{"page":7}', 7)
    assert await queue.checkpoint(save(leased, 8, '{"page":8}')) == 8
    assert (await queue.job(old.id)).checkpoint == '{"page":7}'


@pytest.mark.parametrize(("origin", "copied"), [(CHECKPOINT, True), ("draft", True), ("start", False)])
async def test_large_results_of_steps_are_copied_and_share_their_stored_objects(
    queue: TenantQueue, origin: str, copied: bool
) -> None:
    job = await queue.running()
    await keep(queue, step(job, "draft"))
    await queue.checkpoint(save(job, 1))
    large = file(job, name="interlock.step/draft/1.json", content=b"12345")
    await show(queue, large, file(job, name="report", content=b"123"))
    await queue.do(complete(job))
    new = await redrive(queue, order(job.id, origin=origin))
    assert [(one.name, one.key, one.size) for one in await listed(queue, new)] == [(large.name, large.key, 5)] * copied
    assert await queue.store.artifacts.total_bytes(queue.tenant) == 8 + 5 * copied


async def test_a_redrive_after_a_step_has_the_progress_up_to_it(queue: TenantQueue) -> None:
    old = await with_progress(queue)
    new = await redrive(queue, order(old.id, origin="draft"))
    (steps,) = await queue.store.steps(queue.tenant, [new.id], limit=10)
    assert [s.name for s in steps] == ["search", "draft"]
    assert new.checkpoint is None  # it may have been saved after that step
    (leased,) = await queue.claim()
    again = await keep(queue, step(leased, "search", 1, '"other"'))
    assert again.result == '"a"'
    assert (await keep(queue, step(leased, "send", 1, '"fresh"'))).seq == 3


async def test_a_redrive_from_unsaved_progress_is_rejected(queue: TenantQueue) -> None:
    old = await ended(queue)
    for origin in (CHECKPOINT, "search"):
        error = await refused(queue, order(old.id, origin=origin))
        assert isinstance(error, Invalid)
        assert error.pointer == "/from"


async def test_progress_is_copied_from_redrive_to_redrive(queue: TenantQueue) -> None:
    first = await redrive(queue, order((await with_progress(queue)).id, origin=CHECKPOINT))
    await queue.do(cancel(first.id))
    second = await redrive(queue, order(first.id, origin=CHECKPOINT))
    assert (second.redrive_of, second.checkpoint_seq) == (first.id, 7)


async def test_the_same_key_returns_the_same_job_and_other_overrides_are_rejected(queue: TenantQueue) -> None:
    """G12."""
    old = await with_progress(queue)
    keyed = {"key": "again", "body_sha256": sha256(b"wish").digest(), "origin": CHECKPOINT}
    first = await redrive(queue, order(old.id, **keyed))
    (answer,) = await queue.store.redrive(queue.tenant, [order(old.id, **keyed)])
    assert answer == Enqueued(first.id, first.seq, True)
    other = keyed | {"body_sha256": sha256(b"other").digest()}
    assert isinstance(await refused(queue, order(old.id, **other)), IdempotencyKeyReuse)


async def test_a_repeated_call_adds_nothing(queue: TenantQueue) -> None:
    """A connection that breaks around a commit: the store calls again with the id it had."""
    old = await with_progress(queue)
    wish = order(old.id, origin=CHECKPOINT, key="again", body_sha256=sha256(b"wish").digest())
    first = await redrive(queue, wish)
    (leased,) = await queue.claim()
    await queue.checkpoint(save(leased, 9, '"newer"'))
    (again,) = await queue.store.redrive(queue.tenant, [wish])
    assert isinstance(again, Enqueued)
    assert (again.id, (await queue.job(first.id)).checkpoint) == (first.id, '"newer"')


async def test_an_only_once_redrive_happens_once_for_any_number_of_callers(queue: TenantQueue) -> None:
    old = await ended(queue)
    answers = await asyncio.gather(
        *(queue.store.redrive(queue.tenant, [order(old.id, once=True)]) for _ in range(5))
    )  # fmt: skip
    reported = [answer for (answer,) in answers if isinstance(answer, Enqueued)]
    assert len({answer.id for answer in reported}) == 1
    assert sorted(answer.replayed for answer in reported) == [False, True, True, True, True]
    assert await queue.store.redriven(queue.tenant, [old.id, reported[0].id]) == {old.id}


async def test_each_command_of_a_batch_has_its_own_result(queue: TenantQueue) -> None:
    live, old = await queue.add(), await ended(queue)
    options = [order(NEVER), order(old.id), order(live)]
    first, second, third = await queue.store.redrive(queue.tenant, options)
    assert isinstance(first, Rejected)
    assert isinstance(second, Enqueued)
    assert isinstance(third, Rejected)
    assert [type(first.error), type(third.error)] == [NotFound, NotTerminal]


@pytest.mark.parametrize("how", ["cancelled", "cancel requested", "succeeded"])
async def test_a_job_whose_parent_accepts_no_children_is_redriven_without_one(queue: TenantQueue, how: str) -> None:
    parent = await queue.running(type="parent")
    child = await ended(queue, parent_id=parent.id)
    await queue.do(complete(parent) if how == "succeeded" else cancel(parent.id, force=how == "cancelled"))
    new = await redrive(queue, order(child.id))
    assert (new.parent_id, new.redrive_of) == (None, child.id)


async def test_a_redriven_job_waits_for_a_slot_of_its_agent(queue: TenantQueue) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("planner", "7", max_concurrency=1))
    old = await ended(queue, agent_kind="planner", agent_id="7")
    busy = await queue.running(agent_kind="planner", agent_id="7")
    new = await redrive(queue, order(old.id))
    assert await queue.claimed(limit=10) == []
    await queue.do(complete(busy))
    assert await queue.claimed(limit=10) == [new.id]


async def test_a_deleted_agent_is_created_again_only_if_allowed(queue: TenantQueue) -> None:
    old = await ended(queue, agent_kind="planner", agent_id="7")
    assert await queue.store.registry.delete_agent(queue.tenant, "planner", "7")
    version = (await queue.store.registry.read(queue.tenant)).version
    assert isinstance(await refused(queue, order(old.id), registry=version, implicit_agents=False), UnknownAgent)
    new = await redrive(queue, order(old.id), registry=version)
    assert await queue.claimed() == [new.id]


async def test_a_redrive_validated_against_an_old_registry_is_repeated(queue: TenantQueue) -> None:
    old = await ended(queue)
    await queue.store.registry.set_type(queue.tenant, JobType("work"))
    with pytest.raises(RegistryChanged):
        await queue.store.redrive(queue.tenant, [order(old.id)], registry=0)
    assert await queue.store.redriven(queue.tenant, [old.id]) == set()
