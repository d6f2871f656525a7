"""Counts per type: exact when quiet, and they always add up."""

from __future__ import annotations

from interlock.domain.job import Filter
from interlock.domain.lifecycle import Location, Status
from interlock.domain.operations import PruneCommand
from interlock.domain.registry import Agent, Minute, QueueStats
from interlock.wire import new_id
from tests.contract.builders import FIXED, TenantQueue, cancel, complete, fail, new_job, release

MINUTE = 60_000_000


async def stats(queue: TenantQueue, type: str = "work") -> QueueStats:
    (found,) = await queue.store.registry.stats(queue.tenant, type)
    return found


async def recounted(queue: TenantQueue, type: str = "work") -> dict[str, int]:
    """The same counts from the jobs themselves."""
    jobs = await queue.store.find(queue.tenant, Filter(type=type, limit=200))
    at = [(job.location(queue.clock.now), job.status) for job in jobs]
    awaiting_approval = Status.WAITING_FOR_APPROVAL
    return {
        "ready": sum(place is Location.READY for place, _ in at),
        "delayed": sum(place is Location.DELAYED for place, _ in at),
        "blocked": sum(place is Location.BLOCKED and status is not awaiting_approval for place, status in at),
        "in_progress": sum(place is Location.IN_PROGRESS for place, _ in at),
        **{name: sum(status == name for _, status in at) for name in ("waiting_for_approval", "dead_letter", "succeeded", "failed", "cancelled")},
    }  # fmt: skip


async def agree(queue: TenantQueue) -> QueueStats:
    reported, counts = await stats(queue), await recounted(queue)
    assert {name: reported._asdict()[name] for name in counts} == counts
    return reported


async def test_the_counts_of_a_type_follow_every_transition(queue: TenantQueue) -> None:
    await queue.add_all([new_job(max_attempts=2, backoff=FIXED) for _ in range(6)])
    await queue.add(delay_seconds=60)
    assert (await agree(queue)).ready == 6
    running = await queue.claim(limit=5)
    assert (await agree(queue)).in_progress == 5
    await queue.do(complete(running[0]))
    await queue.do(fail(running[1]))
    await queue.do(fail(running[2], retryable=False))
    await queue.do(release(running[3]))
    await queue.do(cancel(running[4].id, force=True))
    reported = await agree(queue)
    assert (reported.succeeded, reported.failed, reported.cancelled, reported.delayed, reported.ready) == (
        1,
        1,
        1,
        2,
        2,
    )
    queue.clock.advance(10)
    (again,) = [job for job in await queue.claim(limit=9) if job.attempt == 2]
    await queue.do(fail(again))
    reported = await agree(queue)
    assert reported.dead_letter == 1
    assert reported.delayed == 1


async def test_jobs_waiting_for_a_slot_or_children_are_blocked(queue: TenantQueue) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", 1, strict=True))
    await queue.add_all([new_job(agent_kind="bot", agent_id="1") for _ in range(3)])
    await queue.add(agent_kind="bot", agent_id="1", delay_seconds=60)
    reported = await agree(queue)
    assert (reported.ready, reported.blocked, reported.delayed) == (1, 2, 1)
    (parent,) = await queue.claim(limit=9)
    child = await queue.add(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child,)))
    assert (await agree(queue)).blocked == 3
    queue.clock.advance(60)
    assert (await agree(queue)).blocked == 4


async def test_a_delayed_job_of_a_limited_agent_counts_as_ready_once_due(queue: TenantQueue) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "1", 1))
    await queue.add(agent_kind="bot", agent_id="1", delay_seconds=60)
    assert (await stats(queue)).delayed == 1
    queue.clock.advance(60)
    assert (await agree(queue)).ready == 1


async def test_the_age_of_the_oldest_ready_job_is_reported(queue: TenantQueue) -> None:
    assert await queue.store.registry.stats(queue.tenant) == []
    await queue.add(delay_seconds=5)
    assert (await stats(queue)).oldest_ready_at is None
    first = queue.after(5)
    queue.clock.advance(10)
    await queue.add()
    assert (await stats(queue)).oldest_ready_at == first


async def test_rates_are_per_minute_over_the_last_five(queue: TenantQueue) -> None:
    await queue.add_all([new_job() for _ in range(10)])
    for job in await queue.claim(limit=5):
        await queue.do(complete(job))
    reported = await stats(queue)
    assert (reported.enqueued_per_minute, reported.started_per_minute, reported.succeeded_per_minute) == (2.0, 1.0, 1.0)
    queue.clock.advance(600)
    assert (await stats(queue)).enqueued_per_minute == 0.0


