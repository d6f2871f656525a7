"""A strict agent keeps slots for jobs that wait: a wait that could never end is rejected, and what hangs is listed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.domain.decide import ReleaseJob
from interlock.domain.explain import ReasonCode
from interlock.domain.job import Job, Receipt, Rejected
from interlock.domain.lifecycle import Status
from interlock.errors import WouldDeadlock
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import TenantQueue, cancel, complete, fail, release
from tests.contract.concurrency import BOT, limit
from tests.contract.reasons import details, why

OTHER: dict[str, Any] = {"agent_kind": "bot", "agent_id": "2"}


async def started(queue: TenantQueue, **fields: Any) -> Job:
    return await queue.running(**BOT | fields)


async def child_of(queue: TenantQueue, job: Job, **fields: Any) -> str:
    return await queue.add(**{**BOT, "type": "child", "parent_id": job.id} | fields)


async def ends(queue: TenantQueue, *orders: ReleaseJob) -> list[Receipt | Rejected]:
    return await queue.store.carry_out(queue.tenant, list(orders))


def rejected(answer: Receipt | Rejected, child: str) -> bool:
    return isinstance(answer, Rejected) and isinstance(answer.error, WouldDeadlock) and answer.error.child_id == child


async def hanging(queue: TenantQueue) -> list[tuple[str, str]]:
    return [(one.kind, one.id) for one in await queue.store.registry.stalled_agents(queue.tenant, limit=10)]


async def test_a_wait_for_a_child_that_can_get_no_slot_is_rejected(queue: TenantQueue) -> None:
    await limit(queue, 1)
    parent = await started(queue)
    child = await child_of(queue, parent)
    before = await queue.trace(parent.id)
    (answer,) = await ends(queue, release(parent, children=(child,)))
    assert rejected(answer, child)
    assert await queue.trace(parent.id) == before
    assert (await queue.job(parent.id)).status is Status.RUNNING
    assert (await queue.do(complete(parent))).status is Status.SUCCEEDED
    assert await queue.claimed(types=frozenset({"child"})) == [child]
    await queue.verify()


@pytest.mark.parametrize("change", ["not strict", "no limit", "two slots", "another agent", "no agent", "ended child"])
async def test_a_wait_that_can_end_is_allowed(queue: TenantQueue, change: str) -> None:
    await limit(queue, {"no limit": None, "two slots": 2}.get(change, 1), strict=change != "not strict")
    parent = await started(queue)
    agent = {"another agent": OTHER, "no agent": {"agent_kind": None, "agent_id": None}}.get(change, {})
    child = await child_of(queue, parent, **agent)
    if change == "ended child":
        await queue.do(cancel(child))
    await queue.do(release(parent, children=(child,)))
    if change != "ended child":
        (job,) = await queue.claim(types=frozenset({"child"}))
        await queue.do(complete(job))
    assert await queue.claimed(types=frozenset({"work"})) == [parent.id]


async def test_the_last_slot_is_not_given_up_to_a_wait(queue: TenantQueue) -> None:
    """Two parents hold two slots: the first may wait, as the other runs; if that waited too, neither could continue."""
    await limit(queue, 2)
    parents = [await started(queue), await started(queue)]
    children = [await child_of(queue, one) for one in parents]
    (first,) = await ends(queue, release(parents[0], children=(children[0],)))
    assert isinstance(first, Receipt)
    assert await hanging(queue) == []
    (second,) = await ends(queue, release(parents[1], children=(children[1],)))
    assert rejected(second, children[1])
    await queue.do(complete(parents[1]))
    (child,) = await queue.claim(types=frozenset({"child"}))
    await queue.do(complete(child))
    assert parents[0].id in await queue.claimed(limit=10, types=frozenset({"work"}))


async def test_the_last_of_several_waits_in_one_batch_is_rejected(queue: TenantQueue) -> None:
    await limit(queue, 3)
    parents = [await started(queue) for _ in range(3)]
    children = [await child_of(queue, one) for one in parents]
    orders = [release(one, children=(child,)) for one, child in zip(parents, children, strict=True)]
    *allowed, last = await ends(queue, *orders)
    assert [type(answer) for answer in allowed] == [Receipt, Receipt]
    assert rejected(last, children[2])


async def test_one_of_several_racing_waits_is_rejected(queue: TenantQueue) -> None:
    await limit(queue, 4)
    parents = [await started(queue) for _ in range(4)]
    children = [await child_of(queue, one) for one in parents]
    orders = [release(one, children=(child,)) for one, child in zip(parents, children, strict=True)]
    answers = [answer for (answer,) in await asyncio.gather(*(ends(queue, order) for order in orders))]
    assert sum(isinstance(answer, Rejected) for answer in answers) == 1, answers


async def test_a_wait_for_a_child_that_itself_waits_for_a_blocked_child_is_rejected(queue: TenantQueue) -> None:
    """The one in the middle has an agent without a limit, or none: the slot that is lacking is its grandparent's."""
    await limit(queue, 1)
    top = await started(queue)
    middle = await queue.running(type="middle", parent_id=top.id)
    await queue.do(release(top, children=(middle.id,)))
    bottom = await child_of(queue, middle)
    (answer,) = await ends(queue, release(middle, children=(bottom,)))
    assert rejected(answer, bottom)


