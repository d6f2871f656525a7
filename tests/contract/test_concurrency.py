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


async def test_a_serial_agent_runs_one_job_at_a_time_in_order(remote: Desk) -> None:
    await limit(remote, 1)
    ids = await ids_of(remote, 4)
    for id in ids:
        job = await only(remote)
        assert job.id == id
        assert await remote.claimed(limit=100) == []
        await remote.do(complete(job))
    assert await remote.claimed(limit=100) == []


async def test_a_limit_of_n_lets_the_first_n_run(remote: Desk) -> None:
    await limit(remote, 3)
    ids = await ids_of(remote, 5)
    assert await remote.claimed(limit=100) == ids[:3]
    assert [await location(remote, id) for id in ids] == [Location.IN_PROGRESS] * 3 + [Location.BLOCKED] * 2


async def test_priority_decides_between_lines_and_not_inside_one(remote: Desk) -> None:
    await limit(remote, 1)
    first = await remote.add(**BOT, priority=0)
    await remote.add(**BOT, priority=9)
    free = await remote.add(priority=5)
    assert await remote.claimed(limit=100) == [free, first]


async def test_a_blocked_agent_hides_nobody(remote: Desk) -> None:
    await limit(remote, 1)
    await ids_of(remote, 50)
    other = await remote.add(agent_kind="bot", agent_id="2")
    assert other in await remote.claimed(limit=2)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("how", ["complete", "fail", "cancel_ack", "force", "dead_letter", "expire"])
async def test_a_job_that_ends_gives_its_place_to_the_next(remote: Desk, how: str, strict: bool) -> None:
    await limit(remote, 1, strict=strict)
    first, second, third = await ids_of(remote, 3, max_attempts=1)
    job = await only(remote, lease_seconds=10)
    assert job.id == first
    if how == "complete":
        await remote.do(complete(job))
    elif how == "fail":
        await remote.do(fail(job, retryable=False))
    elif how == "cancel_ack":
        await remote.do(cancel(first))
        await remote.do(cancel_ack(job))
    elif how == "force":
        await remote.do(cancel(first, force=True))
    elif how == "dead_letter":
        await remote.do(fail(job))
    else:
        remote.clock.advance(11)
        await remote.do(expire(first))
    assert await remote.claimed(limit=100) == [second]
    assert await location(remote, third) is Location.BLOCKED


async def test_a_strict_agent_keeps_the_place_of_a_retrying_job(remote: Desk) -> None:
    await limit(remote, 1)
    first, second = await ids_of(remote, 2, backoff=FIXED)
    await remote.do(fail(await only(remote)))
    assert await remote.claimed(limit=100) == []
    assert await location(remote, first) is Location.DELAYED
    assert await location(remote, second) is Location.BLOCKED
    remote.clock.advance(10)
    job = await only(remote)
    assert job.id == first
    await remote.do(complete(job))
    assert await remote.claimed(limit=100) == [second]


async def test_an_agent_that_is_not_strict_goes_on_while_a_job_retries(remote: Desk) -> None:
    await limit(remote, 1, strict=False)
    first, second, third = await ids_of(remote, 3, backoff=FIXED)
    await remote.do(fail(await only(remote)))
    running = await only(remote)
    assert running.id == second
    remote.clock.advance(10)
    assert await location(remote, first) is Location.BLOCKED
    await remote.do(complete(running))
    assert await remote.claimed(limit=100) == [third]  # due before the retry


@pytest.mark.parametrize("strict", [True, False])
async def test_a_released_job_keeps_its_place_only_if_strict(remote: Desk, strict: bool) -> None:
    await limit(remote, 1, strict=strict)
    first, second = await ids_of(remote, 2)
    await remote.do(release(await only(remote), delay_seconds=5))
    assert await remote.claimed(limit=100) == ([] if strict else [second])
    remote.clock.advance(5)
    assert await remote.claimed(limit=100) == ([first] if strict else [])


@pytest.mark.parametrize("strict", [True, False])
async def test_a_job_that_waits_for_children_keeps_its_place_only_if_strict(remote: Desk, strict: bool) -> None:
    await limit(remote, 1, strict=strict)
    first, second = await ids_of(remote, 2)
    parent = await only(remote)
    child = await remote.add(type="child", parent_id=first)
    await remote.do(release(parent, children=(child,)))
    assert await remote.claimed(limit=100, types=frozenset({"work"})) == ([] if strict else [second])
    (child_job,) = await remote.claim(types=frozenset({"child"}))
    await remote.do(complete(child_job))
    assert await remote.claimed(limit=100, types=frozenset({"work"})) == ([first] if strict else [])
    assert await location(remote, first) is (Location.IN_PROGRESS if strict else Location.BLOCKED)


@pytest.mark.parametrize("strict", [True, False])
async def test_a_cancelled_waiting_parent_gives_its_place_back_once(remote: Desk, strict: bool) -> None:
    await limit(remote, 1, strict=strict)
    first, second, third = await ids_of(remote, 3)
    parent = await only(remote)
    child = await remote.add(type="child", parent_id=first)
    await remote.do(release(parent, children=(child,)))
    await remote.do(cancel(first))
    assert await remote.claimed(limit=100, types=frozenset({"work"})) == [second]
    assert await location(remote, third) is Location.BLOCKED


@pytest.mark.parametrize("parent_first", [True, False])
async def test_a_waiting_parent_that_is_cancelled_together_with_its_child_gives_its_place_back(
    remote: Desk, parent_first: bool
) -> None:
    await limit(remote, 1)
    first, second, third = await ids_of(remote, 3)
    child = await remote.add(type="child", parent_id=first)
    await remote.do(release(await only(remote, types=frozenset({"work"})), children=(child,)))
    both = [cancel(first), cancel(child)]
    await remote.store.carry_out(remote.tenant, both if parent_first else both[::-1])
    await remote.do(complete(await only(remote)))
    assert await remote.claimed(limit=10) == [third]
    assert (await remote.job(second)).finished_at is not None


