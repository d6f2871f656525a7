"""Counts per type: exact when quiet, and they always add up."""

from __future__ import annotations

from interlock.domain.job import Filter
from interlock.domain.lifecycle import Location, Status
from interlock.domain.operations import PruneCommand
from interlock.domain.registry import Agent, Minute, QueueStats
from interlock.wire import new_id
from tests.contract.builders import FIXED, Desk, cancel, complete, fail, new_job, release

MINUTE = 60_000_000


async def stats(remote: Desk, type: str = "work") -> QueueStats:
    (found,) = await remote.store.stats(remote.tenant, type)
    return found


async def recounted(remote: Desk, type: str = "work") -> dict[str, int]:
    """The same counts from the jobs themselves."""
    jobs = await remote.store.find(remote.tenant, Filter(type=type, limit=200))
    at = [(job.location(remote.clock.now), job.status) for job in jobs]
    awaiting_approval = Status.WAITING_FOR_APPROVAL
    return {
        "ready": sum(place is Location.READY for place, _ in at),
        "delayed": sum(place is Location.DELAYED for place, _ in at),
        "blocked": sum(place is Location.BLOCKED and status is not awaiting_approval for place, status in at),
        "in_progress": sum(place is Location.IN_PROGRESS for place, _ in at),
        **{name: sum(status == name for _, status in at) for name in ("waiting_for_approval", "dead_letter", "succeeded", "failed", "cancelled")},
    }  # fmt: skip


async def agree(remote: Desk) -> QueueStats:
    reported, counts = await stats(remote), await recounted(remote)
    assert {name: reported._asdict()[name] for name in counts} == counts
    return reported


async def test_the_counts_of_a_type_follow_every_move(remote: Desk) -> None:
    await remote.add_all([new_job(max_attempts=2, backoff=FIXED) for _ in range(6)])
    await remote.add(delay_seconds=60)
    assert (await agree(remote)).ready == 6
    running = await remote.claim(limit=5)
    assert (await agree(remote)).in_progress == 5
    await remote.do(complete(running[0]))
    await remote.do(fail(running[1]))
    await remote.do(fail(running[2], retryable=False))
    await remote.do(release(running[3]))
    await remote.do(cancel(running[4].id, force=True))
    reported = await agree(remote)
    assert (reported.succeeded, reported.failed, reported.cancelled, reported.delayed, reported.ready) == (
        1,
        1,
        1,
        2,
        2,
    )
    remote.clock.advance(10)
    (again,) = [job for job in await remote.claim(limit=9) if job.attempt == 2]
    await remote.do(fail(again))
    reported = await agree(remote)
    assert reported.dead_letter == 1
    assert reported.delayed == 1


async def test_what_waits_in_a_line_or_for_children_is_blocked(remote: Desk) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "1", 1, strict=True))
    await remote.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(3)])
    await remote.add(agent_kind="bot", agent_id="1", delay_seconds=60)
    reported = await agree(remote)
    assert (reported.ready, reported.blocked, reported.delayed) == (1, 2, 1)
    (parent,) = await remote.claim(limit=9)
    child = await remote.add(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child,)))
    assert (await agree(remote)).blocked == 3
    remote.clock.advance(60)
    assert (await agree(remote)).blocked == 4


async def test_a_delayed_job_of_a_limited_agent_counts_as_ready_once_due(remote: Desk) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "1", 1))
    await remote.add(agent_kind="bot", agent_id="1", delay_seconds=60)
    assert (await stats(remote)).delayed == 1
    remote.clock.advance(60)
    assert (await agree(remote)).ready == 1


async def test_the_oldest_ready_job_tells_how_long_work_waits(remote: Desk) -> None:
    assert await remote.store.stats(remote.tenant) == []
    await remote.add(delay_seconds=5)
    assert (await stats(remote)).oldest_ready_at is None
    first = remote.after(5)
    remote.clock.advance(10)
    await remote.add()
    assert (await stats(remote)).oldest_ready_at == first


async def test_rates_are_per_minute_over_the_last_five(remote: Desk) -> None:
    await remote.add_all([new_job() for _ in range(10)])
    for job in await remote.claim(limit=5):
        await remote.do(complete(job))
    reported = await stats(remote)
    assert (reported.enqueued_per_minute, reported.started_per_minute, reported.succeeded_per_minute) == (2.0, 1.0, 1.0)
    remote.clock.advance(600)
    assert (await stats(remote)).enqueued_per_minute == 0.0


