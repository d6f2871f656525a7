"""Events: told under the current fence, numbered by job, and read as one feed in which nothing appears too late."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import Any

import pytest

from interlock.domain.job import Pulse, Refused
from interlock.domain.progress import SMALLEST_ID, EventRow, Fed, Level, Place, Report
from interlock.errors import CheckpointConflict, Error, LeaseLost, NotFound, NotRunning
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.builders import NEVER, Desk, beat, complete, expire, fail, release, revoke, save
from tests.contract.connections import Door, refusal
from tests.contract.progress import event, report, tell
from tests.contract.test_poison_values import VALUES, WORDS
from tests.support.eventually import eventually
from tests.support.stores import SECOND

START = Place(0, 0, SMALLEST_ID, 0)


async def refused(desk: Desk, report: Report) -> Error:
    (answer,) = await desk.store.add_events(desk.tenant, [report])
    assert isinstance(answer, Refused), answer
    return answer.error


async def events(desk: Desk, job_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
    return await desk.store.events(desk.tenant, job_id, after=after, limit=limit)


async def messages(desk: Desk, job_id: str) -> list[str]:
    return [row.message for row in await events(desk, job_id)]


async def feed(desk: Desk, after: Place = START, *, limit: int = 1000, at_least: int = 0) -> list[Fed]:
    """A page of the feed, once so many are there: anybody who writes on the same server may hold it back for a moment."""
    page: list[Fed] = []

    async def enough() -> bool:
        nonlocal page
        page = await desk.store.feed(desk.tenant, after, limit=limit)
        return len(page) >= at_least

    await eventually(enough)
    return page


async def test_events_are_read_from_a_time_on(desk: Desk) -> None:
    job = await desk.running()
    for message in "abcd":
        desk.clock.advance(1)
        await tell(desk, report(job, event(message), event(message)))
    read = desk.store.events

    async def found(since: int, **more: int) -> str:
        rows = await read(desk.tenant, job.id, since=since, **{"limit": 10} | more)
        return "".join(row.message for row in rows)

    assert [await found(desk.clock.now - second * SECOND) for second in range(5)] == [
        "",
        "dd",
        "ccdd",
        "bbccdd",
        "aabbccdd",
    ]
    assert await found(desk.clock.now - 2 * SECOND, after=5) == "cdd"
    assert await found(desk.clock.now - 3 * SECOND, limit=3) == "bbc"


async def test_an_event_is_kept_and_shown(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    told = event("half way", level=Level.WARN, payload='{"progress": 0.5}', sanitized=True)
    assert await tell(desk, report(job, told)) == (1,)
    assert await events(desk, job.id) == [
        EventRow(
            job.id,
            1,
            told.id,
            Level.WARN,
            "half way",
            '{"progress": 0.5}',
            desk.clock.now,
            desk.clock.now,
            sanitized=True,
        )
    ]


async def test_an_event_writes_no_history_and_moves_no_lease(desk: Desk) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    await tell(desk, report(job, event()))
    assert await desk.trace(job.id) == before


async def test_events_are_numbered_in_the_order_told_and_read_in_pages(desk: Desk) -> None:
    job = await desk.running()
    assert await tell(desk, report(job, event("a"), event("b"))) == (1, 2)
    assert await tell(desk, report(job, event("c"))) == (3,)
    rows = await events(desk, job.id)
    assert [(row.seq, row.message) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert await events(desk, job.id, limit=2) == rows[:2]
    assert await events(desk, job.id, after=2) == rows[2:]
    assert await events(desk, job.id, after=2**63 - 1) == []


async def test_a_repeated_call_adds_nothing_and_is_answered_the_same(desk: Desk) -> None:
    job = await desk.running()
    told = report(job, event("a"), event("b"))
    assert await tell(desk, told) == (1, 2)
    before = await events(desk, job.id)
    desk.clock.advance(1)
    assert await tell(desk, told) == (1, 2)
    assert await tell(desk, report(job, event("c"), *reversed(told.events))) == (3, 2, 1)
    assert (await events(desk, job.id))[:2] == before
    assert await messages(desk, job.id) == ["a", "b", "c"]


async def test_an_id_that_comes_twice_in_one_call_is_one_event(desk: Desk) -> None:
    job = await desk.running()
    one = event("first")
    assert await tell(desk, report(job, one, event("b"), one._replace(message="again"))) == (1, 2, 1)
    assert await messages(desk, job.id) == ["first", "b"]


async def test_an_id_is_of_one_job_only(desk: Desk) -> None:
    a, b = await desk.running(type="a"), await desk.running(type="b")
    same = event()
    assert await tell(desk, report(a, same)) == await tell(desk, report(b, same)) == (1,)


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"fence": 2**63 - 1}])
async def test_an_event_needs_both_the_fence_and_the_worker(desk: Desk, wrong: dict[str, Any]) -> None:
    job = await desk.running()
    assert isinstance(await refused(desk, report(job, event(), **wrong)), LeaseLost)
    assert await events(desk, job.id) == []


async def test_a_stale_worker_tells_nothing(desk: Desk) -> None:
    stale = await desk.running(lease_seconds=10.0)
    old = event("old")
    await tell(desk, report(stale, old))
    desk.clock.advance(10)
    current = await desk.again(stale)
    assert isinstance(await refused(desk, report(stale, event("stale"))), LeaseLost)
    assert isinstance(await refused(desk, report(stale, old)), LeaseLost)
    assert await tell(desk, report(current, event("new"))) == (2,)
    assert await messages(desk, stale.id) == ["old", "new"]
    assert len(await feed(desk, at_least=2)) == 2


@pytest.mark.parametrize("end", ["complete", "fail", "release", "expire", "revoke"])
async def test_an_event_after_the_end_of_its_grant_is_refused_like_a_checkpoint(desk: Desk, end: str) -> None:
    job = await desk.running()
    match end:
        case "complete":
            await desk.do(complete(job))
        case "fail":
            await desk.do(fail(job))
        case "release":
            await desk.do(release(job))
        case "expire":
            desk.clock.advance(60)
            await desk.do(expire(job.id))
        case "revoke":
            await desk.do(revoke(job.id))
    expected = LeaseLost if end in ("expire", "revoke") else NotRunning
    assert type(await refused(desk, report(job, event()))) is expected
    assert await events(desk, job.id) == []


@pytest.mark.parametrize("end", ["fail", "release", "expire", "approval"])
async def test_events_survive_the_run_and_go_on_in_the_next(desk: Desk, end: str) -> None:
    job = await desk.running()
    await tell(desk, report(job, event("before")))
    match end:
        case "fail":
            await desk.do(fail(job, retry_after_seconds=1.0))
        case "release":
            await desk.do(release(job))
        case "approval":
            _, gate = await waiting(desk, job=job)
            await decided(desk, ballot(gate))
    desk.clock.advance(60)
    if end == "expire":
        await desk.do(expire(job.id))
    again = await desk.again(job)
    assert await tell(desk, report(again, event("after"))) == (2,)
    await desk.do(complete(again))
    assert await messages(desk, job.id) == ["before", "after"]


async def test_many_reports_are_answered_each_on_its_own(desk: Desk, rival: Desk) -> None:
    a, b = await desk.running(type="a"), await desk.running(type="b")
    theirs = await rival.running()
    await desk.do(complete(b))
    answers = await desk.store.add_events(
        desk.tenant,
        [
            report(a, event("1"), event("2")), report(theirs, event()), report(b, event()), report(a, event("3")),
            report(a, event(), fence=99), report(a, event(), id=NEVER), report(b, event(), fence=99),
        ],
    )  # fmt: skip
    told = [type(x.error) if isinstance(x, Refused) else x for x in answers]
    assert told == [(1, 2), NotFound, NotRunning, (3,), LeaseLost, NotFound, LeaseLost]
    assert await messages(desk, a.id) == ["1", "2", "3"]
    assert await events(rival, theirs.id) == []


async def test_a_heartbeat_may_carry_events(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    told = (event("a"), event("b"))
    await desk.heartbeat(beat(job, events=told, checkpoint=save(job, 1)))
    assert [(row.message, row.at) for row in await events(desk, job.id)] == [
        ("a", desk.clock.now),
        ("b", desk.clock.now),
    ]
    now = await desk.job(job.id)
    assert (now.heartbeat_at, now.checkpoint_seq) == (desk.clock.now, 1)
    await desk.heartbeat(beat(job, events=(*told, event("c"))))
    assert await messages(desk, job.id) == ["a", "b", "c"]
    assert len(await feed(desk, at_least=3)) == 3


async def test_a_refused_heartbeat_adds_no_events(desk: Desk) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 5))
    error = await desk.heartbeat_refused(beat(job, checkpoint=save(job, 4), events=(event(),)))
    assert isinstance(error, CheckpointConflict)
    assert isinstance(await desk.heartbeat_refused(beat(job, fence=9, events=(event(),))), LeaseLost)
    assert isinstance(await desk.heartbeat_refused(beat(job, id=NEVER, events=(event(),))), NotFound)
    assert await events(desk, job.id) == []


async def test_beats_with_events_are_answered_each_on_their_own(desk: Desk) -> None:
    a, b = await desk.running(type="a"), await desk.running(type="b")
    beats = [
        beat(a, events=(event("1"),)), beat(b, fence=9, events=(event("no"),)), beat(b), beat(a, events=(event("2"),)),
    ]  # fmt: skip
    answers = await desk.store.heartbeat(desk.tenant, beats)
    assert [isinstance(answer, Pulse) for answer in answers] == [True, False, True, True]
    assert await messages(desk, a.id) == ["1", "2"]
    assert await events(desk, b.id) == []


async def test_64_concurrent_calls_with_one_event_add_it_once(desk: Desk) -> None:
    job = await desk.running()
    told = report(job, event())
    answers = await asyncio.gather(*(tell(desk, told) for _ in range(64)))
    assert set(answers) == {(1,)}
    assert len(await events(desk, job.id)) == 1


async def test_message_and_payload_come_back_byte_for_byte(desk: Desk) -> None:
    job = await desk.running()
    told = [event(word, payload=value) for word, value in zip(itertools.cycle(WORDS), VALUES.values())]
    await tell(desk, report(job, *told))
    assert [(row.message, row.payload) for row in await events(desk, job.id)] == [(e.message, e.payload) for e in told]
    assert [fed.event for fed in await feed(desk, at_least=len(told))] == await events(desk, job.id)


@pytest.mark.parametrize(("offset", "kept"), [(-999, 0), (0, 0), (3, 3), (5, 5), (999, 5)])
async def test_an_event_keeps_the_time_it_was_recorded_within_its_lease(desk: Desk, offset: int, kept: int) -> None:
    job = await desk.running()
    began = desk.clock.now
    desk.clock.advance(5)
    await tell(desk, report(job, event("b", at=began + offset * SECOND), event("a"), event("c", at=began + SECOND)))
    rows = await events(desk, job.id)
    assert [row.at - began for row in rows] == [kept * SECOND, 5 * SECOND, SECOND]
    assert [row.received_at - began for row in rows] == [5 * SECOND] * 3
    assert [(row.seq, row.message) for row in rows] == [(1, "b"), (2, "a"), (3, "c")]  # as they arrived
    assert [fed.event for fed in await feed(desk, at_least=3)] == rows


async def test_a_later_lease_moves_the_earliest_time_of_an_event(desk: Desk) -> None:
    first = await desk.running()
    desk.clock.advance(5)
    await desk.do(release(first))
    (second,) = await desk.claim()
    desk.clock.advance(5)
    (pulse,) = await desk.store.heartbeat(desk.tenant, [beat(second, events=(event(at=desk.clock.now - 7 * SECOND),))])
    assert isinstance(pulse, Pulse)
    (row,) = await events(desk, first.id)
    assert (row.at, row.received_at) == (desk.clock.now - 5 * SECOND, desk.clock.now)


async def test_tenants_never_see_or_touch_each_others_events(desk: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    await tell(rival, report(theirs, event("theirs")))
    foreign = await refused(desk, report(theirs, event()))
    unknown = await refused(desk, report(theirs, event(), id=NEVER))
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert isinstance(await desk.heartbeat_refused(beat(theirs, events=(event(),))), NotFound)
    assert await events(desk, theirs.id) == []
    assert await feed(desk) == []
    assert await messages(rival, theirs.id) == ["theirs"]
    mine = await desk.running(id=theirs.id)
    assert await tell(desk, report(mine, event("mine"))) == (1,)
    assert [fed.event.message for fed in await feed(rival, at_least=1)] == ["theirs"]
    assert [fed.event.message for fed in await feed(desk, at_least=1)] == ["mine"]


async def test_the_feed_has_the_events_of_all_jobs_each_in_its_order(desk: Desk) -> None:
    jobs = [await desk.running(type=f"t{i}") for i in range(3)]
    for i in range(4):
        await tell(desk, report(jobs[i % 3], event(f"a{i}"), event(f"b{i}")))
        await desk.heartbeat(beat(jobs[(i + 1) % 3], events=(event(f"c{i}"),)))
    fed = await feed(desk, at_least=12)
    by_job = defaultdict(list)
    for item in fed:
        by_job[item.event.job_id].append(item.event)
    for job in jobs:
        assert by_job[job.id] == await events(desk, job.id)
    assert sum(map(len, by_job.values())) == 12


async def test_the_feed_is_read_in_pages_from_any_place(desk: Desk) -> None:
    a, b = await desk.running(type="a"), await desk.running(type="b")
    for i in range(5):
        await desk.store.add_events(desk.tenant, [report(a, event(f"a{i}")), report(b, event(f"b{i}"))])
    whole = await feed(desk, at_least=10)
    assert len(whole) == 10
    pages: list[Fed] = []
    while page := await feed(desk, pages[-1].place if pages else START, limit=3):
        assert len(page) <= 3
        pages += page
    assert pages == whole
    for i, item in enumerate(whole):
        assert await feed(desk, Place.parse(str(item.place))) == whole[i + 1 :]


async def test_the_end_of_the_feed_is_before_whatever_is_told_from_now_on(desk: Desk) -> None:
    job = await desk.running()
    empty = await desk.store.feed_end(desk.tenant)
    assert await feed(desk, empty) == []
    await tell(desk, report(job, event("old")))
    assert [fed.event.message for fed in await feed(desk, empty, at_least=1)] == ["old"]
    end = await desk.store.feed_end(desk.tenant)
    assert await feed(desk, end) == []
    await tell(desk, report(job, event("new")))
    assert [fed.event.message for fed in await feed(desk, end, at_least=1)] == ["new"]


async def test_no_place_makes_the_database_stumble(desk: Desk) -> None:
    job = await desk.running()
    await tell(desk, report(job, event()))
    largest = 2**63 - 1
    for place in (Place(largest, largest, NEVER, largest), Place(0, largest, NEVER, 0)):
        assert await feed(desk, place) == []
    assert len(await feed(desk, Place(0, 0, NEVER, largest), at_least=1)) == 1


async def test_after_a_restore_new_events_come_after_every_place_given_out_before(desk: Desk, door: Door) -> None:
    """A restored database has forgotten turns that readers have seen; the epoch it is given tells them apart."""
    job = await desk.running()
    await tell(desk, report(job, event("old")))
    seen = Place(0, 2**62, NEVER, 9)  # far beyond what the database remembers
    await door.run("UPDATE epoch SET value = value + 1")
    try:
        await tell(desk, report(job, event("new")))
        assert [fed.event.message for fed in await feed(desk, seen, at_least=1)] == ["new"]
        assert [fed.event.message for fed in await feed(desk)] == ["old", "new"]
        assert await feed(desk, await desk.store.feed_end(desk.tenant)) == []
    finally:
        await door.run("UPDATE epoch SET value = value - 1")


async def test_whoever_waits_for_events_is_woken_by_those_told_here(desk: Desk) -> None:
    job = await desk.running()
    told = desk.store.watch_events()
    await desk.heartbeat(beat(job))
    assert not told.is_set()
    await tell(desk, report(job, event()))
    assert told.is_set()
    told = desk.store.watch_events()
    assert not told.is_set()
    await desk.heartbeat(beat(job, events=(event(),)))
    assert told.is_set()


async def test_the_database_refuses_to_change_an_event_or_take_it_from_its_job(desk: Desk, door: Door) -> None:
    job = await desk.running()
    await tell(desk, report(job, event("kept")))
    where = "WHERE tenant = $1 AND job_id = $2"
    assert "interlock:" in await refusal(door, f"UPDATE job_event SET message = 'x' {where}", desk.tenant, job.id)
    assert "interlock:" in await refusal(door, f"DELETE FROM job_event {where}", desk.tenant, job.id)
    assert await messages(desk, job.id) == ["kept"]


async def test_events_told_after_others_were_pruned_come_after_every_place_given_out(desk: Desk, door: Door) -> None:
    old, job = await desk.running(type="old"), await desk.running()
    await tell(desk, report(job, event("kept")))
    await tell(desk, report(old, event("pruned"), event("too")))
    seen = (await feed(desk, at_least=3))[-1].place
    await desk.do(complete(old))
    await door.run("DELETE FROM job WHERE tenant = $1 AND id = $2", desk.tenant, old.id)
    await door.run("DELETE FROM job_event WHERE tenant = $1 AND job_id = $2", desk.tenant, old.id)
    assert [fed.event.message for fed in await feed(desk)] == ["kept"]
    await tell(desk, report(job, event("new")))
    assert [fed.event.message for fed in await feed(desk, seen, at_least=1)] == ["new"]
