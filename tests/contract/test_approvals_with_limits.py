"""Jobs of an agent with a limit that wait for approval or are edited: which job has the concurrency slot meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import Location
from interlock.domain.registry import Agent
from tests.contract.approvals import APPROVE, DENY, command, decided, edit, sweep_approvals, waiting
from tests.contract.builders import TenantQueue, cancel, complete, new_job
from tests.contract.connections import SqlConnection
from tests.support.invariants import check_postgres, check_sqlite


async def line_of(queue: TenantQueue, count: int, *, strict: bool = True) -> list[str]:
    """Jobs of an agent that runs one at a time."""
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", 1, strict))
    return await queue.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(count)])


async def head(queue: TenantQueue, **fields: Any) -> Job:
    (job,) = await queue.claim(limit=100, **fields)
    return job


async def check(queue: TenantQueue, sql: SqlConnection, place: str) -> None:
    if sql.engine == "postgres":
        await check_postgres(sql.connection, queue.tenant)  # type: ignore[attr-defined]
    else:
        check_sqlite(place, queue.tenant)
    await queue.verify()


async def test_a_waiting_job_of_a_strict_agent_keeps_its_slot(
    queue: TenantQueue, sql: SqlConnection, place: str
) -> None:
    first, second = await line_of(queue, 2)
    _, approval = await waiting(queue, job=await head(queue))
    assert await queue.claimed(limit=100) == []
    await decided(queue, command(approval))
    job = await head(queue)
    assert job.id == first
    await queue.do(complete(job))
    assert await queue.claimed(limit=100) == [second]
    await check(queue, sql, place)


async def test_a_waiting_job_of_another_agent_releases_its_slot_and_queues_for_one_again(
    queue: TenantQueue, sql: SqlConnection, place: str
) -> None:
    first, second, third = await line_of(queue, 3, strict=False)
    _, approval = await waiting(queue, job=await head(queue))
    job = await head(queue)
    assert job.id == second
    queue.clock.advance(1)
    await decided(queue, command(approval))
    assert (await queue.job(first)).location(queue.clock.now) is Location.BLOCKED
    await queue.do(complete(job))
    job = await head(queue)
    assert job.id == third  # it was due before the decision
    await queue.do(complete(job))
    assert await queue.claimed(limit=100) == [first]
    await check(queue, sql, place)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("how", ["denied", "expired", "cancelled", "deadline"])
async def test_a_wait_that_ends_the_job_releases_the_slot_once(
    queue: TenantQueue, sql: SqlConnection, place: str, how: str, strict: bool
) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", 1, strict))
    deadline = queue.after(100) if how == "deadline" else None
    await queue.add(agent_kind="bot", agent_id="1", deadline=deadline)
    second, _third = await queue.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(2)])
    job, approval = await waiting(queue, job=await head(queue), expires_in_seconds=100.0)
    if how == "denied":
        await decided(queue, command(approval, DENY))
    elif how == "cancelled":
        await queue.do(cancel(job.id))
    else:
        queue.clock.advance(100)
        await (sweep_approvals(queue) if how == "expired" else queue.sweep())
    assert await queue.claimed(limit=100) == [second]
    await check(queue, sql, place)


async def test_an_edit_of_the_first_job_lets_the_next_one_start(
    queue: TenantQueue, sql: SqlConnection, place: str
) -> None:
    first, second, third = await line_of(queue, 3)
    await queue.do(edit(first, run_at=queue.after(10)))
    assert (await queue.job(first)).location(queue.clock.now) is Location.DELAYED
    job = await head(queue)
    assert job.id == second
    queue.clock.advance(10)
    await queue.do(complete(job))
    job = await head(queue)
    assert job.id == third
    await queue.do(complete(job))
    assert await queue.claimed(limit=100) == [first]
    await check(queue, sql, place)


async def test_an_edit_can_make_a_job_the_next_to_start(queue: TenantQueue, sql: SqlConnection, place: str) -> None:
    first, second, third = await line_of(queue, 3)
    await queue.do(edit(third, run_at=queue.after(-10)))
    await queue.do(edit(second, priority=100))  # decides between lines, not inside one
    for expected in (third, first, second):
        job = await head(queue)
        assert job.id == expected
        await queue.do(complete(job))
    await check(queue, sql, place)


async def test_votes_that_do_not_decide_change_no_slot(queue: TenantQueue, sql: SqlConnection, place: str) -> None:
    first, _ = await line_of(queue, 2)
    _, approval = await waiting(queue, job=await head(queue), required=2)
    await decided(queue, command(approval, APPROVE))
    assert await queue.claimed(limit=100) == []
    await decided(queue, command(approval, APPROVE, actor="user:bob"))
    assert await queue.claimed(limit=100) == [first]
    await check(queue, sql, place)
