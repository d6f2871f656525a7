"""New limits and a new strictness, while jobs of the agent run, retry and wait."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location, Status
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.builders import FIXED, Desk, cancel, complete, fail, release
from tests.contract.concurrency import ids_of, limit, location, only
from tests.contract.connections import Door


async def test_raising_a_limit_acts_at_once(desk: Desk) -> None:
    await limit(desk, 1)
    ids = await ids_of(desk, 4)
    assert await desk.claimed(limit=100) == ids[:1]
    await limit(desk, 3)
    assert await desk.claimed(limit=100) == ids[1:3]
    await limit(desk, None)
    assert await desk.claimed(limit=100) == ids[3:]


async def test_lowering_a_limit_acts_as_jobs_end(desk: Desk) -> None:
    await limit(desk, 3)
    ids = await ids_of(desk, 5)
    running = await desk.claim(limit=100)
    await limit(desk, 1)
    assert (await desk.store.agents(desk.tenant, ("", ""), 10))[0].max_concurrency == 1
    for job in running[:2]:
        await desk.do(complete(job))
        assert await desk.claimed(limit=100) == []
    await desk.do(complete(running[2]))
    assert await desk.claimed(limit=100) == [ids[3]]


async def test_a_new_limit_counts_those_that_run_already(desk: Desk) -> None:
    ids = await ids_of(desk, 4)
    running = await desk.claim(limit=2)
    await limit(desk, 2)
    assert await desk.claimed(limit=100) == []
    await desk.do(complete(running[0]))
    assert await desk.claimed(limit=100) == [ids[2]]


async def test_an_agent_that_is_strict_no_more_takes_back_the_places_of_jobs_that_do_not_run(desk: Desk) -> None:
    await limit(desk, 1)
    first, second, _ = await ids_of(desk, 3, backoff=FIXED)
    await desk.do(fail(await only(desk)))
    await limit(desk, 1, strict=False)
    assert await desk.claimed(limit=100) == [second]
    desk.clock.advance(10)
    assert await location(desk, first) is Location.BLOCKED


async def test_jobs_that_lost_their_places_get_none_back_when_the_agent_becomes_strict(desk: Desk) -> None:
    await limit(desk, 2, strict=False)
    ids = await ids_of(desk, 6, backoff=FIXED, max_attempts=9)
    for _ in range(3):
        for job in await desk.claim(limit=2):
            await desk.do(fail(job))
    desk.clock.advance(10)
    assert None not in [(await desk.job(id)).started_at for id in ids], "all have started, none of them runs"
    await limit(desk, 2, strict=True)
    running = await desk.claim(limit=100)
    assert [job.id for job in running] == ids[:2]
    assert [await location(desk, id) for id in ids[2:]] == [Location.BLOCKED] * 4
    await desk.do(complete(running[0]))
    assert await desk.claimed(limit=100) == [ids[2]]


async def test_a_place_kept_under_a_strict_agent_is_kept_while_it_has_no_limit(desk: Desk) -> None:
    await limit(desk, 1)
    first, second = await ids_of(desk, 2, backoff=FIXED)
    await desk.do(fail(await only(desk)))
    await limit(desk, None)
    await limit(desk, 1)
    assert await desk.claimed(limit=100) == []
    desk.clock.advance(10)
    assert await desk.claimed(limit=100) == [first]
    assert await location(desk, second) is Location.BLOCKED


@pytest.mark.parametrize("how", ["retry", "release", "approval", "children"])
async def test_jobs_that_stopped_before_their_agent_had_a_limit_line_up_like_any_other(desk: Desk, how: str) -> None:
    """Without a limit there is no line, and so no place to keep."""
    ids = await ids_of(desk, 4, backoff=FIXED)
    for job in await desk.claim(limit=3):
        match how:
            case "retry":
                await desk.do(fail(job))
            case "release":
                await desk.do(release(job, delay_seconds=10))
            case "children":
                child = await desk.add(type="child", parent_id=job.id)
                await desk.do(release(job, children=(child,)))
                await desk.do(complete(await only(desk, types=frozenset({"child"}))))
            case "approval":
                _, gate = await waiting(desk, job=job)
                await decided(desk, ballot(gate))
    await limit(desk, 1)
    desk.clock.advance(10)
    for _ in ids:
        running = await only(desk)
        await desk.do(complete(running))
    assert {(await desk.job(id)).status for id in ids} == {Status.SUCCEEDED}


async def test_a_place_lost_under_a_loose_agent_stays_lost_whatever_the_limit_was_meanwhile(desk: Desk) -> None:
    await limit(desk, 1)
    first, second = await ids_of(desk, 2, backoff=FIXED)
    await desk.do(fail(await only(desk)))
    await limit(desk, None, strict=False)
    await limit(desk, None)
    await limit(desk, 1)
    assert await desk.claimed(limit=100) == [second]
    desk.clock.advance(10)
    assert await desk.claimed(limit=100) == []
    assert await location(desk, first) is Location.BLOCKED


async def test_a_parent_that_gave_its_place_back_lines_up_though_the_agent_is_strict_by_now(desk: Desk) -> None:
    await limit(desk, 1, strict=False)
    first, second = await ids_of(desk, 2)
    child = await desk.add(type="child", parent_id=first)
    await desk.do(release(await only(desk, types=frozenset({"work"})), children=(child,)))
    running = await only(desk, types=frozenset({"work"}))
    assert running.id == second
    await limit(desk, 1, strict=True)
    await desk.do(complete(await only(desk)))
    assert await desk.claimed(limit=100) == []
    assert await location(desk, first) is Location.BLOCKED
    await desk.do(complete(running))
    assert await desk.claimed(limit=100) == [first]


async def test_a_parent_cancelled_without_a_place_gives_none_back(desk: Desk) -> None:
    await limit(desk, 1, strict=False)
    first, second, third = await ids_of(desk, 3)
    child = await desk.add(type="child", parent_id=first)
    await desk.do(release(await only(desk, types=frozenset({"work"})), children=(child,)))
    running = await only(desk, types=frozenset({"work"}))
    assert running.id == second
    await limit(desk, 1, strict=True)
    await desk.do(cancel(first))
    assert await desk.claimed(limit=100, types=frozenset({"work"})) == []
    await desk.do(complete(running))
    assert await desk.claimed(limit=100, types=frozenset({"work"})) == [third]


async def test_a_job_that_waits_for_approval_without_a_place_lines_up_though_the_agent_is_strict_by_now(
    desk: Desk,
) -> None:
    await limit(desk, 1, strict=False)
    first, second = await ids_of(desk, 2)
    _, gate = await waiting(desk, job=await only(desk))
    running = await only(desk)
    assert running.id == second
    await limit(desk, 1, strict=True)
    await decided(desk, ballot(gate))
    assert await desk.claimed(limit=100) == []
    await desk.do(complete(running))
    assert await desk.claimed(limit=100) == [first]


async def test_a_job_cancelled_at_its_gate_without_a_place_gives_none_back(desk: Desk) -> None:
    await limit(desk, 1, strict=False)
    first, _, third = await ids_of(desk, 3)
    await waiting(desk, job=await only(desk))
    running = await only(desk)
    await limit(desk, 1, strict=True)
    await desk.do(cancel(first))
    assert await desk.claimed(limit=100) == []
    await desk.do(complete(running))
    assert await desk.claimed(limit=100) == [third]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_a_claim_passes_over_what_a_new_limit_is_just_lining_up(desk: Desk, door: Door) -> None:
    await limit(desk, 2)
    first, second = await ids_of(desk, 2)
    free = await desk.add()
    await door.run("BEGIN")
    await door.run("UPDATE agent SET max_concurrency = 1 WHERE tenant = $1", desk.tenant)
    assert await desk.claimed(limit=3) == [free]  # and did not wait
    await door.run("COMMIT")
    assert await desk.claimed(limit=2) == [first]
    assert await location(desk, second) is Location.BLOCKED
    await desk.verify()
