"""Counts per type: exact when quiet, and they always add up."""

from __future__ import annotations

from interlock.domain.job import Filter
from interlock.domain.lifecycle import Location, Status
from interlock.domain.operations import PruneOrder
from interlock.domain.registry import Agent, Minute, QueueStats
from interlock.wire import new_id
from tests.contract.builders import FIXED, Desk, cancel, complete, fail, new_job, release

MINUTE = 60_000_000


async def stats(desk: Desk, type: str = "work") -> QueueStats:
    (found,) = await desk.store.stats(desk.tenant, type)
    return found


async def recounted(desk: Desk, type: str = "work") -> dict[str, int]:
    """The same counts from the jobs themselves."""
    jobs = await desk.store.find(desk.tenant, Filter(type=type, limit=200))
    at = [(job.location(desk.clock.now), job.status) for job in jobs]
    gated = Status.WAITING_FOR_APPROVAL
    return {
        "ready": sum(place is Location.READY for place, _ in at),
        "delayed": sum(place is Location.DELAYED for place, _ in at),
        "blocked": sum(place is Location.BLOCKED and status is not gated for place, status in at),
        "in_progress": sum(place is Location.IN_PROGRESS for place, _ in at),
        **{name: sum(status == name for _, status in at) for name in ("waiting_for_approval", "dead_letter", "succeeded", "failed", "cancelled")},
    }  # fmt: skip


async def agree(desk: Desk) -> QueueStats:
    told, counts = await stats(desk), await recounted(desk)
    assert {name: told._asdict()[name] for name in counts} == counts
    return told


async def test_the_counts_of_a_type_follow_every_move(desk: Desk) -> None:
    await desk.add_all([new_job(max_attempts=2, backoff=FIXED) for _ in range(6)])
    await desk.add(delay_seconds=60)
    assert (await agree(desk)).ready == 6
    running = await desk.claim(limit=5)
    assert (await agree(desk)).in_progress == 5
    await desk.do(complete(running[0]))
    await desk.do(fail(running[1]))
    await desk.do(fail(running[2], retryable=False))
    await desk.do(release(running[3]))
    await desk.do(cancel(running[4].id, force=True))
    told = await agree(desk)
    assert (told.succeeded, told.failed, told.cancelled, told.delayed, told.ready) == (1, 1, 1, 2, 2)
    desk.clock.advance(10)
    (again,) = [job for job in await desk.claim(limit=9) if job.attempt == 2]
    await desk.do(fail(again))
    told = await agree(desk)
    assert told.dead_letter == 1
    assert told.delayed == 1


async def test_what_waits_in_a_line_or_for_children_is_blocked(desk: Desk) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "1", 1, strict=True))
    await desk.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(3)])
    await desk.add(agent_kind="bot", agent_id="1", delay_seconds=60)
    told = await agree(desk)
    assert (told.ready, told.blocked, told.delayed) == (1, 2, 1)
    (parent,) = await desk.claim(limit=9)
    child = await desk.add(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child,)))
    assert (await agree(desk)).blocked == 3
    desk.clock.advance(60)
    assert (await agree(desk)).blocked == 4


async def test_a_delayed_job_of_a_limited_agent_counts_as_ready_once_due(desk: Desk) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "1", 1))
    await desk.add(agent_kind="bot", agent_id="1", delay_seconds=60)
    assert (await stats(desk)).delayed == 1
    desk.clock.advance(60)
    assert (await agree(desk)).ready == 1


async def test_the_oldest_ready_job_tells_how_long_work_waits(desk: Desk) -> None:
    assert await desk.store.stats(desk.tenant) == []
    await desk.add(delay_seconds=5)
    assert (await stats(desk)).oldest_ready_at is None
    first = desk.after(5)
    desk.clock.advance(10)
    await desk.add()
    assert (await stats(desk)).oldest_ready_at == first


async def test_rates_are_per_minute_over_the_last_five(desk: Desk) -> None:
    await desk.add_all([new_job() for _ in range(10)])
    for job in await desk.claim(limit=5):
        await desk.do(complete(job))
    told = await stats(desk)
    assert (told.enqueued_per_minute, told.started_per_minute, told.succeeded_per_minute) == (2.0, 1.0, 1.0)
    desk.clock.advance(600)
    assert (await stats(desk)).enqueued_per_minute == 0.0


