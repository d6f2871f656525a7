"""Events: told under the current fence, numbered by job, and read as one feed in which nothing appears too late."""

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
    Desk,
    complete,
    expire,
    fail,
    heartbeat,
    new_id,
    release,
    revoke,
    save,
)
from tests.contract.connections import Door, refusal
from tests.contract.progress import event, report, tell
from tests.contract.test_poison_values import VALUES, WORDS
from tests.support.eventually import eventually
from tests.support.stores import SECOND

START = FeedPosition(0, 0, SMALLEST_ID, 0)


async def refused(remote: Desk, report: Report) -> Error:
    (answer,) = await remote.store.add_events(remote.tenant, [report])
    assert isinstance(answer, Rejected), answer
    return answer.error


async def events(remote: Desk, job_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
    return await remote.store.events(remote.tenant, job_id, after=after, limit=limit)


async def messages(remote: Desk, job_id: str) -> list[str]:
    return [row.message for row in await events(remote, job_id)]


async def feed(remote: Desk, after: FeedPosition = START, *, limit: int = 1000, at_least: int = 0) -> list[FeedEvent]:
    """A page of the feed, once so many are there: anybody who writes on the same server may hold it back for a moment."""
    page: list[FeedEvent] = []

    async def enough() -> bool:
        nonlocal page
        page = await remote.store.feed(remote.tenant, after, limit=limit)
        return len(page) >= at_least

    await eventually(enough)
    return page


async def test_events_are_read_from_a_time_on(remote: Desk) -> None:
    job = await remote.running()
    for message in "abcd":
        remote.clock.advance(1)
        await tell(remote, report(job, event(message), event(message)))
    read = remote.store.events

    async def found(since: int, **more: int) -> str:
        rows = await read(remote.tenant, job.id, since=since, **{"limit": 10} | more)
        return "".join(row.message for row in rows)

    assert [await found(remote.clock.now - second * SECOND) for second in range(5)] == [
        "",
        "dd",
        "ccdd",
        "bbccdd",
        "aabbccdd",
    ]
    assert await found(remote.clock.now - 2 * SECOND, after=5) == "cdd"
    assert await found(remote.clock.now - 3 * SECOND, limit=3) == "bbc"


async def test_an_event_is_kept_and_shown(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    reported = event("half way", level=Level.WARN, payload='{"progress": 0.5}', sanitized=True)
    assert await tell(remote, report(job, reported)) == (1,)
    assert await events(remote, job.id) == [
        EventRow(
            job.id,
            1,
            reported.id,
            Level.WARN,
            "half way",
            '{"progress": 0.5}',
            remote.clock.now,
            remote.clock.now,
            sanitized=True,
        )
    ]


async def test_an_event_writes_no_history_and_moves_no_lease(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    await tell(remote, report(job, event()))
    assert await remote.trace(job.id) == before


async def test_events_are_numbered_in_the_order_told_and_read_in_pages(remote: Desk) -> None:
    job = await remote.running()
    assert await tell(remote, report(job, event("a"), event("b"))) == (1, 2)
    assert await tell(remote, report(job, event("c"))) == (3,)
    rows = await events(remote, job.id)
    assert [(row.seq, row.message) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert await events(remote, job.id, limit=2) == rows[:2]
    assert await events(remote, job.id, after=2) == rows[2:]
    assert await events(remote, job.id, after=2**63 - 1) == []


async def test_a_repeated_call_adds_nothing_and_is_answered_the_same(remote: Desk) -> None:
    job = await remote.running()
    reported = report(job, event("a"), event("b"))
    assert await tell(remote, reported) == (1, 2)
    before = await events(remote, job.id)
    remote.clock.advance(1)
    assert await tell(remote, reported) == (1, 2)
    assert await tell(remote, report(job, event("c"), *reversed(reported.events))) == (3, 2, 1)
    assert (await events(remote, job.id))[:2] == before
    assert await messages(remote, job.id) == ["a", "b", "c"]


async def test_an_id_that_comes_twice_in_one_call_is_one_event(remote: Desk) -> None:
    job = await remote.running()
    one = event("first")
    assert await tell(remote, report(job, one, event("b"), one._replace(message="again"))) == (1, 2, 1)
    assert await messages(remote, job.id) == ["first", "b"]


async def test_an_id_is_of_one_job_only(remote: Desk) -> None:
    a, b = await remote.running(type="a"), await remote.running(type="b")
    same = event()
    assert await tell(remote, report(a, same)) == await tell(remote, report(b, same)) == (1,)


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"fence": 2**63 - 1}])
async def test_an_event_needs_both_the_fence_and_the_worker(remote: Desk, wrong: dict[str, Any]) -> None:
    job = await remote.running()
    assert isinstance(await refused(remote, report(job, event(), **wrong)), LeaseLost)
    assert await events(remote, job.id) == []


async def test_a_stale_worker_tells_nothing(remote: Desk) -> None:
    stale = await remote.running(lease_seconds=10.0)
    old = event("old")
    await tell(remote, report(stale, old))
    remote.clock.advance(10)
    current = await remote.again(stale)
    assert isinstance(await refused(remote, report(stale, event("stale"))), LeaseLost)
    assert isinstance(await refused(remote, report(stale, old)), LeaseLost)
    assert await tell(remote, report(current, event("new"))) == (2,)
    assert await messages(remote, stale.id) == ["old", "new"]
    assert len(await feed(remote, at_least=2)) == 2


@pytest.mark.parametrize("end", ["complete", "fail", "release", "expire", "revoke"])
async def test_an_event_after_the_end_of_its_grant_is_refused_like_a_checkpoint(remote: Desk, end: str) -> None:
    job = await remote.running()
    match end:
        case "complete":
            await remote.do(complete(job))
        case "fail":
            await remote.do(fail(job))
        case "release":
            await remote.do(release(job))
        case "expire":
            remote.clock.advance(60)
            await remote.do(expire(job.id))
        case "revoke":
            await remote.do(revoke(job.id))
    expected = LeaseLost if end in ("expire", "revoke") else NotRunning
    assert type(await refused(remote, report(job, event()))) is expected
    assert await events(remote, job.id) == []


@pytest.mark.parametrize("end", ["fail", "release", "expire", "approval"])
async def test_events_survive_the_run_and_go_on_in_the_next(remote: Desk, end: str) -> None:
    job = await remote.running()
    await tell(remote, report(job, event("before")))
    match end:
        case "fail":
            await remote.do(fail(job, retry_after_seconds=1.0))
        case "release":
            await remote.do(release(job))
        case "approval":
            _, approval = await waiting(remote, job=job)
            await decided(remote, command(approval))
    remote.clock.advance(60)
    if end == "expire":
        await remote.do(expire(job.id))
    again = await remote.again(job)
    assert await tell(remote, report(again, event("after"))) == (2,)
    await remote.do(complete(again))
    assert await messages(remote, job.id) == ["before", "after"]


async def test_many_reports_are_answered_each_on_its_own(remote: Desk, rival: Desk) -> None:
    a, b = await remote.running(type="a"), await remote.running(type="b")
    theirs = await rival.running()
    await remote.do(complete(b))
    answers = await remote.store.add_events(
        remote.tenant,
        [
            report(a, event("1"), event("2")), report(theirs, event()), report(b, event()), report(a, event("3")),
            report(a, event(), fence=99), report(a, event(), id=NEVER), report(b, event(), fence=99),
        ],
    )  # fmt: skip
    reported = [type(x.error) if isinstance(x, Rejected) else x for x in answers]
    assert reported == [(1, 2), NotFound, NotRunning, (3,), LeaseLost, NotFound, LeaseLost]
    assert await messages(remote, a.id) == ["1", "2", "3"]
    assert await events(rival, theirs.id) == []


async def test_a_heartbeat_may_carry_events(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    reported = (event("a"), event("b"))
    await remote.heartbeat(heartbeat(job, events=reported, checkpoint=save(job, 1)))
    assert [(row.message, row.at) for row in await events(remote, job.id)] == [
        ("a", remote.clock.now),
        ("b", remote.clock.now),
    ]
    now = await remote.job(job.id)
    assert (now.heartbeat_at, now.checkpoint_seq) == (remote.clock.now, 1)
    await remote.heartbeat(heartbeat(job, events=(*reported, event("c"))))
    assert await messages(remote, job.id) == ["a", "b", "c"]
    assert len(await feed(remote, at_least=3)) == 3


async def test_a_refused_heartbeat_adds_no_events(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 5))
    error = await remote.heartbeat_refused(heartbeat(job, checkpoint=save(job, 4), events=(event(),)))
    assert isinstance(error, CheckpointConflict)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job, fence=9, events=(event(),))), LeaseLost)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job, id=NEVER, events=(event(),))), NotFound)
    assert await events(remote, job.id) == []