@pytest.mark.parametrize("strict", [True, False])
async def test_a_job_that_is_asked_to_stop_keeps_its_place_until_it_does(remote: Desk, strict: bool) -> None:
    await limit(remote, 1, strict=strict)
    first, second, third = await ids_of(remote, 3)
    running = await only(remote)
    await remote.store.carry_out(remote.tenant, [cancel(first), cancel(second)])
    assert (await remote.job(first)).cancel_requested_at is not None
    assert await remote.claimed(limit=10) == []
    assert await location(remote, third) is Location.BLOCKED
    await remote.do(cancel_ack(running))
    assert await remote.claimed(limit=10) == [third]


async def test_a_cancelled_head_gives_its_place_to_the_next_and_a_cancelled_blocked_job_gives_none(
    remote: Desk,
) -> None:
    await limit(remote, 1)
    first, second, third = await ids_of(remote, 3)
    await remote.do(cancel(second))
    await remote.do(cancel(first))
    assert await remote.claimed(limit=100) == [third]


async def test_a_job_due_later_joins_when_it_is_due_without_a_claim_or_a_sweep(remote: Desk) -> None:
    await limit(remote, 1)
    later = await remote.add(**BOT, delay_seconds=60)
    assert await location(remote, later) is Location.DELAYED
    remote.clock.advance(60)
    assert await location(remote, later) is Location.READY
    assert await remote.claimed() == [later]


async def test_a_job_due_later_blocks_nobody_meanwhile(remote: Desk) -> None:
    await limit(remote, 1)
    later = await remote.add(**BOT, delay_seconds=60)
    now = await remote.add(**BOT)
    job = await only(remote)
    assert job.id == now
    remote.clock.advance(60)
    assert await location(remote, later) is Location.BLOCKED
    await remote.do(complete(job))
    assert await remote.claimed() == [later]


async def test_the_sweep_lets_due_jobs_join(remote: Desk) -> None:
    await limit(remote, 1)
    later = await remote.add(**BOT, delay_seconds=60)
    remote.clock.advance(61)
    assert await remote.store.fill_slots(10) >= 1
    assert await remote.store.fill_slots(10) == 0
    assert await location(remote, later) is Location.READY


async def test_a_job_that_was_due_earlier_overtakes_one_that_has_not_started(remote: Desk) -> None:
    await limit(remote, 1)
    remote.clock.advance(100)
    placed = await remote.add(**BOT)
    earlier = await remote.add(**BOT, run_at=remote.after(-50))
    assert await location(remote, placed) is Location.BLOCKED
    job = await only(remote)
    assert job.id == earlier
    await remote.do(complete(job))
    assert await remote.claimed() == [placed]


async def test_a_job_that_was_due_earlier_does_not_overtake_one_that_runs(remote: Desk) -> None:
    await limit(remote, 1)
    remote.clock.advance(100)
    await remote.add(**BOT)
    job = await only(remote)
    earlier = await remote.add(**BOT, run_at=remote.after(-50))
    assert await remote.claimed(limit=100) == []
    await remote.do(complete(job))
    assert await remote.claimed() == [earlier]


async def test_revoke_frees_and_retries_like_an_expiry(remote: Desk) -> None:
    await limit(remote, 1)
    first, second = await ids_of(remote, 2)
    await only(remote)
    await remote.do(revoke(first))
    job = await only(remote)
    assert job.id == first
    await remote.do(complete(job))
    assert await remote.claimed(limit=100) == [second]


async def test_a_passed_deadline_gives_the_place_to_the_next(remote: Desk) -> None:
    await limit(remote, 1)
    await remote.add(**BOT, deadline=remote.after(5))
    blocked = await remote.add(**BOT, deadline=remote.after(6))
    last = await remote.add(**BOT)
    remote.clock.advance(7)
    assert await remote.claimed(limit=100) == [last]
    assert (await remote.job(blocked)).finished_at is not None


async def test_an_agent_with_unfinished_jobs_cannot_be_deleted(remote: Desk) -> None:
    await limit(remote, 1)
    await ids_of(remote, 2)
    for _ in range(2):
        with pytest.raises(AgentInUse):
            await remote.store.delete_agent(remote.tenant, "bot", "1")
        await remote.do(complete(await only(remote)))
    assert await remote.store.delete_agent(remote.tenant, "bot", "1") is True
    assert await remote.store.delete_agent(remote.tenant, "bot", "1") is False
    (again,) = await ids_of(remote, 1)  # made anew, without a limit
    assert await remote.claimed() == [again]


async def test_an_unknown_agent_is_refused_where_it_must_not_be_made(remote: Desk) -> None:
    strict = Terms(implicit_agents=False)
    (answer,) = await remote.store.enqueue(remote.tenant, [new_job(**BOT)], terms=strict)
    assert isinstance(answer.error, UnknownAgent)  # type: ignore[union-attr]
    await limit(remote, None)
    (answer,) = await remote.store.enqueue(remote.tenant, [new_job(**BOT)], terms=strict)
    assert answer.replayed is False  # type: ignore[union-attr]


async def test_tenants_have_lines_of_their_own(remote: Desk, rival: Desk) -> None:
    await limit(remote, 1)
    await limit(rival, 1)
    mine, theirs = await remote.add(**BOT), await rival.add(**BOT)
    assert await remote.claimed(limit=9) == [mine]
    assert await rival.claimed(limit=9) == [theirs]
