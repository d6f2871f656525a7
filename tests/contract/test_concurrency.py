"""An agent with a limit has concurrency slots: the first due jobs have one, and only they are claimed."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location
from interlock.errors import AgentInUse, UnknownAgent
from interlock.storage.contract import Terms
from tests.contract.builders import (
    FIXED,
    TenantQueue,
    cancel,
    cancel_ack,
    complete,
    expire,
    fail,
    new_job,
    release,
    revoke,
)  # fmt: skip
from tests.contract.concurrency import BOT, ids_of, limit, location, only


async def test_a_serial_agent_runs_one_job_at_a_time_in_order(queue: TenantQueue) -> None:
    await limit(queue, 1)
    ids = await ids_of(queue, 4)
    for id in ids:
        job = await only(queue)
        assert job.id == id
        assert await queue.claimed(limit=100) == []
        await queue.do(complete(job))
    assert await queue.claimed(limit=100) == []


async def test_a_limit_of_n_lets_the_first_n_run(queue: TenantQueue) -> None:
    await limit(queue, 3)
    ids = await ids_of(queue, 5)
    assert await queue.claimed(limit=100) == ids[:3]
    assert [await location(queue, id) for id in ids] == [Location.IN_PROGRESS] * 3 + [Location.BLOCKED] * 2


async def test_priority_decides_between_agents_and_not_within_one(queue: TenantQueue) -> None:
    await limit(queue, 1)
    first = await queue.add(**BOT, priority=0)
    await queue.add(**BOT, priority=9)
    free = await queue.add(priority=5)
    assert await queue.claimed(limit=100) == [free, first]


async def test_a_blocked_agent_hides_no_other_job(queue: TenantQueue) -> None:
    await limit(queue, 1)
    await ids_of(queue, 50)
    other = await queue.add(agent_kind="bot", agent_id="2")
    assert other in await queue.claimed(limit=2)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("how", ["complete", "fail", "cancel_ack", "force", "dead_letter", "expire"])
async def test_a_terminal_job_frees_its_slot_for_the_next(queue: TenantQueue, how: str, strict: bool) -> None:
    await limit(queue, 1, strict=strict)
    first, second, third = await ids_of(queue, 3, max_attempts=1)
    job = await only(queue, lease_seconds=10)
    assert job.id == first
    if how == "complete":
        await queue.do(complete(job))
    elif how == "fail":
        await queue.do(fail(job, retryable=False))
    elif how == "cancel_ack":
        await queue.do(cancel(first))
        await queue.do(cancel_ack(job))
    elif how == "force":
        await queue.do(cancel(first, force=True))
    elif how == "dead_letter":
        await queue.do(fail(job))
    else:
        queue.clock.advance(11)
        await queue.do(expire(first))
    assert await queue.claimed(limit=100) == [second]
    assert await location(queue, third) is Location.BLOCKED


async def test_a_strict_agent_keeps_the_slot_of_a_retrying_job(queue: TenantQueue) -> None:
    await limit(queue, 1)
    first, second = await ids_of(queue, 2, backoff=FIXED)
    await queue.do(fail(await only(queue)))
    assert await queue.claimed(limit=100) == []
    assert await location(queue, first) is Location.DELAYED
    assert await location(queue, second) is Location.BLOCKED
    queue.clock.advance(10)
    job = await only(queue)
    assert job.id == first
    await queue.do(complete(job))
    assert await queue.claimed(limit=100) == [second]


async def test_an_agent_that_is_not_strict_continues_while_a_job_retries(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    first, second, third = await ids_of(queue, 3, backoff=FIXED)
    await queue.do(fail(await only(queue)))
    running = await only(queue)
    assert running.id == second
    queue.clock.advance(10)
    assert await location(queue, first) is Location.BLOCKED
    await queue.do(complete(running))
    assert await queue.claimed(limit=100) == [third]  # due before the retry


@pytest.mark.parametrize("strict", [True, False])
async def test_a_released_job_keeps_its_slot_only_if_strict(queue: TenantQueue, strict: bool) -> None:
    await limit(queue, 1, strict=strict)
    first, second = await ids_of(queue, 2)
    await queue.do(release(await only(queue), delay_seconds=5))
    assert await queue.claimed(limit=100) == ([] if strict else [second])
    queue.clock.advance(5)
    assert await queue.claimed(limit=100) == ([first] if strict else [])


@pytest.mark.parametrize("strict", [True, False])
async def test_a_job_that_waits_for_children_keeps_its_slot_only_if_strict(queue: TenantQueue, strict: bool) -> None:
    await limit(queue, 1, strict=strict)
    first, second = await ids_of(queue, 2)
    parent = await only(queue)
    child = await queue.add(type="child", parent_id=first)
    await queue.do(release(parent, children=(child,)))
    assert await queue.claimed(limit=100, types=frozenset({"work"})) == ([] if strict else [second])
    (child_job,) = await queue.claim(types=frozenset({"child"}))
    await queue.do(complete(child_job))
    assert await queue.claimed(limit=100, types=frozenset({"work"})) == ([first] if strict else [])
    assert await location(queue, first) is (Location.IN_PROGRESS if strict else Location.BLOCKED)


@pytest.mark.parametrize("strict", [True, False])
async def test_a_cancelled_waiting_parent_releases_its_slot_once(queue: TenantQueue, strict: bool) -> None:
    await limit(queue, 1, strict=strict)
    first, second, third = await ids_of(queue, 3)
    parent = await only(queue)
    child = await queue.add(type="child", parent_id=first)
    await queue.do(release(parent, children=(child,)))
    await queue.do(cancel(first))
    assert await queue.claimed(limit=100, types=frozenset({"work"})) == [second]
    assert await location(queue, third) is Location.BLOCKED


@pytest.mark.parametrize("parent_first", [True, False])
async def test_a_waiting_parent_cancelled_together_with_its_child_releases_its_slot(
    queue: TenantQueue, parent_first: bool
) -> None:
    await limit(queue, 1)
    first, second, third = await ids_of(queue, 3)
    child = await queue.add(type="child", parent_id=first)
    await queue.do(release(await only(queue, types=frozenset({"work"})), children=(child,)))
    both = [cancel(first), cancel(child)]
    await queue.store.carry_out(queue.tenant, both if parent_first else both[::-1])
    await queue.do(complete(await only(queue)))
    assert await queue.claimed(limit=10) == [third]
    assert (await queue.job(second)).finished_at is not None


@pytest.mark.parametrize("strict", [True, False])
async def test_a_job_with_a_pending_cancel_keeps_its_slot_until_it_stops(queue: TenantQueue, strict: bool) -> None:
    await limit(queue, 1, strict=strict)
    first, second, third = await ids_of(queue, 3)
    running = await only(queue)
    await queue.store.carry_out(queue.tenant, [cancel(first), cancel(second)])
    assert (await queue.job(first)).cancel_requested_at is not None
    assert await queue.claimed(limit=10) == []
    assert await location(queue, third) is Location.BLOCKED
    await queue.do(cancel_ack(running))
    assert await queue.claimed(limit=10) == [third]


async def test_cancelling_a_job_with_a_slot_frees_it_and_cancelling_a_blocked_job_does_not(
    queue: TenantQueue,
) -> None:
    await limit(queue, 1)
    first, second, third = await ids_of(queue, 3)
    await queue.do(cancel(second))
    await queue.do(cancel(first))
    assert await queue.claimed(limit=100) == [third]


async def test_a_delayed_job_queues_for_a_slot_once_due_without_a_claim_or_a_sweep(queue: TenantQueue) -> None:
    await limit(queue, 1)
    later = await queue.add(**BOT, delay_seconds=60)
    assert await location(queue, later) is Location.DELAYED
    queue.clock.advance(60)
    assert await location(queue, later) is Location.READY
    assert await queue.claimed() == [later]


async def test_a_delayed_job_blocks_no_other_job(queue: TenantQueue) -> None:
    await limit(queue, 1)
    later = await queue.add(**BOT, delay_seconds=60)
    now = await queue.add(**BOT)
    job = await only(queue)
    assert job.id == now
    queue.clock.advance(60)
    assert await location(queue, later) is Location.BLOCKED
    await queue.do(complete(job))
    assert await queue.claimed() == [later]


async def test_the_sweep_queues_due_jobs_for_slots(queue: TenantQueue) -> None:
    await limit(queue, 1)
    later = await queue.add(**BOT, delay_seconds=60)
    queue.clock.advance(61)
    assert await queue.store.registry.fill_slots(10) >= 1
    assert await queue.store.registry.fill_slots(10) == 0
    assert await location(queue, later) is Location.READY


async def test_a_job_due_earlier_overtakes_one_that_has_not_started(queue: TenantQueue) -> None:
    await limit(queue, 1)
    queue.clock.advance(100)
    placed = await queue.add(**BOT)
    earlier = await queue.add(**BOT, run_at=queue.after(-50))
    assert await location(queue, placed) is Location.BLOCKED
    job = await only(queue)
    assert job.id == earlier
    await queue.do(complete(job))
    assert await queue.claimed() == [placed]


async def test_a_job_due_earlier_does_not_overtake_a_running_one(queue: TenantQueue) -> None:
    await limit(queue, 1)
    queue.clock.advance(100)
    await queue.add(**BOT)
    job = await only(queue)
    earlier = await queue.add(**BOT, run_at=queue.after(-50))
    assert await queue.claimed(limit=100) == []
    await queue.do(complete(job))
    assert await queue.claimed() == [earlier]


async def test_a_revoke_frees_the_slot_and_retries_like_an_expiry(queue: TenantQueue) -> None:
    await limit(queue, 1)
    first, second = await ids_of(queue, 2)
    await only(queue)
    await queue.do(revoke(first))
    job = await only(queue)
    assert job.id == first
    await queue.do(complete(job))
    assert await queue.claimed(limit=100) == [second]


async def test_a_passed_deadline_frees_the_slot_for_the_next(queue: TenantQueue) -> None:
    await limit(queue, 1)
    await queue.add(**BOT, deadline=queue.after(5))
    blocked = await queue.add(**BOT, deadline=queue.after(6))
    last = await queue.add(**BOT)
    queue.clock.advance(7)
    assert await queue.claimed(limit=100) == [last]
    assert (await queue.job(blocked)).finished_at is not None


async def test_an_agent_with_unfinished_jobs_cannot_be_deleted(queue: TenantQueue) -> None:
    await limit(queue, 1)
    await ids_of(queue, 2)
    for _ in range(2):
        with pytest.raises(AgentInUse):
            await queue.store.registry.delete_agent(queue.tenant, "bot", "1")
        await queue.do(complete(await only(queue)))
    assert await queue.store.registry.delete_agent(queue.tenant, "bot", "1") is True
    assert await queue.store.registry.delete_agent(queue.tenant, "bot", "1") is False
    (again,) = await ids_of(queue, 1)  # made anew, without a limit
    assert await queue.claimed() == [again]


async def test_an_unknown_agent_is_rejected_if_agents_are_not_created_implicitly(queue: TenantQueue) -> None:
    strict = Terms(implicit_agents=False)
    (answer,) = await queue.store.enqueue(queue.tenant, [new_job(**BOT)], terms=strict)
    assert isinstance(answer.error, UnknownAgent)  # type: ignore[union-attr]
    await limit(queue, None)
    (answer,) = await queue.store.enqueue(queue.tenant, [new_job(**BOT)], terms=strict)
    assert answer.replayed is False  # type: ignore[union-attr]


async def test_each_tenant_has_its_own_agents(queue: TenantQueue, rival: TenantQueue) -> None:
    await limit(queue, 1)
    await limit(rival, 1)
    mine, theirs = await queue.add(**BOT), await rival.add(**BOT)
    assert await queue.claimed(limit=9) == [mine]
    assert await rival.claimed(limit=9) == [theirs]