async def test_beats_with_events_are_answered_each_on_their_own(remote: Desk) -> None:
    a, b = await remote.running(type="a"), await remote.running(type="b")
    heartbeats = [
        heartbeat(a, events=(event("1"),)), heartbeat(b, fence=9, events=(event("no"),)), heartbeat(b), heartbeat(a, events=(event("2"),)),
    ]  # fmt: skip
    answers = await remote.store.heartbeat(remote.tenant, heartbeats)
    assert [isinstance(answer, HeartbeatReply) for answer in answers] == [True, False, True, True]
    assert await messages(remote, a.id) == ["1", "2"]
    assert await events(remote, b.id) == []


async def test_64_concurrent_calls_with_one_event_add_it_once(remote: Desk) -> None:
    job = await remote.running()
    reported = report(job, event())
    answers = await asyncio.gather(*(tell(remote, reported) for _ in range(64)))
    assert set(answers) == {(1,)}
    assert len(await events(remote, job.id)) == 1


async def test_message_and_payload_come_back_byte_for_byte(remote: Desk) -> None:
    job = await remote.running()
    reported = [event(word, payload=value) for word, value in zip(itertools.cycle(WORDS), VALUES.values())]
    await tell(remote, report(job, *reported))
    assert [(row.message, row.payload) for row in await events(remote, job.id)] == [
        (e.message, e.payload) for e in reported
    ]
    assert [fed.event for fed in await feed(remote, at_least=len(reported))] == await events(remote, job.id)