async def test_folding_keeps_every_count(remote: Desk) -> None:
    for _ in range(5):
        await remote.add_all([new_job() for _ in range(3)])
        for job in await remote.claim(limit=2):
            await remote.do(complete(job))
        remote.clock.advance(61)
    before = await agree(remote)
    remote.clock.advance(7200)
    await remote.store.fold_counters(1, 100)
    await remote.store.fold_counters(1, 100)
    after = await agree(remote)
    assert after == before._replace(enqueued_per_minute=0, started_per_minute=0, succeeded_per_minute=0)


async def test_a_pause_is_shown_with_who_and_why(remote: Desk) -> None:
    await remote.store.pause(remote.tenant, "work", actor="user:ada", reason="rate limit")
    reported = await stats(remote)
    assert (reported.paused_by, reported.pause_reason, reported.paused_at) == (
        "user:ada",
        "rate limit",
        remote.clock.now,
    )
    await remote.store.pause(remote.tenant, "work", actor=None, reason=None)
    assert (await stats(remote)).paused_by is None


async def test_tenants_count_for_themselves(remote: Desk, rival: Desk) -> None:
    await remote.add()
    assert await rival.store.stats(rival.tenant) == []
    assert await rival.store.minutes(rival.tenant) == []


async def net(remote: Desk) -> dict[int, Minute]:
    """What moved, by how many minutes ago; -1 is all that was before the hour."""
    present = remote.clock.now // MINUTE
    rows = await remote.store.minutes(remote.tenant)
    return {present - row.minute // MINUTE if row.minute else -1: row for row in rows}


async def test_the_minutes_of_the_last_hour_tell_what_moved(remote: Desk) -> None:
    remote.clock.advance(-(remote.clock.now % MINUTE) / 1_000_000)
    assert await remote.store.minutes(remote.tenant) == []
    await remote.add_all([new_job(max_attempts=2, backoff=FIXED) for _ in range(5)])
    first, second, third, fourth = await remote.claim(limit=4)
    remote.clock.advance(60)
    await remote.do(complete(first))
    await remote.do(fail(second))
    await remote.do(fail(third, retryable=False))
    remote.clock.advance(120)
    await remote.do(cancel(fourth.id, force=True))
    await remote.add(type="other")
    now = remote.clock.now
    assert await remote.store.minutes(remote.tenant) == [
        Minute("other", now, waiting=1, enqueued=1),
        Minute("work", now - 3 * MINUTE, waiting=1, running=4, enqueued=5),
        Minute("work", now - 2 * MINUTE, waiting=1, running=-3, succeeded=1, failed=2),
        Minute("work", now, running=-1),
    ]


async def test_folding_loses_no_minute_of_the_last_hour(remote: Desk) -> None:
    remote.clock.advance(-(remote.clock.now % MINUTE) / 1_000_000)
    for _ in range(63):
        await remote.add_all([new_job() for _ in range(2)])
        for job in await remote.claim():
            await remote.do(complete(job))
        remote.clock.advance(60)
    remote.clock.advance(-0.000001)  # the very end of the last minute in which something moved
    before = await net(remote)
    assert sorted(before) == list(range(-1, 60))
    assert {(row.waiting, row.running, row.enqueued, row.succeeded) for ago, row in before.items() if ago >= 0} == {
        (1, 0, 2, 1)
    }
    assert before[-1] == Minute("work", 0, waiting=3, enqueued=6, succeeded=3)
    for _ in range(2):
        await remote.store.fold_counters(1, 100)
    assert await net(remote) == before
    assert sum(row.waiting for row in before.values()) == (await agree(remote)).ready
    remote.clock.advance(3600)
    await remote.store.fold_counters(1, 100)
    assert await remote.store.minutes(remote.tenant) == [Minute("work", 0, waiting=63, enqueued=126, succeeded=63)]


async def test_a_deleted_job_leaves_the_minutes_in_which_it_moved(remote: Desk) -> None:
    await remote.add()
    (job,) = await remote.claim()
    await remote.do(complete(job))
    before = await remote.store.minutes(remote.tenant)
    remote.clock.advance(61)
    await remote.store.prune(remote.tenant, PruneCommand(new_id(), "user:ada", remote.clock.now, 0, 10))
    assert (await stats(remote)).succeeded == 0
    assert await remote.store.minutes(remote.tenant) == before
