"""An agent with a limit has a line: the first jobs that are due have a place, and only they are claimed."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Location
from interlock.errors import AgentInUse, UnknownAgent
from interlock.storage.contract import Terms
from tests.contract.builders import (
    FIXED,
    Desk,
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


async def test_a_serial_agent_runs_one_job_at_a_time_in_order(desk: Desk) -> None:
    await limit(desk, 1)
    ids = await ids_of(desk, 4)
    for id in ids:
        job = await only(desk)
        assert job.id == id
        assert await desk.claimed(limit=100) == []
        await desk.do(complete(job))
    assert await desk.claimed(limit=100) == []


async def test_a_limit_of_n_lets_the_first_n_run(desk: Desk) -> None:
    await limit(desk, 3)
    ids = await ids_of(desk, 5)
    assert await desk.claimed(limit=100) == ids[:3]
    assert [await location(desk, id) for id in ids] == [Location.IN_PROGRESS] * 3 + [Location.BLOCKED] * 2


async def test_priority_decides_between_lines_and_not_inside_one(desk: Desk) -> None:
    await limit(desk, 1)
    first = await desk.add(**BOT, priority=0)
    await desk.add(**BOT, priority=9)
    free = await desk.add(priority=5)
    assert await desk.claimed(limit=100) == [free, first]


async def test_a_blocked_agent_hides_nobody(desk: Desk) -> None:
    await limit(desk, 1)
    await ids_of(desk, 50)
    other = await desk.add(agent_kind="bot", agent_id="2")
    assert other in await desk.claimed(limit=2)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("how", ["complete", "fail", "cancel_ack", "force", "dead_letter", "expire"])
async def test_a_job_that_ends_gives_its_place_to_the_next(desk: Desk, how: str, strict: bool) -> None:
    await limit(desk, 1, strict=strict)
    first, second, third = await ids_of(desk, 3, max_attempts=1)
    job = await only(desk, lease_seconds=10)
    assert job.id == first
    if how == "complete":
        await desk.do(complete(job))
    elif how == "fail":
        await desk.do(fail(job, retryable=False))
    elif how == "cancel_ack":
        await desk.do(cancel(first))
        await desk.do(cancel_ack(job))
    elif how == "force":
        await desk.do(cancel(first, force=True))
    elif how == "dead_letter":
        await desk.do(fail(job))
    else:
        desk.clock.advance(11)
        await desk.do(expire(first))
    assert await desk.claimed(limit=100) == [second]
    assert await location(desk, third) is Location.BLOCKED


async def test_a_strict_agent_keeps_the_place_of_a_retrying_job(desk: Desk) -> None:
    await limit(desk, 1)
    first, second = await ids_of(desk, 2, backoff=FIXED)
    await desk.do(fail(await only(desk)))
    assert await desk.claimed(limit=100) == []
    assert await location(desk, first) is Location.DELAYED
    assert await location(desk, second) is Location.BLOCKED
    desk.clock.advance(10)
    job = await only(desk)
    assert job.id == first
    await desk.do(complete(job))
    assert await desk.claimed(limit=100) == [second]


async def test_an_agent_that_is_not_strict_goes_on_while_a_job_retries(desk: Desk) -> None:
    await limit(desk, 1, strict=False)
    first, second, third = await ids_of(desk, 3, backoff=FIXED)
    await desk.do(fail(await only(desk)))
    running = await only(desk)
    assert running.id == second
    desk.clock.advance(10)
    assert await location(desk, first) is Location.BLOCKED
    await desk.do(complete(running))
    assert await desk.claimed(limit=100) == [third]  # due before the retry


@pytest.mark.parametrize("strict", [True, False])
async def test_a_released_job_keeps_its_place_only_if_strict(desk: Desk, strict: bool) -> None:
    await limit(desk, 1, strict=strict)
    first, second = await ids_of(desk, 2)
    await desk.do(release(await only(desk), delay_seconds=5))
    assert await desk.claimed(limit=100) == ([] if strict else [second])
    desk.clock.advance(5)
    assert await desk.claimed(limit=100) == ([first] if strict else [])


@pytest.mark.parametrize("strict", [True, False])
async def test_a_job_that_waits_for_children_keeps_its_place_only_if_strict(desk: Desk, strict: bool) -> None:
    await limit(desk, 1, strict=strict)
    first, second = await ids_of(desk, 2)
    parent = await only(desk)
    child = await desk.add(type="child", parent_id=first)
    await desk.do(release(parent, children=(child,)))
    assert await desk.claimed(limit=100, types=frozenset({"work"})) == ([] if strict else [second])
    (child_job,) = await desk.claim(types=frozenset({"child"}))
    await desk.do(complete(child_job))
    assert await desk.claimed(limit=100, types=frozenset({"work"})) == ([first] if strict else [])
    assert await location(desk, first) is (Location.IN_PROGRESS if strict else Location.BLOCKED)


@pytest.mark.parametrize("strict", [True, False])
async def test_a_cancelled_waiting_parent_gives_its_place_back_once(desk: Desk, strict: bool) -> None:
    await limit(desk, 1, strict=strict)
    first, second, third = await ids_of(desk, 3)
    parent = await only(desk)
    child = await desk.add(type="child", parent_id=first)
    await desk.do(release(parent, children=(child,)))
    await desk.do(cancel(first))
    assert await desk.claimed(limit=100, types=frozenset({"work"})) == [second]
    assert await location(desk, third) is Location.BLOCKED


@pytest.mark.parametrize("parent_first", [True, False])
async def test_a_waiting_parent_that_is_cancelled_together_with_its_child_gives_its_place_back(
    desk: Desk, parent_first: bool
) -> None:
    await limit(desk, 1)
    first, second, third = await ids_of(desk, 3)
    child = await desk.add(type="child", parent_id=first)
    await desk.do(release(await only(desk, types=frozenset({"work"})), children=(child,)))
    both = [cancel(first), cancel(child)]
    await desk.store.carry_out(desk.tenant, both if parent_first else both[::-1])
    await desk.do(complete(await only(desk)))
    assert await desk.claimed(limit=10) == [third]
    assert (await desk.job(second)).finished_at is not None


@pytest.mark.parametrize("strict", [True, False])
async def test_a_job_that_is_asked_to_stop_keeps_its_place_until_it_does(desk: Desk, strict: bool) -> None:
    await limit(desk, 1, strict=strict)
    first, second, third = await ids_of(desk, 3)
    running = await only(desk)
    await desk.store.carry_out(desk.tenant, [cancel(first), cancel(second)])
    assert (await desk.job(first)).cancel_requested_at is not None
    assert await desk.claimed(limit=10) == []
    assert await location(desk, third) is Location.BLOCKED
    await desk.do(cancel_ack(running))
    assert await desk.claimed(limit=10) == [third]


async def test_a_cancelled_head_gives_its_place_to_the_next_and_a_cancelled_blocked_job_gives_none(desk: Desk) -> None:
    await limit(desk, 1)
    first, second, third = await ids_of(desk, 3)
    await desk.do(cancel(second))
    await desk.do(cancel(first))
    assert await desk.claimed(limit=100) == [third]


async def test_a_job_due_later_joins_when_it_is_due_without_a_claim_or_a_sweep(desk: Desk) -> None:
    await limit(desk, 1)
    later = await desk.add(**BOT, delay_seconds=60)
    assert await location(desk, later) is Location.DELAYED
    desk.clock.advance(60)
    assert await location(desk, later) is Location.READY
    assert await desk.claimed() == [later]


async def test_a_job_due_later_blocks_nobody_meanwhile(desk: Desk) -> None:
    await limit(desk, 1)
    later = await desk.add(**BOT, delay_seconds=60)
    now = await desk.add(**BOT)
    job = await only(desk)
    assert job.id == now
    desk.clock.advance(60)
    assert await location(desk, later) is Location.BLOCKED
    await desk.do(complete(job))
    assert await desk.claimed() == [later]


async def test_the_sweep_lets_due_jobs_join(desk: Desk) -> None:
    await limit(desk, 1)
    later = await desk.add(**BOT, delay_seconds=60)
    desk.clock.advance(61)
    assert await desk.store.join_lines(10) >= 1
    assert await desk.store.join_lines(10) == 0
    assert await location(desk, later) is Location.READY


async def test_a_job_that_was_due_earlier_overtakes_one_that_has_not_started(desk: Desk) -> None:
    await limit(desk, 1)
    desk.clock.advance(100)
    placed = await desk.add(**BOT)
    earlier = await desk.add(**BOT, run_at=desk.after(-50))
    assert await location(desk, placed) is Location.BLOCKED
    job = await only(desk)
    assert job.id == earlier
    await desk.do(complete(job))
    assert await desk.claimed() == [placed]


async def test_a_job_that_was_due_earlier_does_not_overtake_one_that_runs(desk: Desk) -> None:
    await limit(desk, 1)
    desk.clock.advance(100)
    await desk.add(**BOT)
    job = await only(desk)
    earlier = await desk.add(**BOT, run_at=desk.after(-50))
    assert await desk.claimed(limit=100) == []
    await desk.do(complete(job))
    assert await desk.claimed() == [earlier]


async def test_revoke_frees_and_retries_like_an_expiry(desk: Desk) -> None:
    await limit(desk, 1)
    first, second = await ids_of(desk, 2)
    await only(desk)
    await desk.do(revoke(first))
    job = await only(desk)
    assert job.id == first
    await desk.do(complete(job))
    assert await desk.claimed(limit=100) == [second]


async def test_a_passed_deadline_gives_the_place_to_the_next(desk: Desk) -> None:
    await limit(desk, 1)
    await desk.add(**BOT, deadline=desk.after(5))
    blocked = await desk.add(**BOT, deadline=desk.after(6))
    last = await desk.add(**BOT)
    desk.clock.advance(7)
    assert await desk.claimed(limit=100) == [last]
    assert (await desk.job(blocked)).finished_at is not None


async def test_an_agent_with_unfinished_jobs_cannot_be_deleted(desk: Desk) -> None:
    await limit(desk, 1)
    await ids_of(desk, 2)
    for _ in range(2):
        with pytest.raises(AgentInUse):
            await desk.store.delete_agent(desk.tenant, "bot", "1")
        await desk.do(complete(await only(desk)))
    assert await desk.store.delete_agent(desk.tenant, "bot", "1") is True
    assert await desk.store.delete_agent(desk.tenant, "bot", "1") is False
    (again,) = await ids_of(desk, 1)  # made anew, without a limit
    assert await desk.claimed() == [again]


async def test_an_unknown_agent_is_refused_where_it_must_not_be_made(desk: Desk) -> None:
    strict = Terms(implicit_agents=False)
    (answer,) = await desk.store.enqueue(desk.tenant, [new_job(**BOT)], terms=strict)
    assert isinstance(answer.error, UnknownAgent)  # type: ignore[union-attr]
    await limit(desk, None)
    (answer,) = await desk.store.enqueue(desk.tenant, [new_job(**BOT)], terms=strict)
    assert answer.replayed is False  # type: ignore[union-attr]


async def test_tenants_have_lines_of_their_own(desk: Desk, rival: Desk) -> None:
    await limit(desk, 1)
    await limit(rival, 1)
    mine, theirs = await desk.add(**BOT), await rival.add(**BOT)
    assert await desk.claimed(limit=9) == [mine]
    assert await rival.claimed(limit=9) == [theirs]
