"""New limits and a new strictness, while jobs of the agent run, retry and wait."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location, Status
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import FIXED, TenantQueue, cancel, complete, fail, release
from tests.contract.concurrency import ids_of, limit, location, only
from tests.contract.connections import SqlConnection


async def test_raising_a_limit_takes_effect_immediately(queue: TenantQueue) -> None:
    await limit(queue, 1)
    ids = await ids_of(queue, 4)
    assert await queue.claimed(limit=100) == ids[:1]
    await limit(queue, 3)
    assert await queue.claimed(limit=100) == ids[1:3]
    await limit(queue, None)
    assert await queue.claimed(limit=100) == ids[3:]


async def test_lowering_a_limit_takes_effect_as_jobs_finish(queue: TenantQueue) -> None:
    await limit(queue, 3)
    ids = await ids_of(queue, 5)
    running = await queue.claim(limit=100)
    await limit(queue, 1)
    assert (await queue.store.registry.agents(queue.tenant, ("", ""), 10))[0].max_concurrency == 1
    for job in running[:2]:
        await queue.do(complete(job))
        assert await queue.claimed(limit=100) == []
    await queue.do(complete(running[2]))
    assert await queue.claimed(limit=100) == [ids[3]]


async def test_a_new_limit_counts_jobs_that_already_run(queue: TenantQueue) -> None:
    ids = await ids_of(queue, 4)
    running = await queue.claim(limit=2)
    await limit(queue, 2)
    assert await queue.claimed(limit=100) == []
    await queue.do(complete(running[0]))
    assert await queue.claimed(limit=100) == [ids[2]]


async def test_an_agent_that_stops_being_strict_reclaims_the_slots_of_waiting_jobs(queue: TenantQueue) -> None:
    await limit(queue, 1)
    first, second, _ = await ids_of(queue, 3, backoff=FIXED)
    await queue.do(fail(await only(queue)))
    await limit(queue, 1, strict=False)
    assert await queue.claimed(limit=100) == [second]
    queue.clock.advance(10)
    assert await location(queue, first) is Location.BLOCKED


async def test_jobs_that_lost_their_slots_get_none_back_when_the_agent_becomes_strict(queue: TenantQueue) -> None:
    await limit(queue, 2, strict=False)
    ids = await ids_of(queue, 6, backoff=FIXED, max_attempts=9)
    for _ in range(3):
        for job in await queue.claim(limit=2):
            await queue.do(fail(job))
    queue.clock.advance(10)
    assert None not in [(await queue.job(id)).started_at for id in ids], "all have started, none of them runs"
    await limit(queue, 2, strict=True)
    running = await queue.claim(limit=100)
    assert [job.id for job in running] == ids[:2]
    assert [await location(queue, id) for id in ids[2:]] == [Location.BLOCKED] * 4
    await queue.do(complete(running[0]))
    assert await queue.claimed(limit=100) == [ids[2]]


async def test_a_slot_kept_by_a_strict_agent_is_kept_while_it_has_no_limit(queue: TenantQueue) -> None:
    await limit(queue, 1)
    first, second = await ids_of(queue, 2, backoff=FIXED)
    await queue.do(fail(await only(queue)))
    await limit(queue, None)
    await limit(queue, 1)
    assert await queue.claimed(limit=100) == []
    queue.clock.advance(10)
    assert await queue.claimed(limit=100) == [first]
    assert await location(queue, second) is Location.BLOCKED


@pytest.mark.parametrize("how", ["retry", "release", "approval", "children"])
async def test_jobs_that_stopped_before_their_agent_had_a_limit_queue_for_slots_like_others(
    queue: TenantQueue, how: str
) -> None:
    """Without a limit there is no line, and so no place to keep."""
    ids = await ids_of(queue, 4, backoff=FIXED)
    for job in await queue.claim(limit=3):
        match how:
            case "retry":
                await queue.do(fail(job))
            case "release":
                await queue.do(release(job, delay_seconds=10))
            case "children":
                child = await queue.add(type="child", parent_id=job.id)
                await queue.do(release(job, children=(child,)))
                await queue.do(complete(await only(queue, types=frozenset({"child"}))))
            case "approval":
                _, approval = await waiting(queue, job=job)
                await decided(queue, command(approval))
    await limit(queue, 1)
    queue.clock.advance(10)
    for _ in ids:
        running = await only(queue)
        await queue.do(complete(running))
    assert {(await queue.job(id)).status for id in ids} == {Status.SUCCEEDED}


async def test_a_slot_released_by_an_agent_that_is_not_strict_stays_released(queue: TenantQueue) -> None:
    await limit(queue, 1)
    first, second = await ids_of(queue, 2, backoff=FIXED)
    await queue.do(fail(await only(queue)))
    await limit(queue, None, strict=False)
    await limit(queue, None)
    await limit(queue, 1)
    assert await queue.claimed(limit=100) == [second]
    queue.clock.advance(10)
    assert await queue.claimed(limit=100) == []
    assert await location(queue, first) is Location.BLOCKED


async def test_a_parent_that_released_its_slot_queues_for_one_although_the_agent_is_strict_now(
    queue: TenantQueue,
) -> None:
    await limit(queue, 1, strict=False)
    first, second = await ids_of(queue, 2)
    child = await queue.add(type="child", parent_id=first)
    await queue.do(release(await only(queue, types=frozenset({"work"})), children=(child,)))
    running = await only(queue, types=frozenset({"work"}))
    assert running.id == second
    await limit(queue, 1, strict=True)
    await queue.do(complete(await only(queue)))
    assert await queue.claimed(limit=100) == []
    assert await location(queue, first) is Location.BLOCKED
    await queue.do(complete(running))
    assert await queue.claimed(limit=100) == [first]


async def test_a_parent_cancelled_without_a_slot_frees_none(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    first, second, third = await ids_of(queue, 3)
    child = await queue.add(type="child", parent_id=first)
    await queue.do(release(await only(queue, types=frozenset({"work"})), children=(child,)))
    running = await only(queue, types=frozenset({"work"}))
    assert running.id == second
    await limit(queue, 1, strict=True)
    await queue.do(cancel(first))
    assert await queue.claimed(limit=100, types=frozenset({"work"})) == []
    await queue.do(complete(running))
    assert await queue.claimed(limit=100, types=frozenset({"work"})) == [third]


async def test_a_job_waiting_for_approval_without_a_slot_queues_for_one_although_the_agent_is_strict_now(
    queue: TenantQueue,
) -> None:
    await limit(queue, 1, strict=False)
    first, second = await ids_of(queue, 2)
    _, approval = await waiting(queue, job=await only(queue))
    running = await only(queue)
    assert running.id == second
    await limit(queue, 1, strict=True)
    await decided(queue, command(approval))
    assert await queue.claimed(limit=100) == []
    await queue.do(complete(running))
    assert await queue.claimed(limit=100) == [first]


async def test_a_job_cancelled_at_its_approval_without_a_slot_frees_none(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    first, _, third = await ids_of(queue, 3)
    await waiting(queue, job=await only(queue))
    running = await only(queue)
    await limit(queue, 1, strict=True)
    await queue.do(cancel(first))
    assert await queue.claimed(limit=100) == []
    await queue.do(complete(running))
    assert await queue.claimed(limit=100) == [third]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_a_claim_skips_jobs_that_a_new_limit_is_just_blocking(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    await limit(queue, 2)
    first, second = await ids_of(queue, 2)
    free = await queue.add()
    await sql.run("BEGIN")
    await sql.run("UPDATE agent SET max_concurrency = 1 WHERE tenant = $1", queue.tenant)
    assert await queue.claimed(limit=3) == [free]  # and did not wait
    await sql.run("COMMIT")
    assert await queue.claimed(limit=2) == [first]
    assert await location(queue, second) is Location.BLOCKED
    await queue.verify()
