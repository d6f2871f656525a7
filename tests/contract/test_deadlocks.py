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
from tests.contract.builders import Desk, cancel, complete, fail, release
from tests.contract.concurrency import BOT, limit
from tests.contract.reasons import details, why

OTHER: dict[str, Any] = {"agent_kind": "bot", "agent_id": "2"}


async def started(remote: Desk, **fields: Any) -> Job:
    return await remote.running(**BOT | fields)


async def child_of(remote: Desk, job: Job, **fields: Any) -> str:
    return await remote.add(**{**BOT, "type": "child", "parent_id": job.id} | fields)


async def ends(remote: Desk, *orders: ReleaseJob) -> list[Receipt | Rejected]:
    return await remote.store.carry_out(remote.tenant, list(orders))


def rejected(answer: Receipt | Rejected, child: str) -> bool:
    return isinstance(answer, Rejected) and isinstance(answer.error, WouldDeadlock) and answer.error.child_id == child


async def hanging(remote: Desk) -> list[tuple[str, str]]:
    return [(one.kind, one.id) for one in await remote.store.stalled_agents(remote.tenant, limit=10)]


async def test_a_wait_for_a_child_that_can_get_no_slot_is_rejected(remote: Desk) -> None:
    await limit(remote, 1)
    parent = await started(remote)
    child = await child_of(remote, parent)
    before = await remote.trace(parent.id)
    (answer,) = await ends(remote, release(parent, children=(child,)))
    assert rejected(answer, child)
    assert await remote.trace(parent.id) == before
    assert (await remote.job(parent.id)).status is Status.RUNNING
    assert (await remote.do(complete(parent))).status is Status.SUCCEEDED
    assert await remote.claimed(types=frozenset({"child"})) == [child]
    await remote.verify()


@pytest.mark.parametrize("change", ["not strict", "no limit", "two slots", "another agent", "no agent", "ended child"])
async def test_a_wait_that_can_end_is_allowed(remote: Desk, change: str) -> None:
    await limit(remote, {"no limit": None, "two slots": 2}.get(change, 1), strict=change != "not strict")
    parent = await started(remote)
    agent = {"another agent": OTHER, "no agent": {"agent_kind": None, "agent_id": None}}.get(change, {})
    child = await child_of(remote, parent, **agent)
    if change == "ended child":
        await remote.do(cancel(child))
    await remote.do(release(parent, children=(child,)))
    if change != "ended child":
        (job,) = await remote.claim(types=frozenset({"child"}))
        await remote.do(complete(job))
    assert await remote.claimed(types=frozenset({"work"})) == [parent.id]


async def test_the_last_slot_is_not_given_up_to_a_wait(remote: Desk) -> None:
    """Two parents hold two slots: the first may wait, as the other runs; if that waited too, neither would go on."""
    await limit(remote, 2)
    parents = [await started(remote), await started(remote)]
    children = [await child_of(remote, one) for one in parents]
    (first,) = await ends(remote, release(parents[0], children=(children[0],)))
    assert isinstance(first, Receipt)
    assert await hanging(remote) == []
    (second,) = await ends(remote, release(parents[1], children=(children[1],)))
    assert rejected(second, children[1])
    await remote.do(complete(parents[1]))
    (child,) = await remote.claim(types=frozenset({"child"}))
    await remote.do(complete(child))
    assert parents[0].id in await remote.claimed(limit=10, types=frozenset({"work"}))


async def test_of_waits_that_come_together_the_last_is_rejected(remote: Desk) -> None:
    await limit(remote, 3)
    parents = [await started(remote) for _ in range(3)]
    children = [await child_of(remote, one) for one in parents]
    orders = [release(one, children=(child,)) for one, child in zip(parents, children, strict=True)]
    *allowed, last = await ends(remote, *orders)
    assert [type(answer) for answer in allowed] == [Receipt, Receipt]
    assert rejected(last, children[2])


async def test_of_waits_that_race_one_is_rejected(remote: Desk) -> None:
    await limit(remote, 4)
    parents = [await started(remote) for _ in range(4)]
    children = [await child_of(remote, one) for one in parents]
    orders = [release(one, children=(child,)) for one, child in zip(parents, children, strict=True)]
    answers = [answer for (answer,) in await asyncio.gather(*(ends(remote, order) for order in orders))]
    assert sum(isinstance(answer, Rejected) for answer in answers) == 1, answers


