"""Jobs of an agent with a limit that wait for approval or are edited: who has the place meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Location
from interlock.domain.registry import Agent
from tests.contract.approvals import APPROVE, DENY, ballot, decided, edit, sweep_gates, waiting
from tests.contract.builders import Desk, cancel, complete, new_job
from tests.contract.connections import Door
from tests.support.truth import check_postgres, check_sqlite


async def line_of(desk: Desk, count: int, *, strict: bool = True) -> list[str]:
    """Jobs of an agent that runs one at a time."""
    await desk.store.set_agent(desk.tenant, Agent("bot", "1", 1, strict))
    return await desk.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(count)])


async def head(desk: Desk, **fields: Any) -> Job:
    (job,) = await desk.claim(limit=100, **fields)
    return job


async def check(desk: Desk, door: Door, place: str) -> None:
    if door.engine == "postgres":
        await check_postgres(door.connection, desk.tenant)  # type: ignore[attr-defined]
    else:
        check_sqlite(place, desk.tenant)
    await desk.verify()


async def test_a_waiting_job_of_a_strict_agent_keeps_its_place(desk: Desk, door: Door, place: str) -> None:
    first, second = await line_of(desk, 2)
    _, gate = await waiting(desk, job=await head(desk))
    assert await desk.claimed(limit=100) == []
    await decided(desk, ballot(gate))
    job = await head(desk)
    assert job.id == first
    await desk.do(complete(job))
    assert await desk.claimed(limit=100) == [second]
    await check(desk, door, place)


async def test_a_waiting_job_of_another_agent_gives_its_place_back_and_lines_up_again(
    desk: Desk, door: Door, place: str
) -> None:
    first, second, third = await line_of(desk, 3, strict=False)
    _, gate = await waiting(desk, job=await head(desk))
    job = await head(desk)
    assert job.id == second
    desk.clock.advance(1)
    await decided(desk, ballot(gate))
    assert (await desk.job(first)).location(desk.clock.now) is Location.BLOCKED
    await desk.do(complete(job))
    job = await head(desk)
    assert job.id == third  # it was due before the decision
    await desk.do(complete(job))
    assert await desk.claimed(limit=100) == [first]
    await check(desk, door, place)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("how", ["denied", "expired", "cancelled", "deadline"])
async def test_a_wait_that_ends_the_job_gives_the_place_back_once(
    desk: Desk, door: Door, place: str, how: str, strict: bool
) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "1", 1, strict))
    deadline = desk.after(100) if how == "deadline" else None
    await desk.add(agent_kind="bot", agent_id="1", deadline=deadline)
    second, _third = await desk.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(2)])
    job, gate = await waiting(desk, job=await head(desk), expires_in_seconds=100.0)
    if how == "denied":
        await decided(desk, ballot(gate, DENY))
    elif how == "cancelled":
        await desk.do(cancel(job.id))
    else:
        desk.clock.advance(100)
        await (sweep_gates(desk) if how == "expired" else desk.sweep())
    assert await desk.claimed(limit=100) == [second]
    await check(desk, door, place)


async def test_an_edit_of_the_head_lets_the_next_go_first(desk: Desk, door: Door, place: str) -> None:
    first, second, third = await line_of(desk, 3)
    await desk.do(edit(first, run_at=desk.after(10)))
    assert (await desk.job(first)).location(desk.clock.now) is Location.DELAYED
    job = await head(desk)
    assert job.id == second
    desk.clock.advance(10)
    await desk.do(complete(job))
    job = await head(desk)
    assert job.id == third
    await desk.do(complete(job))
    assert await desk.claimed(limit=100) == [first]
    await check(desk, door, place)


async def test_an_edit_can_bring_a_job_to_the_head_of_its_line(desk: Desk, door: Door, place: str) -> None:
    first, second, third = await line_of(desk, 3)
    await desk.do(edit(third, run_at=desk.after(-10)))
    await desk.do(edit(second, priority=100))  # decides between lines, not inside one
    for expected in (third, first, second):
        job = await head(desk)
        assert job.id == expected
        await desk.do(complete(job))
    await check(desk, door, place)


async def test_votes_that_do_not_decide_move_nobody(desk: Desk, door: Door, place: str) -> None:
    first, _ = await line_of(desk, 2)
    _, gate = await waiting(desk, job=await head(desk), required=2)
    await decided(desk, ballot(gate, APPROVE))
    assert await desk.claimed(limit=100) == []
    await decided(desk, ballot(gate, APPROVE, actor="user:bob"))
    assert await desk.claimed(limit=100) == [first]
    await check(desk, door, place)