async def test_compacting_keeps_every_count(queue: TenantQueue) -> None:
    for _ in range(5):
        await queue.add_all([new_job() for _ in range(3)])
        for job in await queue.claim(limit=2):
            await queue.do(complete(job))
        queue.clock.advance(61)
    before = await agree(queue)
    queue.clock.advance(7200)
    await queue.store.registry.fold_counters(1, 100)
    await queue.store.registry.fold_counters(1, 100)
    after = await agree(queue)
    assert after == before._replace(enqueued_per_minute=0, started_per_minute=0, succeeded_per_minute=0)


async def test_a_pause_is_returned_with_principal_and_reason(queue: TenantQueue) -> None:
    await queue.store.registry.pause(queue.tenant, "work", actor="user:ada", reason="rate limit")
    reported = await stats(queue)
    assert (reported.paused_by, reported.pause_reason, reported.paused_at) == (
        "user:ada",
        "rate limit",
        queue.clock.now,
    )
    await queue.store.registry.pause(queue.tenant, "work", actor=None, reason=None)
    assert (await stats(queue)).paused_by is None


async def test_tenants_are_counted_separately(queue: TenantQueue, rival: TenantQueue) -> None:
    await queue.add()
    assert await rival.store.registry.stats(rival.tenant) == []
    assert await rival.store.registry.minutes(rival.tenant) == []


async def net(queue: TenantQueue) -> dict[int, Minute]:
    """What moved, by how many minutes ago; -1 is all that was before the hour."""
    present = queue.clock.now // MINUTE
    rows = await queue.store.registry.minutes(queue.tenant)
    return {present - row.minute // MINUTE if row.minute else -1: row for row in rows}


async def test_the_minutes_of_the_last_hour_count_transitions(queue: TenantQueue) -> None:
    queue.clock.advance(-(queue.clock.now % MINUTE) / 1_000_000)
    assert await queue.store.registry.minutes(queue.tenant) == []
    await queue.add_all([new_job(max_attempts=2, backoff=FIXED) for _ in range(5)])
    first, second, third, fourth = await queue.claim(limit=4)
    queue.clock.advance(60)
    await queue.do(complete(first))
    await queue.do(fail(second))
    await queue.do(fail(third, retryable=False))
    queue.clock.advance(120)
    await queue.do(cancel(fourth.id, force=True))
    await queue.add(type="other")
    now = queue.clock.now
    assert await queue.store.registry.minutes(queue.tenant) == [
        Minute("other", now, waiting=1, enqueued=1),
        Minute("work", now - 3 * MINUTE, waiting=1, running=4, enqueued=5),
        Minute("work", now - 2 * MINUTE, waiting=1, running=-3, succeeded=1, failed=2),
        Minute("work", now, running=-1),
    ]


async def test_compacting_loses_no_minute_of_the_last_hour(queue: TenantQueue) -> None:
    queue.clock.advance(-(queue.clock.now % MINUTE) / 1_000_000)
    for _ in range(63):
        await queue.add_all([new_job() for _ in range(2)])
        for job in await queue.claim():
            await queue.do(complete(job))
        queue.clock.advance(60)
    queue.clock.advance(-0.000001)  # the very end of the last minute in which something moved
    before = await net(queue)
    assert sorted(before) == list(range(-1, 60))
    assert {(row.waiting, row.running, row.enqueued, row.succeeded) for ago, row in before.items() if ago >= 0} == {
        (1, 0, 2, 1)
    }
    assert before[-1] == Minute("work", 0, waiting=3, enqueued=6, succeeded=3)
    for _ in range(2):
        await queue.store.registry.fold_counters(1, 100)
    assert await net(queue) == before
    assert sum(row.waiting for row in before.values()) == (await agree(queue)).ready
    queue.clock.advance(3600)
    await queue.store.registry.fold_counters(1, 100)
    assert await queue.store.registry.minutes(queue.tenant) == [
        Minute("work", 0, waiting=63, enqueued=126, succeeded=63)
    ]


async def test_a_deleted_job_stays_in_the_minutes_of_its_transitions(queue: TenantQueue) -> None:
    await queue.add()
    (job,) = await queue.claim()
    await queue.do(complete(job))
    before = await queue.store.registry.minutes(queue.tenant)
    queue.clock.advance(61)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), "user:ada", queue.clock.now, 0, 10))
    assert (await stats(queue)).succeeded == 0
    assert await queue.store.registry.minutes(queue.tenant) == before
