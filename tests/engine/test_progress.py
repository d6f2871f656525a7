"""Steps and events as workers send them and viewers read them, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import pytest

from interlock import wire
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Heartbeat, Job, Rejected
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import Event, FeedPosition, Level, Report, Step
from interlock.engine import progress
from interlock.engine.engine import Engine
from interlock.errors import Error, Invalid, LeaseLost, Malformed, NotFound, TooLarge
from interlock.wire import job_request
from tests.support.eventually import RETRY_SECONDS

T = TypeVar("T")
KIB = 1024
EVENT = 8 * KIB
STEP = 256 * KIB


@pytest.fixture
async def job(interlock_engine: Engine, who: Principal) -> Job:
    """A job that worker w holds."""
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await interlock_engine.leases.claim("acme", ClaimFilter("w"))
    return job


def step(job: Job, name: str = "search", result: str = "1", **fields: Any) -> Step:
    sent: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": "w", "name": name, "occurrence": 1}
    return Step(**sent | {"result": result} | fields)


def event(message: str = "hello", payload: str | None = None, **fields: Any) -> Event:
    return Event(**{"id": wire.new_id(), "level": Level.INFO, "message": message, "payload": payload} | fields)


def report(job: Job, *events: Event, **fields: Any) -> Report:
    sent: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": "w", "events": events}
    return Report(**sent | fields)


async def first(pages: AsyncIterator[list[T]]) -> list[T]:
    """The next page that has something on it."""
    async with asyncio.timeout(RETRY_SECONDS):
        async for page in pages:
            if page:
                return page
    raise AssertionError("no page came")


async def test_a_step_is_saved_under_the_fence_and_read_by_the_tenant(interlock_engine: Engine, job: Job) -> None:
    kept = await interlock_engine.progress.save_step("acme", step(job, function="app.search"))
    assert (kept.name, kept.result, kept.function, kept.sanitized) == ("search", "1", "app.search", False)
    assert await interlock_engine.progress.save_step("acme", step(job, result="2")) == kept
    assert await interlock_engine.progress.steps("acme", job.id.upper()) == [kept]
    with pytest.raises(LeaseLost):
        await interlock_engine.progress.save_step("acme", step(job, fence=job.fence + 1))


async def test_a_result_of_256_kib_is_the_largest_accepted(interlock_engine: Engine, job: Job) -> None:
    largest = '"' + "x" * (STEP - 2) + '"'
    assert (await interlock_engine.progress.save_step("acme", step(job, "fits", largest))).result == largest
    with pytest.raises(TooLarge) as caught:
        await interlock_engine.progress.save_step("acme", step(job, "too large", largest.replace("x", "xx", 1)))
    assert (caught.value.size, caught.value.limit) == (STEP + 1, STEP)
    assert [row.name for row in await interlock_engine.progress.steps("acme", job.id)] == ["fits"]


async def test_a_result_with_a_lone_surrogate_is_kept_and_marked(interlock_engine: Engine, job: Job) -> None:
    kept = await interlock_engine.progress.save_step(
        "acme", step(job, result='"a\\ud800\udfffb"', function="f\ud800\x00")
    )
    assert (kept.result, kept.sanitized, kept.function) == ('"a\\ufffd\ufffdb"', True, "f\ufffd\ufffd")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"name": ""}, Invalid), ({"name": "x" * 201}, Invalid), ({"name": "a\nb"}, Invalid), ({"occurrence": -1}, Invalid),
        ({"occurrence": 2**31}, Invalid), ({"fence": 2**63}, Invalid), ({"fence": -1}, Invalid), ({"result": "{"}, Malformed),
        ({"result": "[NaN]"}, Malformed), ({"id": "nobody"}, NotFound), ({"worker": ""}, Invalid),
        ({"function": "x" * (8 * KIB + 1)}, TooLarge),
    ],
)  # fmt: skip
async def test_an_invalid_step_is_rejected_alone(
    interlock_engine: Engine, job: Job, wrong: dict[str, Any], error: type[Error]
) -> None:
    good, bad = step(job), step(job, **{"name": "other"} | wrong)
    kept, refused = await interlock_engine.progress.save_steps("acme", [good, bad])
    assert not isinstance(kept, Rejected)
    assert isinstance(refused, Rejected)
    assert type(refused.error) is error
    assert await interlock_engine.progress.steps("acme", job.id) == [kept]


@pytest.mark.parametrize("occurrence", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("name", ["x", "x" * 200, "größe 🐢"])
async def test_names_and_occurrences_at_their_limits_are_accepted(
    interlock_engine: Engine, job: Job, name: str, occurrence: int
) -> None:
    kept = await interlock_engine.progress.save_step("acme", step(job, name, occurrence=occurrence))
    assert (kept.name, kept.occurrence) == (name, occurrence)


async def test_all_steps_of_claimed_jobs_are_returned(interlock_engine: Engine, job: Job, who: Principal) -> None:
    many = [step(job, f"s{i}") for i in range(2 * progress.MAX_PAGE_SIZE)]
    kept = await interlock_engine.progress.save_steps("acme", many)
    other = await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    assert await interlock_engine.progress.steps_of("acme", [other.id, job.id]) == [[], kept]
    assert await interlock_engine.progress.steps("acme", job.id) == kept[: progress.MAX_PAGE_SIZE]
    assert await interlock_engine.progress.steps("acme", job.id, after=399) == kept[-1:]


async def test_events_are_added_and_read_by_the_tenant(interlock_engine: Engine, job: Job) -> None:
    reported = report(job, event("a", '{"progress":0.5}'), event("b", level="error"))
    assert await interlock_engine.progress.add_events("acme", reported) == (1, 2)
    assert await interlock_engine.progress.add_events("acme", reported) == (1, 2)
    rows = await interlock_engine.progress.events("acme", job.id)
    assert [(row.level, row.message, row.payload) for row in rows] == [
        (Level.INFO, "a", '{"progress":0.5}'), (Level.ERROR, "b", None),
    ]  # fmt: skip
    assert await interlock_engine.progress.events("acme", job.id, after=1, limit=1) == rows[1:]


async def test_message_and_payload_share_8_kib(interlock_engine: Engine, job: Job) -> None:
    payload = '"' + "x" * (EVENT - 3) + '"'
    assert await interlock_engine.progress.add_events("acme", report(job, event("m", payload))) == (1,)
    for too_large in (event("mm", payload), event("m", payload + " ")):
        with pytest.raises(TooLarge) as caught:
            await interlock_engine.progress.add_events("acme", report(job, too_large))
        assert (caught.value.size, caught.value.limit) == (EVENT + 1, EVENT)
    (row,) = await interlock_engine.progress.events("acme", job.id)
    assert (row.message, row.payload) == ("m", payload)


@pytest.mark.parametrize("message", ["", " ", "\n\t", "\u00a0\u2003", "\u200b"])
async def test_a_blank_message_is_rejected(interlock_engine: Engine, job: Job, message: str) -> None:
    reported = report(job, event("a"), event(message))
    with pytest.raises(Invalid) as caught:
        await interlock_engine.progress.add_events("acme", reported)
    assert caught.value.pointer == "/events/1/message"
    (answer,) = await interlock_engine.leases.heartbeats(
        "acme", [Heartbeat(job.id, job.fence, "w", events=reported.events)]
    )
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, Invalid)
    assert await interlock_engine.progress.events("acme", job.id) == []


@pytest.mark.parametrize("letter", ["x", "ä", "🐢"])
async def test_a_long_message_is_truncated_and_not_lost(interlock_engine: Engine, job: Job, letter: str) -> None:
    fits = letter * (EVENT // len(letter.encode()))
    payload = '"' + "x" * (7 * KIB - 2) + '"'
    reported = report(job, event(fits), event(fits + "y"), event("z" * 1025, payload), event("z" * 1024, payload))
    await interlock_engine.progress.add_events("acme", reported)
    whole, cut, beside, short = await interlock_engine.progress.events("acme", job.id)
    assert whole.message == fits
    assert cut.message.endswith("…")
    assert fits.startswith(cut.message[:-1])
    assert EVENT - 6 <= len(cut.message.encode()) <= EVENT
    assert beside.message == "z" * 1021 + "…"
    assert short.message == "z" * 1024
    with pytest.raises(TooLarge):
        await interlock_engine.progress.add_events("acme", report(job, event("z" * 1025, payload + " ")))


async def test_an_event_of_any_text_is_stored_and_marked(interlock_engine: Engine, job: Job) -> None:
    odd = [event("a\ud800b"), event("a\x00b"), event("fine", '"\\udfff"'), event("fine", '"\\u0000"')]
    await interlock_engine.progress.add_events("acme", report(job, *odd))
    rows = await interlock_engine.progress.events("acme", job.id)
    assert [(row.message, row.payload, row.sanitized) for row in rows] == [
        ("a\ufffdb", None, True), ("a\ufffdb", None, True), ("fine", '"\\ufffd"', True), ("fine", '"\\u0000"', False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"id": "one"}, Invalid), ({"level": "fatal"}, Invalid), ({"level": None}, Invalid), ({"payload": "{"}, Malformed),
        ({"payload": "[NaN]"}, Malformed),
    ],
)  # fmt: skip
async def test_an_invalid_event_rejects_only_its_append(
    interlock_engine: Engine, job: Job, wrong: dict[str, Any], error: type[Error]
) -> None:
    good, bad = report(job, event("good")), report(job, event(), event(**wrong))
    kept, refused = await interlock_engine.progress.reports("acme", [good, bad])
    assert kept == (1,)
    assert isinstance(refused, Rejected)
    assert type(refused.error) is error


async def test_a_call_without_events_or_with_too_many_is_rejected(interlock_engine: Engine, job: Job) -> None:
    with pytest.raises(Invalid):
        await interlock_engine.progress.add_events("acme", report(job))
    same = event()
    with pytest.raises(Invalid):
        await interlock_engine.progress.add_events("acme", report(job, *[same] * 1001))
    assert await interlock_engine.progress.add_events("acme", report(job, *[same] * 1000)) == (1,) * 1000


async def test_the_events_of_a_heartbeat_are_sanitized_like_any_other(interlock_engine: Engine, job: Job) -> None:
    await interlock_engine.leases.heartbeat("acme", Heartbeat(job.id, job.fence, "w", events=(event("\ud800"),)))
    (row,) = await interlock_engine.progress.events("acme", job.id)
    assert (row.message, row.sanitized) == ("\ufffd", True)
    with pytest.raises(Invalid):
        await interlock_engine.leases.heartbeat("acme", Heartbeat(job.id, job.fence, "w", events=(event(id="x"),)))


@pytest.mark.parametrize("id", ["0193a1b2-ffff-7fff-8fff-ffffffffffff", "nobody", "\ud800"])
async def test_an_unknown_job_has_no_steps_and_no_events(interlock_engine: Engine, id: str) -> None:
    for read in (interlock_engine.progress.steps, interlock_engine.progress.events):
        with pytest.raises(NotFound):
            await read("acme", id)
    with pytest.raises(NotFound):
        await first(interlock_engine.progress.tail("acme", id))


async def test_a_job_of_another_tenant_is_unknown(interlock_engine: Engine, job: Job) -> None:
    await interlock_engine.progress.save_step("acme", step(job))
    await interlock_engine.progress.add_events("acme", report(job, event()))
    for read in (interlock_engine.progress.steps, interlock_engine.progress.events):
        with pytest.raises(NotFound):
            await read("rival", job.id)
    assert await interlock_engine.progress.feed("rival", await interlock_engine.progress.feed_end("rival")) == []


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 201}, {"after": -1}, {"after": 2**63}])
async def test_a_page_has_from_1_to_200_items(interlock_engine: Engine, job: Job, wrong: dict[str, int]) -> None:
    for read in (interlock_engine.progress.steps, interlock_engine.progress.events):
        with pytest.raises(Invalid):
            await read("acme", job.id, **wrong)
        assert await read("acme", job.id, after=2**63 - 1, limit=200) == []
    if "limit" in wrong:
        with pytest.raises(Invalid):
            await interlock_engine.progress.feed("acme", FeedPosition(0, 0, job.id, 0), **wrong)


async def test_a_tail_returns_events_until_the_job_is_terminal(interlock_engine: Engine, job: Job) -> None:
    await interlock_engine.progress.add_events("acme", report(job, event("a"), event("b")))
    tail = interlock_engine.progress.tail("acme", job.id, after=1)
    assert [row.message for row in await first(tail)] == ["b"]
    waiting = asyncio.create_task(first(tail))
    await asyncio.sleep(0)
    await interlock_engine.progress.add_events("acme", report(job, event("c")))
    assert [row.message for row in await waiting] == ["c"]
    await interlock_engine.progress.add_events("acme", report(job, event("d")))
    await interlock_engine.leases.complete("acme", CompleteJob(job.id, job.fence, "w"))
    assert [[row.message for row in page] async for page in tail] == [["d"]]


async def test_following_the_feed_returns_events_from_a_position(interlock_engine: Engine, job: Job) -> None:
    end = await interlock_engine.progress.feed_end("acme")
    feed = interlock_engine.progress.follow("acme", end)
    waiting = asyncio.create_task(first(feed))
    await asyncio.sleep(0)
    await interlock_engine.progress.add_events("acme", report(job, event("a")))
    (fed,) = await waiting
    assert fed.event.message == "a"
    await interlock_engine.leases.heartbeat("acme", Heartbeat(job.id, job.fence, "w", events=(event("b"),)))
    assert [fed.event.message for fed in await first(feed)] == ["b"]
    again = interlock_engine.progress.follow("acme", FeedPosition.parse(str(fed.position)))
    assert [fed.event.message for fed in await first(again)] == ["b"]


async def test_a_quiet_tail_yields_empty_pages_as_keep_alives(
    interlock_engine: Engine, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    tail = interlock_engine.progress.tail("acme", job.id)
    assert [await anext(tail) for _ in range(2)] == [[], []]