@pytest.mark.parametrize(("offset", "kept"), [(-999, 0), (0, 0), (3, 3), (5, 5), (999, 5)])
async def test_an_event_keeps_the_time_it_was_recorded_within_its_lease(remote: Desk, offset: int, kept: int) -> None:
    job = await remote.running()
    began = remote.clock.now
    remote.clock.advance(5)
    await tell(remote, report(job, event("b", at=began + offset * SECOND), event("a"), event("c", at=began + SECOND)))
    rows = await events(remote, job.id)
    assert [row.at - began for row in rows] == [kept * SECOND, 5 * SECOND, SECOND]
    assert [row.received_at - began for row in rows] == [5 * SECOND] * 3
    assert [(row.seq, row.message) for row in rows] == [(1, "b"), (2, "a"), (3, "c")]  # as they arrived
    assert [fed.event for fed in await feed(remote, at_least=3)] == rows


async def test_a_later_lease_moves_the_earliest_time_of_an_event(remote: Desk) -> None:
    first = await remote.running()
    remote.clock.advance(5)
    await remote.do(release(first))
    (second,) = await remote.claim()
    remote.clock.advance(5)
    (reply,) = await remote.store.heartbeat(
        remote.tenant, [heartbeat(second, events=(event(at=remote.clock.now - 7 * SECOND),))]
    )
    assert isinstance(reply, HeartbeatReply)
    (row,) = await events(remote, first.id)
    assert (row.at, row.received_at) == (remote.clock.now - 5 * SECOND, remote.clock.now)


