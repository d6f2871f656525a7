"""Events: written under the current fence, numbered by job, and read as one feed in which nothing appears too late."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import Any

import pytest

from interlock.domain.job import HeartbeatReply, Rejected
from interlock.domain.operations import PruneCommand
from interlock.domain.progress import SMALLEST_ID, EventRow, FeedEvent, FeedPosition, Level, Report
from interlock.errors import CheckpointConflict, Error, LeaseLost, NotFound, NotRunning
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import (
    NEVER,
    OPERATOR,
    TenantQueue,
    complete,
    expire,
    fail,
    heartbeat,
    new_id,
    release,
    revoke,
    save,
)
from tests.contract.connections import SqlConnection, rejection
from tests.contract.progress import append_events, event, report
from tests.contract.test_poison_values import VALUES, WORDS
from tests.support.eventually import eventually
from tests.support.stores import SECOND

START = FeedPosition(0, 0, SMALLEST_ID, 0)


async def refused(queue: TenantQueue, report: Report) -> Error:
    (answer,) = await queue.store.add_events(queue.tenant, [report])
    assert isinstance(answer, Rejected), answer
    return answer.error


async def events(queue: TenantQueue, job_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
    return await queue.store.events(queue.tenant, job_id, after=after, limit=limit)


async def messages(queue: TenantQueue, job_id: str) -> list[str]:
    return [row.message for row in await events(queue, job_id)]


async def feed(
    queue: TenantQueue, after: FeedPosition = START, *, limit: int = 1000, at_least: int = 0
) -> list[FeedEvent]:
    """A page of the feed, once this many are there: any writer on the same server may delay it for a moment."""
    page: list[FeedEvent] = []

    async def enough() -> bool:
        nonlocal page
        page = await queue.store.feed(queue.tenant, after, limit=limit)
        return len(page) >= at_least

    await eventually(enough)
    return page


async def test_events_are_read_from_a_time(queue: TenantQueue) -> None:
    job = await queue.running()
    for message in "abcd":
        queue.clock.advance(1)
        await append_events(queue, report(job, event(message), event(message)))
    read = queue.store.events

    async def found(since: int, **more: int) -> str:
        rows = await read(queue.tenant, job.id, since=since, **{"limit": 10} | more)
        return "".join(row.message for row in rows)

    assert [await found(queue.clock.now - second * SECOND) for second in range(5)] == [
        "",
        "dd",
        "ccdd",
        "bbccdd",
        "aabbccdd",
    ]
    assert await found(queue.clock.now - 2 * SECOND, after=5) == "cdd"
    assert await found(queue.clock.now - 3 * SECOND, limit=3) == "bbc"


async def test_an_event_is_stored_and_returned(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    reported = event("half way", level=Level.WARN, payload='{"progress": 0.5}', sanitized=True)
    assert await append_events(queue, report(job, reported)) == (1,)
    assert await events(queue, job.id) == [
        EventRow(
            job.id,
            1,
            reported.id,
            Level.WARN,
            "half way",
            '{"progress": 0.5}',
            queue.clock.now,
            queue.clock.now,
            sanitized=True,
        )
    ]


async def test_an_event_adds_no_history_and_extends_no_lease(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    await append_events(queue, report(job, event()))
    assert await queue.trace(job.id) == before


async def test_events_are_numbered_in_their_order_and_read_in_pages(queue: TenantQueue) -> None:
    job = await queue.running()
    assert await append_events(queue, report(job, event("a"), event("b"))) == (1, 2)
    assert await append_events(queue, report(job, event("c"))) == (3,)
    rows = await events(queue, job.id)
    assert [(row.seq, row.message) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert await events(queue, job.id, limit=2) == rows[:2]
    assert await events(queue, job.id, after=2) == rows[2:]
    assert await events(queue, job.id, after=2**63 - 1) == []


async def test_a_repeated_call_adds_nothing_and_gets_the_same_result(queue: TenantQueue) -> None:
    job = await queue.running()
    reported = report(job, event("a"), event("b"))
    assert await append_events(queue, reported) == (1, 2)
    before = await events(queue, job.id)
    queue.clock.advance(1)
    assert await append_events(queue, reported) == (1, 2)
    assert await append_events(queue, report(job, event("c"), *reversed(reported.events))) == (3, 2, 1)
    assert (await events(queue, job.id))[:2] == before
    assert await messages(queue, job.id) == ["a", "b", "c"]


async def test_an_id_repeated_in_one_call_is_one_event(queue: TenantQueue) -> None:
    job = await queue.running()
    one = event("first")
    assert await append_events(queue, report(job, one, event("b"), one._replace(message="again"))) == (1, 2, 1)
    assert await messages(queue, job.id) == ["first", "b"]


async def test_an_event_id_belongs_to_one_job(queue: TenantQueue) -> None:
    a, b = await queue.running(type="a"), await queue.running(type="b")
    same = event()
    assert await append_events(queue, report(a, same)) == await append_events(queue, report(b, same)) == (1,)


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"fence": 2**63 - 1}])
async def test_an_event_needs_both_the_fence_and_the_worker(queue: TenantQueue, wrong: dict[str, Any]) -> None:
    job = await queue.running()
    assert isinstance(await refused(queue, report(job, event(), **wrong)), LeaseLost)
    assert await events(queue, job.id) == []


async def test_a_stale_worker_adds_no_event(queue: TenantQueue) -> None:
    stale = await queue.running(lease_seconds=10.0)
    old = event("old")
    await append_events(queue, report(stale, old))
    queue.clock.advance(10)
    current = await queue.again(stale)
    assert isinstance(await refused(queue, report(stale, event("stale"))), LeaseLost)
    assert isinstance(await refused(queue, report(stale, old)), LeaseLost)
    assert await append_events(queue, report(current, event("new"))) == (2,)
    assert await messages(queue, stale.id) == ["old", "new"]
    assert len(await feed(queue, at_least=2)) == 2


@pytest.mark.parametrize("end", ["complete", "fail", "release", "expire", "revoke"])
async def test_an_event_after_the_end_of_its_lease_is_rejected_like_a_checkpoint(queue: TenantQueue, end: str) -> None:
    job = await queue.running()
    match end:
        case "complete":
            await queue.do(complete(job))
        case "fail":
            await queue.do(fail(job))
        case "release":
            await queue.do(release(job))
        case "expire":
            queue.clock.advance(60)
            await queue.do(expire(job.id))
        case "revoke":
            await queue.do(revoke(job.id))
    expected = LeaseLost if end in ("expire", "revoke") else NotRunning
    assert type(await refused(queue, report(job, event()))) is expected
    assert await events(queue, job.id) == []


@pytest.mark.parametrize("end", ["fail", "release", "expire", "approval"])
async def test_events_survive_the_run_and_continue_in_the_next(queue: TenantQueue, end: str) -> None:
    job = await queue.running()
    await append_events(queue, report(job, event("before")))
    match end:
        case "fail":
            await queue.do(fail(job, retry_after_seconds=1.0))
        case "release":
            await queue.do(release(job))
        case "approval":
            _, approval = await waiting(queue, job=job)
            await decided(queue, command(approval))
    queue.clock.advance(60)
    if end == "expire":
        await queue.do(expire(job.id))
    again = await queue.again(job)
    assert await append_events(queue, report(again, event("after"))) == (2,)
    await queue.do(complete(again))
    assert await messages(queue, job.id) == ["before", "after"]


async def test_each_append_of_a_batch_gets_its_own_result(queue: TenantQueue, rival: TenantQueue) -> None:
    a, b = await queue.running(type="a"), await queue.running(type="b")
    theirs = await rival.running()
    await queue.do(complete(b))
    answers = await queue.store.add_events(
        queue.tenant,
        [
            report(a, event("1"), event("2")), report(theirs, event()), report(b, event()), report(a, event("3")),
            report(a, event(), fence=99), report(a, event(), id=NEVER), report(b, event(), fence=99),
        ],
    )  # fmt: skip
    reported = [type(x.error) if isinstance(x, Rejected) else x for x in answers]
    assert reported == [(1, 2), NotFound, NotRunning, (3,), LeaseLost, NotFound, LeaseLost]
    assert await messages(queue, a.id) == ["1", "2", "3"]
    assert await events(rival, theirs.id) == []


async def test_a_heartbeat_may_include_events(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    reported = (event("a"), event("b"))
    await queue.heartbeat(heartbeat(job, events=reported, checkpoint=save(job, 1)))
    assert [(row.message, row.at) for row in await events(queue, job.id)] == [
        ("a", queue.clock.now),
        ("b", queue.clock.now),
    ]
    now = await queue.job(job.id)
    assert (now.heartbeat_at, now.checkpoint_seq) == (queue.clock.now, 1)
    await queue.heartbeat(heartbeat(job, events=(*reported, event("c"))))
    assert await messages(queue, job.id) == ["a", "b", "c"]
    assert len(await feed(queue, at_least=3)) == 3


async def test_a_rejected_heartbeat_adds_no_events(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 5))
    error = await queue.heartbeat_rejected(heartbeat(job, checkpoint=save(job, 4), events=(event(),)))
    assert isinstance(error, CheckpointConflict)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job, fence=9, events=(event(),))), LeaseLost)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job, id=NEVER, events=(event(),))), NotFound)
    assert await events(queue, job.id) == []


async def test_heartbeats_with_events_get_a_result_each(queue: TenantQueue) -> None:
    a, b = await queue.running(type="a"), await queue.running(type="b")
    heartbeats = [
        heartbeat(a, events=(event("1"),)), heartbeat(b, fence=9, events=(event("no"),)), heartbeat(b), heartbeat(a, events=(event("2"),)),
    ]  # fmt: skip
    answers = await queue.store.heartbeat(queue.tenant, heartbeats)
    assert [isinstance(answer, HeartbeatReply) for answer in answers] == [True, False, True, True]
    assert await messages(queue, a.id) == ["1", "2"]
    assert await events(queue, b.id) == []


async def test_64_concurrent_calls_with_one_event_add_it_once(queue: TenantQueue) -> None:
    job = await queue.running()
    reported = report(job, event())
    answers = await asyncio.gather(*(append_events(queue, reported) for _ in range(64)))
    assert set(answers) == {(1,)}
    assert len(await events(queue, job.id)) == 1


async def test_message_and_payload_are_returned_byte_for_byte(queue: TenantQueue) -> None:
    job = await queue.running()
    reported = [event(word, payload=value) for word, value in zip(itertools.cycle(WORDS), VALUES.values())]
    await append_events(queue, report(job, *reported))
    assert [(row.message, row.payload) for row in await events(queue, job.id)] == [
        (e.message, e.payload) for e in reported
    ]
    assert [fed.event for fed in await feed(queue, at_least=len(reported))] == await events(queue, job.id)


@pytest.mark.parametrize(("offset", "kept"), [(-999, 0), (0, 0), (3, 3), (5, 5), (999, 5)])
async def test_an_event_keeps_the_time_it_was_recorded_within_its_lease(
    queue: TenantQueue, offset: int, kept: int
) -> None:
    job = await queue.running()
    began = queue.clock.now
    queue.clock.advance(5)
    await append_events(
        queue, report(job, event("b", at=began + offset * SECOND), event("a"), event("c", at=began + SECOND))
    )
    rows = await events(queue, job.id)
    assert [row.at - began for row in rows] == [kept * SECOND, 5 * SECOND, SECOND]
    assert [row.received_at - began for row in rows] == [5 * SECOND] * 3
    assert [(row.seq, row.message) for row in rows] == [(1, "b"), (2, "a"), (3, "c")]  # as they arrived
    assert [fed.event for fed in await feed(queue, at_least=3)] == rows


async def test_a_later_lease_raises_the_earliest_time_of_an_event(queue: TenantQueue) -> None:
    first = await queue.running()
    queue.clock.advance(5)
    await queue.do(release(first))
    (second,) = await queue.claim()
    queue.clock.advance(5)
    (reply,) = await queue.store.heartbeat(
        queue.tenant, [heartbeat(second, events=(event(at=queue.clock.now - 7 * SECOND),))]
    )
    assert isinstance(reply, HeartbeatReply)
    (row,) = await events(queue, first.id)
    assert (row.at, row.received_at) == (queue.clock.now - 5 * SECOND, queue.clock.now)


async def test_tenants_never_see_or_touch_each_others_events(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.running()
    await append_events(rival, report(theirs, event("theirs")))
    foreign = await refused(queue, report(theirs, event()))
    unknown = await refused(queue, report(theirs, event(), id=NEVER))
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(theirs, events=(event(),))), NotFound)
    assert await events(queue, theirs.id) == []
    assert await feed(queue) == []
    assert await messages(rival, theirs.id) == ["theirs"]
    mine = await queue.running(id=theirs.id)
    assert await append_events(queue, report(mine, event("mine"))) == (1,)
    assert [fed.event.message for fed in await feed(rival, at_least=1)] == ["theirs"]
    assert [fed.event.message for fed in await feed(queue, at_least=1)] == ["mine"]


async def test_the_feed_has_the_events_of_all_jobs_each_in_order(queue: TenantQueue) -> None:
    jobs = [await queue.running(type=f"t{i}") for i in range(3)]
    for i in range(4):
        await append_events(queue, report(jobs[i % 3], event(f"a{i}"), event(f"b{i}")))
        await queue.heartbeat(heartbeat(jobs[(i + 1) % 3], events=(event(f"c{i}"),)))
    fed = await feed(queue, at_least=12)
    by_job = defaultdict(list)
    for item in fed:
        by_job[item.event.job_id].append(item.event)
    for job in jobs:
        assert by_job[job.id] == await events(queue, job.id)
    assert sum(map(len, by_job.values())) == 12


async def test_the_feed_is_read_in_pages_from_any_position(queue: TenantQueue) -> None:
    a, b = await queue.running(type="a"), await queue.running(type="b")
    for i in range(5):
        await queue.store.add_events(queue.tenant, [report(a, event(f"a{i}")), report(b, event(f"b{i}"))])
    whole = await feed(queue, at_least=10)
    assert len(whole) == 10
    pages: list[FeedEvent] = []
    while page := await feed(queue, pages[-1].position if pages else START, limit=3):
        assert len(page) <= 3
        pages += page
    assert pages == whole
    for i, item in enumerate(whole):
        assert await feed(queue, FeedPosition.parse(str(item.position))) == whole[i + 1 :]


async def test_the_end_of_the_feed_precedes_every_later_event(queue: TenantQueue) -> None:
    job = await queue.running()
    empty = await queue.store.feed_end(queue.tenant)
    assert await feed(queue, empty) == []
    await append_events(queue, report(job, event("old")))
    assert [fed.event.message for fed in await feed(queue, empty, at_least=1)] == ["old"]
    end = await queue.store.feed_end(queue.tenant)
    assert await feed(queue, end) == []
    await append_events(queue, report(job, event("new")))
    assert [fed.event.message for fed in await feed(queue, end, at_least=1)] == ["new"]


async def test_any_feed_position_is_accepted_by_the_database(queue: TenantQueue) -> None:
    job = await queue.running()
    await append_events(queue, report(job, event()))
    largest = 2**63 - 1
    for position in (FeedPosition(largest, largest, NEVER, largest), FeedPosition(0, largest, NEVER, 0)):
        assert await feed(queue, position) == []
    assert len(await feed(queue, FeedPosition(0, 0, NEVER, largest), at_least=1)) == 1


async def test_after_a_restore_new_events_come_after_every_issued_position(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    """A restored database has lost positions that readers have seen; its new epoch distinguishes them."""
    job = await queue.running()
    await append_events(queue, report(job, event("old")))
    seen = FeedPosition(0, 2**62, NEVER, 9)  # far beyond what the database remembers
    await sql.run("UPDATE epoch SET value = value + 1")
    try:
        await append_events(queue, report(job, event("new")))
        assert [fed.event.message for fed in await feed(queue, seen, at_least=1)] == ["new"]
        assert [fed.event.message for fed in await feed(queue)] == ["old", "new"]
        assert await feed(queue, await queue.store.feed_end(queue.tenant)) == []
    finally:
        await sql.run("UPDATE epoch SET value = value - 1")


async def test_a_new_event_wakes_local_waiters(queue: TenantQueue) -> None:
    job = await queue.running()
    reported = queue.store.watch_events()
    await queue.heartbeat(heartbeat(job))
    assert not reported.is_set()
    await append_events(queue, report(job, event()))
    assert reported.is_set()
    reported = queue.store.watch_events()
    assert not reported.is_set()
    await queue.heartbeat(heartbeat(job, events=(event(),)))
    assert reported.is_set()


async def test_the_database_rejects_changing_or_moving_an_event(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await append_events(queue, report(job, event("kept")))
    where = "WHERE tenant = $1 AND job_id = $2"
    assert "interlock:" in await rejection(sql, f"UPDATE job_event SET message = 'x' {where}", queue.tenant, job.id)
    assert "interlock:" in await rejection(sql, f"DELETE FROM job_event {where}", queue.tenant, job.id)
    assert await messages(queue, job.id) == ["kept"]


async def test_events_added_after_a_prune_come_after_every_issued_position(queue: TenantQueue) -> None:
    old, job = await queue.running(type="old"), await queue.running()
    await append_events(queue, report(job, event("kept")))
    await append_events(queue, report(old, event("pruned"), event("too")))
    seen = (await feed(queue, at_least=3))[-1].position
    await queue.do(complete(old))
    queue.clock.advance(1)
    cutoff = queue.clock.now
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, cutoff, after_seq=0, step=100))
    assert [fed.event.message for fed in await feed(queue)] == ["kept"]
    await append_events(queue, report(job, event("new")))
    assert [fed.event.message for fed in await feed(queue, seen, at_least=1)] == ["new"]