async def test_a_wait_for_a_child_that_waits_for_such_a_child_is_rejected(remote: Desk) -> None:
    """The one in the middle has an agent without a limit, or none: the slot that is lacking is its grandparent's."""
    await limit(remote, 1)
    top = await started(remote)
    middle = await remote.running(type="middle", parent_id=top.id)
    await remote.do(release(top, children=(middle.id,)))
    bottom = await child_of(remote, middle)
    (answer,) = await ends(remote, release(middle, children=(bottom,)))
    assert rejected(answer, bottom)


async def test_two_strict_agents_that_would_wait_for_each_other_are_seen(remote: Desk) -> None:
    await limit(remote, 1)
    await limit(remote, 1, id="2")
    one, two = await started(remote), await remote.running(**OTHER, type="second")
    for_two = await child_of(remote, one, **OTHER)
    for_one = await child_of(remote, two)
    await remote.do(release(one, children=(for_two,)))
    (answer,) = await ends(remote, release(two, children=(for_one,)))
    assert rejected(answer, for_one)


async def test_a_slot_whose_holder_waits_for_people_or_a_retry_may_become_free(remote: Desk) -> None:
    await limit(remote, 3)
    asks, fails, waits = [await started(remote) for _ in range(3)]
    _, approval = await waiting(remote, job=asks)
    await remote.do(fail(fails, retry_after_seconds=50.0))
    child = await child_of(remote, waits)
    await remote.do(release(waits, children=(child,)))
    assert await hanging(remote) == [("bot", "1")]
    await decided(remote, command(approval))
    assert await hanging(remote) == []


async def test_an_agent_hangs_while_all_its_slots_are_held_by_jobs_that_wait(remote: Desk, rival: Desk) -> None:
    await limit(remote, 2)
    await limit(remote, 1, strict=False, id="2")
    first, second = await started(remote), await started(remote)
    loose = await remote.running(**OTHER)
    await waiting(remote, job=loose)
    await waiting(remote, job=first)
    assert await hanging(remote) == []
    await remote.do(release(second, delay_seconds=30))
    assert await hanging(remote) == [("bot", "1")]
    assert await hanging(rival) == []
    remote.clock.advance(30)
    assert await hanging(remote) == []


async def test_why_names_the_jobs_that_wait_for_each_other(remote: Desk) -> None:
    """A lowered limit makes a wait endless that was allowed: the parent holds the only slot that its child needs."""
    await limit(remote, 2)
    parent, other = await started(remote), await started(remote)
    child = await child_of(remote, parent)
    await remote.do(release(parent, children=(child,)))
    behind = await remote.add(**BOT)
    assert "cycle" not in await details(remote, parent.id)  # the other job may end
    await limit(remote, 1)
    await remote.do(complete(other))
    first, second, third = [await why(remote, id) for id in (parent.id, child, behind)]
    assert (first.clause, second.clause) == (ReasonCode.WAITING_FOR_CHILDREN, ReasonCode.AGENT_BUSY)
    for reported, ids in (
        (first, [parent.id, child, parent.id]),
        (second, [child, parent.id, child]),
        (third, [parent.id, child, parent.id]),  # not one of them, but it waits for them
    ):
        assert reported.reason.details["cycle"] == ids
        assert f"jobs {' -> '.join(ids)} wait for each other: cancel one of them" in reported.reason.message
    await remote.do(cancel(child))
    assert "cycle" not in await details(remote, behind)


async def test_why_names_a_longer_cycle_in_order(remote: Desk) -> None:
    await limit(remote, 1)
    await limit(remote, 2, id="2")
    one, two, other = await started(remote), await remote.running(**OTHER), await remote.running(**OTHER)
    for_two, for_one = await child_of(remote, one, **OTHER), await child_of(remote, two)
    for job, awaited in ((one, for_two), (two, for_one)):
        await remote.do(release(job, children=(awaited,)))
    await limit(remote, 1, id="2")
    assert "cycle" not in await details(remote, one.id)
    await remote.do(complete(other))
    ring = [one.id, for_two, two.id, for_one]
    for at, id in enumerate(ring):
        assert (await details(remote, id))["cycle"] == [*ring[at:], *ring[:at], id]


async def test_a_wait_that_people_or_time_can_end_is_no_cycle(remote: Desk) -> None:
    await limit(remote, 2)
    parent, asks = await started(remote), await started(remote)
    child = await child_of(remote, parent)
    await remote.do(release(parent, children=(child,)))
    _, approval = await waiting(remote, job=asks)
    assert "cycle" not in await details(remote, parent.id)
    assert "cycle" not in await details(remote, child)
    await decided(remote, command(approval))
    assert "cycle" not in await details(remote, child)