async def test_folding_keeps_every_count(desk: Desk) -> None:
    for _ in range(5):
        await desk.add_all([new_job() for _ in range(3)])
        for job in await desk.claim(limit=2):
            await desk.do(complete(job))
        desk.clock.advance(61)
    before = await agree(desk)
    desk.clock.advance(7200)
    await desk.store.fold_tallies(1, 100)
    await desk.store.fold_tallies(1, 100)
    after = await agree(desk)
    assert after == before._replace(enqueued_per_minute=0, started_per_minute=0, succeeded_per_minute=0)


async def test_a_pause_is_shown_with_who_and_why(desk: Desk) -> None:
    await desk.store.pause(desk.tenant, "work", actor="user:ada", reason="rate limit")
    told = await stats(desk)
    assert (told.paused_by, told.pause_reason, told.paused_at) == ("user:ada", "rate limit", desk.clock.now)
    await desk.store.pause(desk.tenant, "work", actor=None, reason=None)
    assert (await stats(desk)).paused_by is None


async def test_tenants_count_for_themselves(desk: Desk, rival: Desk) -> None:
    await desk.add()
    assert await rival.store.stats(rival.tenant) == []
    assert await rival.store.minutes(rival.tenant) == []


async def net(desk: Desk) -> dict[int, Minute]:
    """What moved, by how many minutes ago; -1 is all that was before the hour."""
    present = desk.clock.now // MINUTE
    rows = await desk.store.minutes(desk.tenant)
    return {present - row.minute // MINUTE if row.minute else -1: row for row in rows}


async def test_the_minutes_of_the_last_hour_tell_what_moved(desk: Desk) -> None:
    desk.clock.advance(-(desk.clock.now % MINUTE) / 1_000_000)
    assert await desk.store.minutes(desk.tenant) == []
    await desk.add_all([new_job(max_attempts=2, backoff=FIXED) for _ in range(5)])
    first, second, third, fourth = await desk.claim(limit=4)
    desk.clock.advance(60)
    await desk.do(complete(first))
    await desk.do(fail(second))
    await desk.do(fail(third, retryable=False))
    desk.clock.advance(120)
    await desk.do(cancel(fourth.id, force=True))
    await desk.add(type="other")
    now = desk.clock.now
    assert await desk.store.minutes(desk.tenant) == [
        Minute("other", now, waiting=1, enqueued=1),
        Minute("work", now - 3 * MINUTE, waiting=1, running=4, enqueued=5),
        Minute("work", now - 2 * MINUTE, waiting=1, running=-3, succeeded=1, failed=2),
        Minute("work", now, running=-1),
    ]


async def test_folding_loses_no_minute_of_the_last_hour(desk: Desk) -> None:
    desk.clock.advance(-(desk.clock.now % MINUTE) / 1_000_000)
    for _ in range(63):
        await desk.add_all([new_job() for _ in range(2)])
        for job in await desk.claim():
            await desk.do(complete(job))
        desk.clock.advance(60)
    desk.clock.advance(-0.000001)  # the very end of the last minute in which something moved
    before = await net(desk)
    assert sorted(before) == list(range(-1, 60))
    assert {(row.waiting, row.running, row.enqueued, row.succeeded) for ago, row in before.items() if ago >= 0} == {
        (1, 0, 2, 1)
    }
    assert before[-1] == Minute("work", 0, waiting=3, enqueued=6, succeeded=3)
    for _ in range(2):
        await desk.store.fold_tallies(1, 100)
    assert await net(desk) == before
    assert sum(row.waiting for row in before.values()) == (await agree(desk)).ready
    desk.clock.advance(3600)
    await desk.store.fold_tallies(1, 100)
    assert await desk.store.minutes(desk.tenant) == [Minute("work", 0, waiting=63, enqueued=126, succeeded=63)]


async def test_a_deleted_job_leaves_the_minutes_in_which_it_moved(desk: Desk) -> None:
    await desk.add()
    (job,) = await desk.claim()
    await desk.do(complete(job))
    before = await desk.store.minutes(desk.tenant)
    desk.clock.advance(61)
    await desk.store.prune(desk.tenant, PruneOrder(new_id(), "user:ada", desk.clock.now, 0, 10))
    assert (await stats(desk)).succeeded == 0
    assert await desk.store.minutes(desk.tenant) == before
