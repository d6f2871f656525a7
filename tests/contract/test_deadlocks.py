"""A strict agent keeps slots for jobs that wait: a wait that could never end is rejected, and what hangs is listed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.domain.decide import Release
from interlock.domain.job import Job, Receipt, Refused
from interlock.domain.lifecycle import Status
from interlock.errors import WouldDeadlock
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.builders import Desk, cancel, complete, fail, release
from tests.contract.concurrency import BOT, limit

OTHER: dict[str, Any] = {"agent_kind": "bot", "agent_id": "2"}


async def started(desk: Desk, **fields: Any) -> Job:
    return await desk.running(**BOT | fields)


async def child_of(desk: Desk, job: Job, **fields: Any) -> str:
    return await desk.add(**{**BOT, "type": "child", "parent_id": job.id} | fields)


async def ends(desk: Desk, *orders: Release) -> list[Receipt | Refused]:
    return await desk.store.carry_out(desk.tenant, list(orders))


def rejected(answer: Receipt | Refused, child: str) -> bool:
    return isinstance(answer, Refused) and isinstance(answer.error, WouldDeadlock) and answer.error.child_id == child


async def hanging(desk: Desk) -> list[tuple[str, str]]:
    return [(one.kind, one.id) for one in await desk.store.stalled_agents(desk.tenant, limit=10)]


async def test_a_wait_for_a_child_that_can_get_no_slot_is_rejected(desk: Desk) -> None:
    await limit(desk, 1)
    parent = await started(desk)
    child = await child_of(desk, parent)
    before = await desk.trace(parent.id)
    (answer,) = await ends(desk, release(parent, children=(child,)))
    assert rejected(answer, child)
    assert await desk.trace(parent.id) == before
    assert (await desk.job(parent.id)).status is Status.RUNNING
    assert (await desk.do(complete(parent))).status is Status.SUCCEEDED
    assert await desk.claimed(types=frozenset({"child"})) == [child]
    await desk.verify()


@pytest.mark.parametrize("change", ["not strict", "no limit", "two slots", "another agent", "no agent", "ended child"])
async def test_a_wait_that_can_end_is_allowed(desk: Desk, change: str) -> None:
    await limit(desk, {"no limit": None, "two slots": 2}.get(change, 1), strict=change != "not strict")
    parent = await started(desk)
    agent = {"another agent": OTHER, "no agent": {"agent_kind": None, "agent_id": None}}.get(change, {})
    child = await child_of(desk, parent, **agent)
    if change == "ended child":
        await desk.do(cancel(child))
    await desk.do(release(parent, children=(child,)))
    if change != "ended child":
        (job,) = await desk.claim(types=frozenset({"child"}))
        await desk.do(complete(job))
    assert await desk.claimed(types=frozenset({"work"})) == [parent.id]


async def test_the_last_slot_is_not_given_up_to_a_wait(desk: Desk) -> None:
    """Two parents hold two slots: the first may wait, as the other runs; if that waited too, neither would go on."""
    await limit(desk, 2)
    parents = [await started(desk), await started(desk)]
    children = [await child_of(desk, one) for one in parents]
    (first,) = await ends(desk, release(parents[0], children=(children[0],)))
    assert isinstance(first, Receipt)
    assert await hanging(desk) == []
    (second,) = await ends(desk, release(parents[1], children=(children[1],)))
    assert rejected(second, children[1])
    await desk.do(complete(parents[1]))
    (child,) = await desk.claim(types=frozenset({"child"}))
    await desk.do(complete(child))
    assert parents[0].id in await desk.claimed(limit=10, types=frozenset({"work"}))


async def test_of_waits_that_come_together_the_last_is_rejected(desk: Desk) -> None:
    await limit(desk, 3)
    parents = [await started(desk) for _ in range(3)]
    children = [await child_of(desk, one) for one in parents]
    orders = [release(one, children=(child,)) for one, child in zip(parents, children, strict=True)]
    *allowed, last = await ends(desk, *orders)
    assert [type(answer) for answer in allowed] == [Receipt, Receipt]
    assert rejected(last, children[2])


async def test_of_waits_that_race_one_is_rejected(desk: Desk) -> None:
    await limit(desk, 4)
    parents = [await started(desk) for _ in range(4)]
    children = [await child_of(desk, one) for one in parents]
    orders = [release(one, children=(child,)) for one, child in zip(parents, children, strict=True)]
    answers = [answer for (answer,) in await asyncio.gather(*(ends(desk, order) for order in orders))]
    assert sum(isinstance(answer, Refused) for answer in answers) == 1, answers


async def test_a_wait_for_a_child_that_waits_for_such_a_child_is_rejected(desk: Desk) -> None:
    """The one in the middle has an agent without a limit, or none: the slot that is lacking is its grandparent's."""
    await limit(desk, 1)
    top = await started(desk)
    middle = await desk.running(type="middle", parent_id=top.id)
    await desk.do(release(top, children=(middle.id,)))
    bottom = await child_of(desk, middle)
    (answer,) = await ends(desk, release(middle, children=(bottom,)))
    assert rejected(answer, bottom)


async def test_two_strict_agents_that_would_wait_for_each_other_are_seen(desk: Desk) -> None:
    await limit(desk, 1)
    await limit(desk, 1, id="2")
    one, two = await started(desk), await desk.running(**OTHER, type="second")
    for_two = await child_of(desk, one, **OTHER)
    for_one = await child_of(desk, two)
    await desk.do(release(one, children=(for_two,)))
    (answer,) = await ends(desk, release(two, children=(for_one,)))
    assert rejected(answer, for_one)


async def test_a_slot_whose_holder_waits_for_people_or_a_retry_may_become_free(desk: Desk) -> None:
    await limit(desk, 3)
    asks, fails, waits = [await started(desk) for _ in range(3)]
    _, gate = await waiting(desk, job=asks)
    await desk.do(fail(fails, retry_after_seconds=50.0))
    child = await child_of(desk, waits)
    await desk.do(release(waits, children=(child,)))
    assert await hanging(desk) == [("bot", "1")]
    await decided(desk, ballot(gate))
    assert await hanging(desk) == []


async def test_an_agent_hangs_while_all_its_slots_are_held_by_jobs_that_wait(desk: Desk, rival: Desk) -> None:
    await limit(desk, 2)
    await limit(desk, 1, strict=False, id="2")
    first, second = await started(desk), await started(desk)
    loose = await desk.running(**OTHER)
    await waiting(desk, job=loose)
    await waiting(desk, job=first)
    assert await hanging(desk) == []
    await desk.do(release(second, delay_seconds=30))
    assert await hanging(desk) == [("bot", "1")]
    assert await hanging(rival) == []
    desk.clock.advance(30)
    assert await hanging(desk) == []
