"""New limits and a new strictness, while jobs of the agent run, retry and wait."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location, Status
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import FIXED, Desk, cancel, complete, fail, release
from tests.contract.concurrency import ids_of, limit, location, only
from tests.contract.connections import Door


async def test_raising_a_limit_acts_at_once(remote: Desk) -> None:
    await limit(remote, 1)
    ids = await ids_of(remote, 4)
    assert await remote.claimed(limit=100) == ids[:1]
    await limit(remote, 3)
    assert await remote.claimed(limit=100) == ids[1:3]
    await limit(remote, None)
    assert await remote.claimed(limit=100) == ids[3:]


async def test_lowering_a_limit_acts_as_jobs_end(remote: Desk) -> None:
    await limit(remote, 3)
    ids = await ids_of(remote, 5)
    running = await remote.claim(limit=100)
    await limit(remote, 1)
    assert (await remote.store.agents(remote.tenant, ("", ""), 10))[0].max_concurrency == 1
    for job in running[:2]:
        await remote.do(complete(job))
        assert await remote.claimed(limit=100) == []
    await remote.do(complete(running[2]))
    assert await remote.claimed(limit=100) == [ids[3]]


async def test_a_new_limit_counts_those_that_run_already(remote: Desk) -> None:
    ids = await ids_of(remote, 4)
    running = await remote.claim(limit=2)
    await limit(remote, 2)
    assert await remote.claimed(limit=100) == []
    await remote.do(complete(running[0]))
    assert await remote.claimed(limit=100) == [ids[2]]


async def test_an_agent_that_is_strict_no_more_takes_back_the_places_of_jobs_that_do_not_run(remote: Desk) -> None:
    await limit(remote, 1)
    first, second, _ = await ids_of(remote, 3, backoff=FIXED)
    await remote.do(fail(await only(remote)))
    await limit(remote, 1, strict=False)
    assert await remote.claimed(limit=100) == [second]
    remote.clock.advance(10)
    assert await location(remote, first) is Location.BLOCKED


async def test_jobs_that_lost_their_places_get_none_back_when_the_agent_becomes_strict(remote: Desk) -> None:
    await limit(remote, 2, strict=False)
    ids = await ids_of(remote, 6, backoff=FIXED, max_attempts=9)
    for _ in range(3):
        for job in await remote.claim(limit=2):
            await remote.do(fail(job))
    remote.clock.advance(10)
    assert None not in [(await remote.job(id)).started_at for id in ids], "all have started, none of them runs"
    await limit(remote, 2, strict=True)
    running = await remote.claim(limit=100)
    assert [job.id for job in running] == ids[:2]
    assert [await location(remote, id) for id in ids[2:]] == [Location.BLOCKED] * 4
    await remote.do(complete(running[0]))
    assert await remote.claimed(limit=100) == [ids[2]]


async def test_a_place_kept_under_a_strict_agent_is_kept_while_it_has_no_limit(remote: Desk) -> None:
    await limit(remote, 1)
    first, second = await ids_of(remote, 2, backoff=FIXED)
    await remote.do(fail(await only(remote)))
    await limit(remote, None)
    await limit(remote, 1)
    assert await remote.claimed(limit=100) == []
    remote.clock.advance(10)
    assert await remote.claimed(limit=100) == [first]
    assert await location(remote, second) is Location.BLOCKED


@pytest.mark.parametrize("how", ["retry", "release", "approval", "children"])
async def test_jobs_that_stopped_before_their_agent_had_a_limit_line_up_like_any_other(remote: Desk, how: str) -> None:
    """Without a limit there is no line, and so no place to keep."""
    ids = await ids_of(remote, 4, backoff=FIXED)
    for job in await remote.claim(limit=3):
        match how:
            case "retry":
                await remote.do(fail(job))
            case "release":
                await remote.do(release(job, delay_seconds=10))
            case "children":
                child = await remote.add(type="child", parent_id=job.id)
                await remote.do(release(job, children=(child,)))
                await remote.do(complete(await only(remote, types=frozenset({"child"}))))
            case "approval":
                _, approval = await waiting(remote, job=job)
                await decided(remote, command(approval))
    await limit(remote, 1)
    remote.clock.advance(10)
    for _ in ids:
        running = await only(remote)
        await remote.do(complete(running))
    assert {(await remote.job(id)).status for id in ids} == {Status.SUCCEEDED}


async def test_a_place_lost_under_a_loose_agent_stays_lost_whatever_the_limit_was_meanwhile(remote: Desk) -> None:
    await limit(remote, 1)
    first, second = await ids_of(remote, 2, backoff=FIXED)
    await remote.do(fail(await only(remote)))
    await limit(remote, None, strict=False)
    await limit(remote, None)
    await limit(remote, 1)
    assert await remote.claimed(limit=100) == [second]
    remote.clock.advance(10)
    assert await remote.claimed(limit=100) == []
    assert await location(remote, first) is Location.BLOCKED


async def test_a_parent_that_gave_its_place_back_lines_up_though_the_agent_is_strict_by_now(remote: Desk) -> None:
    await limit(remote, 1, strict=False)
    first, second = await ids_of(remote, 2)
    child = await remote.add(type="child", parent_id=first)
    await remote.do(release(await only(remote, types=frozenset({"work"})), children=(child,)))
    running = await only(remote, types=frozenset({"work"}))
    assert running.id == second
    await limit(remote, 1, strict=True)
    await remote.do(complete(await only(remote)))
    assert await remote.claimed(limit=100) == []
    assert await location(remote, first) is Location.BLOCKED
    await remote.do(complete(running))
    assert await remote.claimed(limit=100) == [first]


async def test_a_parent_cancelled_without_a_place_gives_none_back(remote: Desk) -> None:
    await limit(remote, 1, strict=False)
    first, second, third = await ids_of(remote, 3)
    child = await remote.add(type="child", parent_id=first)
    await remote.do(release(await only(remote, types=frozenset({"work"})), children=(child,)))
    running = await only(remote, types=frozenset({"work"}))
    assert running.id == second
    await limit(remote, 1, strict=True)
    await remote.do(cancel(first))
    assert await remote.claimed(limit=100, types=frozenset({"work"})) == []
    await remote.do(complete(running))
    assert await remote.claimed(limit=100, types=frozenset({"work"})) == [third]


async def test_a_job_that_waits_for_approval_without_a_place_lines_up_though_the_agent_is_strict_by_now(
    remote: Desk,
) -> None:
    await limit(remote, 1, strict=False)
    first, second = await ids_of(remote, 2)
    _, approval = await waiting(remote, job=await only(remote))
    running = await only(remote)
    assert running.id == second
    await limit(remote, 1, strict=True)
    await decided(remote, command(approval))
    assert await remote.claimed(limit=100) == []
    await remote.do(complete(running))
    assert await remote.claimed(limit=100) == [first]


async def test_a_job_cancelled_at_its_gate_without_a_place_gives_none_back(remote: Desk) -> None:
    await limit(remote, 1, strict=False)
    first, _, third = await ids_of(remote, 3)
    await waiting(remote, job=await only(remote))
    running = await only(remote)
    await limit(remote, 1, strict=True)
    await remote.do(cancel(first))
    assert await remote.claimed(limit=100) == []
    await remote.do(complete(running))
    assert await remote.claimed(limit=100) == [third]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_a_claim_passes_over_what_a_new_limit_is_just_lining_up(
    remote: Desk, adapter: Door
) -> None:
    await limit(remote, 2)
    first, second = await ids_of(remote, 2)
    free = await remote.add()
    await adapter.run("BEGIN")
    await adapter.run("UPDATE agent SET max_concurrency = 1 WHERE tenant = $1", remote.tenant)
    assert await remote.claimed(limit=3) == [free]  # and did not wait
    await adapter.run("COMMIT")
    assert await remote.claimed(limit=2) == [first]
    assert await location(remote, second) is Location.BLOCKED
    await remote.verify()