async def test_two_strict_agents_that_would_wait_for_each_other_are_detected(queue: TenantQueue) -> None:
    await limit(queue, 1)
    await limit(queue, 1, id="2")
    one, two = await started(queue), await queue.running(**OTHER, type="second")
    for_two = await child_of(queue, one, **OTHER)
    for_one = await child_of(queue, two)
    await queue.do(release(one, children=(for_two,)))
    (answer,) = await ends(queue, release(two, children=(for_one,)))
    assert rejected(answer, for_one)


async def test_a_slot_whose_job_waits_for_an_approval_or_a_retry_may_become_free(queue: TenantQueue) -> None:
    await limit(queue, 3)
    asks, fails, waits = [await started(queue) for _ in range(3)]
    _, approval = await waiting(queue, job=asks)
    await queue.do(fail(fails, retry_after_seconds=50.0))
    child = await child_of(queue, waits)
    await queue.do(release(waits, children=(child,)))
    assert await hanging(queue) == [("bot", "1")]
    await decided(queue, command(approval))
    assert await hanging(queue) == []


async def test_an_agent_is_deadlocked_while_all_its_slots_belong_to_waiting_jobs(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    await limit(queue, 2)
    await limit(queue, 1, strict=False, id="2")
    first, second = await started(queue), await started(queue)
    loose = await queue.running(**OTHER)
    await waiting(queue, job=loose)
    await waiting(queue, job=first)
    assert await hanging(queue) == []
    await queue.do(release(second, delay_seconds=30))
    assert await hanging(queue) == [("bot", "1")]
    assert await hanging(rival) == []
    queue.clock.advance(30)
    assert await hanging(queue) == []


async def test_why_names_the_jobs_that_wait_for_each_other(queue: TenantQueue) -> None:
    """A lowered limit makes a wait endless that was allowed: the parent holds the only slot that its child needs."""
    await limit(queue, 2)
    parent, other = await started(queue), await started(queue)
    child = await child_of(queue, parent)
    await queue.do(release(parent, children=(child,)))
    behind = await queue.add(**BOT)
    assert "cycle" not in await details(queue, parent.id)  # the other job may end
    await limit(queue, 1)
    await queue.do(complete(other))
    first, second, third = [await why(queue, id) for id in (parent.id, child, behind)]
    assert (first.clause, second.clause) == (ReasonCode.WAITING_FOR_CHILDREN, ReasonCode.AGENT_BUSY)
    for reported, ids in (
        (first, [parent.id, child, parent.id]),
        (second, [child, parent.id, child]),
        (third, [parent.id, child, parent.id]),  # not one of them, but it waits for them
    ):
        assert reported.reason.details["cycle"] == ids
        assert f"jobs {' -> '.join(ids)} wait for each other: cancel one of them" in reported.reason.message
    await queue.do(cancel(child))
    assert "cycle" not in await details(queue, behind)


async def test_why_names_a_longer_cycle_in_order(queue: TenantQueue) -> None:
    await limit(queue, 1)
    await limit(queue, 2, id="2")
    one, two, other = await started(queue), await queue.running(**OTHER), await queue.running(**OTHER)
    for_two, for_one = await child_of(queue, one, **OTHER), await child_of(queue, two)
    for job, awaited in ((one, for_two), (two, for_one)):
        await queue.do(release(job, children=(awaited,)))
    await limit(queue, 1, id="2")
    assert "cycle" not in await details(queue, one.id)
    await queue.do(complete(other))
    ring = [one.id, for_two, two.id, for_one]
    for at, id in enumerate(ring):
        assert (await details(queue, id))["cycle"] == [*ring[at:], *ring[:at], id]


async def test_a_wait_that_people_or_time_can_end_is_no_cycle(queue: TenantQueue) -> None:
    await limit(queue, 2)
    parent, asks = await started(queue), await started(queue)
    child = await child_of(queue, parent)
    await queue.do(release(parent, children=(child,)))
    _, approval = await waiting(queue, job=asks)
    assert "cycle" not in await details(queue, parent.id)
    assert "cycle" not in await details(queue, child)
    await decided(queue, command(approval))
    assert "cycle" not in await details(queue, child)
