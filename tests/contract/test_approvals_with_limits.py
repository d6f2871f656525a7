"""Jobs of an agent with a limit that wait for approval or are edited: who has the place meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Location
from interlock.domain.registry import Agent
from tests.contract.approvals import APPROVE, DENY, command, decided, edit, sweep_gates, waiting
from tests.contract.builders import Desk, cancel, complete, new_job
from tests.contract.connections import Door
from tests.support.truth import check_postgres, check_sqlite


async def line_of(remote: Desk, count: int, *, strict: bool = True) -> list[str]:
    """Jobs of an agent that runs one at a time."""
    await remote.store.set_agent(remote.tenant, Agent("bot", "1", 1, strict))
    return await remote.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(count)])


async def head(remote: Desk, **fields: Any) -> Job:
    (job,) = await remote.claim(limit=100, **fields)
    return job


async def check(remote: Desk, adapter: Door, place: str) -> None:
    if adapter.engine == "postgres":
        await check_postgres(adapter.connection, remote.tenant)  # type: ignore[attr-defined]
    else:
        check_sqlite(place, remote.tenant)
    await remote.verify()


async def test_a_waiting_job_of_a_strict_agent_keeps_its_place(remote: Desk, adapter: Door, place: str) -> None:
    first, second = await line_of(remote, 2)
    _, approval = await waiting(remote, job=await head(remote))
    assert await remote.claimed(limit=100) == []
    await decided(remote, command(approval))
    job = await head(remote)
    assert job.id == first
    await remote.do(complete(job))
    assert await remote.claimed(limit=100) == [second]
    await check(remote, adapter, place)


async def test_a_waiting_job_of_another_agent_gives_its_place_back_and_lines_up_again(
    remote: Desk, adapter: Door, place: str
) -> None:
    first, second, third = await line_of(remote, 3, strict=False)
    _, approval = await waiting(remote, job=await head(remote))
    job = await head(remote)
    assert job.id == second
    remote.clock.advance(1)
    await decided(remote, command(approval))
    assert (await remote.job(first)).location(remote.clock.now) is Location.BLOCKED
    await remote.do(complete(job))
    job = await head(remote)
    assert job.id == third  # it was due before the decision
    await remote.do(complete(job))
    assert await remote.claimed(limit=100) == [first]
    await check(remote, adapter, place)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("how", ["denied", "expired", "cancelled", "deadline"])
async def test_a_wait_that_ends_the_job_gives_the_place_back_once(
    remote: Desk, adapter: Door, place: str, how: str, strict: bool
) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "1", 1, strict))
    deadline = remote.after(100) if how == "deadline" else None
    await remote.add(agent_kind="bot", agent_id="1", deadline=deadline)
    second, _third = await remote.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(2)])
    job, approval = await waiting(remote, job=await head(remote), expires_in_seconds=100.0)
    if how == "denied":
        await decided(remote, command(approval, DENY))
    elif how == "cancelled":
        await remote.do(cancel(job.id))
    else:
        remote.clock.advance(100)
        await (sweep_gates(remote) if how == "expired" else remote.sweep())
    assert await remote.claimed(limit=100) == [second]
    await check(remote, adapter, place)


async def test_an_edit_of_the_head_lets_the_next_go_first(remote: Desk, adapter: Door, place: str) -> None:
    first, second, third = await line_of(remote, 3)
    await remote.do(edit(first, run_at=remote.after(10)))
    assert (await remote.job(first)).location(remote.clock.now) is Location.DELAYED
    job = await head(remote)
    assert job.id == second
    remote.clock.advance(10)
    await remote.do(complete(job))
    job = await head(remote)
    assert job.id == third
    await remote.do(complete(job))
    assert await remote.claimed(limit=100) == [first]
    await check(remote, adapter, place)


async def test_an_edit_can_bring_a_job_to_the_head_of_its_line(remote: Desk, adapter: Door, place: str) -> None:
    first, second, third = await line_of(remote, 3)
    await remote.do(edit(third, run_at=remote.after(-10)))
    await remote.do(edit(second, priority=100))  # decides between lines, not inside one
    for expected in (third, first, second):
        job = await head(remote)
        assert job.id == expected
        await remote.do(complete(job))
    await check(remote, adapter, place)


async def test_votes_that_do_not_decide_move_nobody(remote: Desk, adapter: Door, place: str) -> None:
    first, _ = await line_of(remote, 2)
    _, approval = await waiting(remote, job=await head(remote), required=2)
    await decided(remote, command(approval, APPROVE))
    assert await remote.claimed(limit=100) == []
    await decided(remote, command(approval, APPROVE, actor="user:bob"))
    assert await remote.claimed(limit=100) == [first]
    await check(remote, adapter, place)
