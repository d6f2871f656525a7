"""Topics: a message reaches every job that waits for the topic, and while it is retained those that begin to wait."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from interlock.domain.job import Job, Rejected
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.domain.message import MAX_RETAIN_SECONDS, AwaitMessage, Message, Publish, Published
from interlock.errors import TopicConflict
from tests.contract.builders import OPERATOR, TenantQueue, release
from tests.contract.connections import SqlConnection, rejection
from tests.contract.test_messages import inbox, sent

_numbers = itertools.count()
NEWS = AwaitMessage(None, topic="news")


async def published(queue: TenantQueue, id: str = "a", **more: Any) -> Published:
    answer = await queue.store.messages.publish(queue.tenant, Publish("news", id, OPERATOR, **more))
    assert isinstance(answer, Published), answer
    return answer


async def waiting(queue: TenantQueue, wanted: AwaitMessage = NEWS, **more: Any) -> Job:
    job = await queue.running(type=f"work-{next(_numbers)}")  # so that jobs that are due do not interfere
    await queue.do(release(job, message=wanted, **more))
    return await queue.job(job.id)


def about(messages: list[Message]) -> list[tuple[int, str, str | None, str | None, str | None]]:
    return [(one.seq, one.id, one.name, one.topic, one.payload) for one in messages]


async def test_a_message_reaches_every_job_that_waits_for_its_topic(queue: TenantQueue) -> None:
    first, second = await waiting(queue), await waiting(queue)
    other, named = await waiting(queue, NEWS._replace(topic="other")), await waiting(queue, AwaitMessage("news"))
    running = await queue.running()
    assert await published(queue, payload="1") == Published("a", 2)
    for job in (first, second):
        now, rows = await queue.trace(job.id)
        assert (now.status, now.run_at, now.awaiting_message, now.releases) == (Status.QUEUED, queue.clock.now, None, 0)
        assert (rows[-1].verb, rows[-1].actor) == (Verb.SEND_MESSAGE, OPERATOR)
        assert about(await inbox(queue, job.id)) == [(1, "a", None, "news", "1")]
    for job in (other, named, running):
        assert await inbox(queue, job.id) == []
    assert {job.id for job in await queue.claim(limit=10)} == {first.id, second.id}
    await queue.verify()


async def test_the_same_id_again_delivers_nothing_more(queue: TenantQueue) -> None:
    await waiting(queue)
    assert await published(queue, payload="1") == Published("a", 1)
    late = await waiting(queue)
    assert await published(queue, payload="1") == Published("a", 1, is_new=False)
    assert await inbox(queue, late.id) == []
    refused = await queue.store.messages.publish(queue.tenant, Publish("news", "a", OPERATOR, "2"))
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, TopicConflict)
    other = await queue.store.messages.publish(queue.tenant, Publish("other", "a", OPERATOR, "2"))
    assert other == Published("a", 0)


async def test_a_retained_message_reaches_jobs_that_begin_to_wait_within_its_time(queue: TenantQueue) -> None:
    await published(queue, "a", payload="1", retain_seconds=60)
    await published(queue, "b", payload="2", retain_seconds=120)
    await published(queue, "c")
    job = await waiting(queue)
    assert job.run_at == queue.clock.now
    assert about(await inbox(queue, job.id)) == [(1, "a", None, "news", "1"), (2, "b", None, "news", "2")]
    again = await queue.again(job)
    await queue.do(release(again, message=NEWS._replace(after=1)))
    assert (await queue.job(job.id)).run_at == queue.clock.now  # it has the second one already
    again = await queue.again(job)
    await queue.do(release(again, message=NEWS._replace(after=2)))
    assert (await queue.job(job.id)).run_at > queue.clock.now
    queue.clock.advance(60)
    assert about(await inbox(queue, (await waiting(queue)).id)) == [(1, "b", None, "news", "2")]
    queue.clock.advance(60)
    assert await inbox(queue, (await waiting(queue)).id) == []


async def test_old_messages_are_forgotten(queue: TenantQueue, sql: SqlConnection) -> None:
    await published(queue, "a", retain_seconds=MAX_RETAIN_SECONDS)
    queue.clock.advance(MAX_RETAIN_SECONDS + 1)
    await published(queue, "b")
    assert await sql.run("SELECT id FROM topic_message WHERE tenant = $1", queue.tenant) == [("b",)]


async def test_a_wait_for_a_topic_ends_with_its_time(queue: TenantQueue) -> None:
    job = await waiting(queue, delay_seconds=60)
    queue.clock.advance(60)
    assert await published(queue) == Published("a", 0)
    assert [one.id for one in await queue.claim()] == [job.id]
    assert await inbox(queue, job.id) == []


async def test_a_job_shows_what_it_waits_for(queue: TenantQueue) -> None:
    job = await waiting(queue)
    for wanted, shown in (
        (AwaitMessage("go", 3), {"name": "go", "after": 3}),
        (NEWS, {"topic": "news", "after": 0}),
    ):
        job = await waiting(queue, wanted, delay_seconds=60)
        assert json.loads(job.awaiting_message or "") == shown
        assert job.location(queue.clock.now) is Location.BLOCKED
        snapshot = await queue.store.workers.job_snapshot(queue.tenant, job.id)
        assert snapshot is not None
        assert snapshot.awaiting_message == job.awaiting_message
        (stats,) = await queue.store.registry.stats(queue.tenant, job.type)
        assert (stats.blocked, stats.delayed, stats.ready) == (1, 0, 0)
    queue.clock.advance(60)
    assert (await queue.job(job.id)).location(queue.clock.now) is Location.READY
    again = await queue.again(job)
    assert again.awaiting_message is None
    assert (await queue.job(again.id)).awaiting_message is None


async def test_a_message_wakes_only_the_wait_that_it_ends(queue: TenantQueue) -> None:
    job = await waiting(queue)
    await sent(queue, job.id, "x", "news")
    assert (await queue.job(job.id)).run_at > queue.clock.now
    await published(queue)
    assert [one.seq for one in await inbox(queue, job.id, topic="news")] == [2]
    assert [one.seq for one in await inbox(queue, job.id, name="news")] == [1]


async def test_no_message_is_lost_between_publishers_and_jobs_that_begin_to_wait(queue: TenantQueue) -> None:
    jobs = [await queue.running() for _ in range(12)]

    async def wait(job: Job) -> None:
        await queue.do(release(job, message=NEWS))

    await asyncio.gather(published(queue, payload="1", retain_seconds=600), *map(wait, jobs))
    for job in jobs:
        assert len(await inbox(queue, job.id)) == 1
        assert (await queue.job(job.id)).run_at <= queue.clock.now


@pytest.mark.parametrize("size", [2, 5, 500])
async def test_calls_with_one_id_at_one_time_return_the_same(
    queue: TenantQueue, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.storage.parts.messages.BATCH_SIZE", size)
    jobs = [await waiting(queue) for _ in range(5)]
    done = await asyncio.gather(*(published(queue, payload="1") for _ in range(4)))
    assert [one.delivered for one in done] == [5] * 4
    assert [one.is_new for one in done].count(True) == 1
    assert await published(queue, payload="1") == Published("a", 5, is_new=False)
    for job in jobs:
        assert len(await inbox(queue, job.id)) == 1


async def test_messages_to_topics_change_only_by_operations(queue: TenantQueue, sql: SqlConnection) -> None:
    await published(queue)
    await waiting(queue)
    for statement in (
        "UPDATE topic_message SET payload = '2' WHERE tenant = $1",
        "DELETE FROM topic_message WHERE tenant = $1",
        "DELETE FROM message_wait WHERE tenant = $1",
    ):
        await rejection(sql, statement, queue.tenant)


@pytest.mark.parametrize("origin", ["start", "checkpoint"])
async def test_waits_of_topics_do_not_hold_a_message_twice(queue: TenantQueue, origin: str) -> None:
    job = await waiting(queue)
    await published(queue, "a", retain_seconds=60)
    again = await queue.again(job)
    await queue.do(release(again, message=NEWS._replace(after=0 if origin == "start" else 1)))
    assert [one.id for one in await inbox(queue, job.id)] == ["a"]


async def test_ids_of_topics_and_of_direct_messages_do_not_collide(queue: TenantQueue) -> None:
    job = await waiting(queue)
    await sent(queue, job.id, "a", "go")
    assert await published(queue, "a") == Published("a", 1)
    assert not (await sent(queue, job.id, "a", "go")).is_new
    other = await waiting(queue, NEWS._replace(topic="other"))
    await queue.store.messages.publish(queue.tenant, Publish("other", "a", OPERATOR))
    again = await queue.again(other)
    await published(queue, "b", retain_seconds=60)
    await queue.do(release(again, message=NEWS))
    assert [(one.id, one.topic) for one in await inbox(queue, other.id)] == [("a", "other"), ("b", "news")]
    assert [(one.id, one.topic) for one in await inbox(queue, job.id)] == [("a", None), ("a", "news")]