async def test_tenants_never_see_or_touch_each_others_events(remote: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    await tell(rival, report(theirs, event("theirs")))
    foreign = await refused(remote, report(theirs, event()))
    unknown = await refused(remote, report(theirs, event(), id=NEVER))
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert isinstance(await remote.heartbeat_refused(heartbeat(theirs, events=(event(),))), NotFound)
    assert await events(remote, theirs.id) == []
    assert await feed(remote) == []
    assert await messages(rival, theirs.id) == ["theirs"]
    mine = await remote.running(id=theirs.id)
    assert await tell(remote, report(mine, event("mine"))) == (1,)
    assert [fed.event.message for fed in await feed(rival, at_least=1)] == ["theirs"]
    assert [fed.event.message for fed in await feed(remote, at_least=1)] == ["mine"]


async def test_the_feed_has_the_events_of_all_jobs_each_in_its_order(remote: Desk) -> None:
    jobs = [await remote.running(type=f"t{i}") for i in range(3)]
    for i in range(4):
        await tell(remote, report(jobs[i % 3], event(f"a{i}"), event(f"b{i}")))
        await remote.heartbeat(heartbeat(jobs[(i + 1) % 3], events=(event(f"c{i}"),)))
    fed = await feed(remote, at_least=12)
    by_job = defaultdict(list)
    for item in fed:
        by_job[item.event.job_id].append(item.event)
    for job in jobs:
        assert by_job[job.id] == await events(remote, job.id)
    assert sum(map(len, by_job.values())) == 12


async def test_the_feed_is_read_in_pages_from_any_place(remote: Desk) -> None:
    a, b = await remote.running(type="a"), await remote.running(type="b")
    for i in range(5):
        await remote.store.add_events(remote.tenant, [report(a, event(f"a{i}")), report(b, event(f"b{i}"))])
    whole = await feed(remote, at_least=10)
    assert len(whole) == 10
    pages: list[FeedEvent] = []
    while page := await feed(remote, pages[-1].position if pages else START, limit=3):
        assert len(page) <= 3
        pages += page
    assert pages == whole
    for i, item in enumerate(whole):
        assert await feed(remote, FeedPosition.parse(str(item.position))) == whole[i + 1 :]


async def test_the_end_of_the_feed_is_before_whatever_is_told_from_now_on(remote: Desk) -> None:
    job = await remote.running()
    empty = await remote.store.feed_end(remote.tenant)
    assert await feed(remote, empty) == []
    await tell(remote, report(job, event("old")))
    assert [fed.event.message for fed in await feed(remote, empty, at_least=1)] == ["old"]
    end = await remote.store.feed_end(remote.tenant)
    assert await feed(remote, end) == []
    await tell(remote, report(job, event("new")))
    assert [fed.event.message for fed in await feed(remote, end, at_least=1)] == ["new"]


async def test_no_place_makes_the_database_stumble(remote: Desk) -> None:
    job = await remote.running()
    await tell(remote, report(job, event()))
    largest = 2**63 - 1
    for position in (FeedPosition(largest, largest, NEVER, largest), FeedPosition(0, largest, NEVER, 0)):
        assert await feed(remote, position) == []
    assert len(await feed(remote, FeedPosition(0, 0, NEVER, largest), at_least=1)) == 1


async def test_after_a_restore_new_events_come_after_every_place_given_out_before(remote: Desk, adapter: Door) -> None:
    """A restored database has forgotten turns that readers have seen; the epoch it is given tells them apart."""
    job = await remote.running()
    await tell(remote, report(job, event("old")))
    seen = FeedPosition(0, 2**62, NEVER, 9)  # far beyond what the database remembers
    await adapter.run("UPDATE epoch SET value = value + 1")
    try:
        await tell(remote, report(job, event("new")))
        assert [fed.event.message for fed in await feed(remote, seen, at_least=1)] == ["new"]
        assert [fed.event.message for fed in await feed(remote)] == ["old", "new"]
        assert await feed(remote, await remote.store.feed_end(remote.tenant)) == []
    finally:
        await adapter.run("UPDATE epoch SET value = value - 1")


async def test_whoever_waits_for_events_is_woken_by_those_told_here(remote: Desk) -> None:
    job = await remote.running()
    reported = remote.store.watch_events()
    await remote.heartbeat(heartbeat(job))
    assert not reported.is_set()
    await tell(remote, report(job, event()))
    assert reported.is_set()
    reported = remote.store.watch_events()
    assert not reported.is_set()
    await remote.heartbeat(heartbeat(job, events=(event(),)))
    assert reported.is_set()


async def test_the_database_refuses_to_change_an_event_or_take_it_from_its_job(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    await tell(remote, report(job, event("kept")))
    where = "WHERE tenant = $1 AND job_id = $2"
    assert "interlock:" in await refusal(adapter, f"UPDATE job_event SET message = 'x' {where}", remote.tenant, job.id)
    assert "interlock:" in await refusal(adapter, f"DELETE FROM job_event {where}", remote.tenant, job.id)
    assert await messages(remote, job.id) == ["kept"]


async def test_events_told_after_others_were_pruned_come_after_every_place_given_out(remote: Desk) -> None:
    old, job = await remote.running(type="old"), await remote.running()
    await tell(remote, report(job, event("kept")))
    await tell(remote, report(old, event("pruned"), event("too")))
    seen = (await feed(remote, at_least=3))[-1].position
    await remote.do(complete(old))
    remote.clock.advance(1)
    cutoff = remote.clock.now
    await remote.store.prune(remote.tenant, PruneCommand(new_id(), OPERATOR, cutoff, after_seq=0, step=100))
    assert [fed.event.message for fed in await feed(remote)] == ["kept"]
    await tell(remote, report(job, event("new")))
    assert [fed.event.message for fed in await feed(remote, seen, at_least=1)] == ["new"]
