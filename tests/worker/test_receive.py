"""Messages in tasks: each is received once, a wait needs no worker, and a later run receives the same."""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock.domain.lifecycle import Status
from tests.support.apps import StoreApp
from tests.support.stores import ManualClock


async def test_a_task_receives_each_message_once_and_in_order(app: StoreApp) -> None:
    runs = 0

    @app.task
    async def listener(ctx: interlock.Context) -> list[Any]:
        nonlocal runs
        runs += 1
        return [await ctx.receive("go"), await ctx.receive("stop"), await ctx.receive("go")]

    handle = await listener.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.releases, runs) == (Status.QUEUED, 1, 0, 1)
    first = await handle.send("go", {"n": 1}, id="first")
    assert (first.seq, first.name, first.payload) == (1, "go", {"n": 1})
    assert await handle.send("go", {"n": 1}, id="first") == first
    await app.drain()
    assert ((await app.job(handle.id)).status, runs) == (Status.QUEUED, 2)
    await handle.send("go", 2)
    await app.drain()
    assert runs == 2  # not the message that it waits for
    await handle.send("stop")
    await app.drain()
    assert (await handle.result(), runs) == ([{"n": 1}, None, 2], 3)


async def test_a_receive_ends_with_its_time_in_every_later_run(app: StoreApp, clock: ManualClock) -> None:
    late: list[str] = []

    @app.task
    async def listener(ctx: interlock.Context) -> Any:
        try:
            await ctx.receive("go", timeout=60)
        except TimeoutError as error:
            late.append(str(error))
        return await ctx.receive("go", schema=int)

    handle = await listener.enqueue()
    await app.drain()
    clock.advance(40)
    await (await app._client()).jobs.run_now(handle.id)
    await app.drain()
    assert late == []
    clock.advance(20)
    await app.drain()
    assert len(late) == 1
    await handle.send("go", 7)
    await app.drain()
    assert (await handle.result(), len(late)) == (7, 2)


async def test_no_change_of_code_receives_a_message_twice_or_loses_one(app: StoreApp, clock: ManualClock) -> None:
    """Receives are added, reordered and removed under a job that has received messages."""
    received: list[dict[str, str]] = []
    names: list[str] = []

    @app.task(max_attempts=4)
    async def listener(ctx: interlock.Context) -> None:
        received.append({name: await ctx.receive("note", name=name, schema=str) for name in names})
        if len(received) < 4:
            raise interlock.Retry(delay=1)

    handle = await listener.enqueue()
    for payload in ("A", "B", "C", "D"):
        await handle.send("note", payload)
    for deployed in (["a", "b"], ["new", "b", "a"], ["b", "last"], ["next", "new"]):
        names[:] = deployed
        clock.advance(1)
        await app.drain()
    assert received == [{"a": "A", "b": "B"}, {"new": "C", "b": "B", "a": "A"}, {"b": "B", "last": "D"}]
    await handle.send("note", "E")
    await app.drain()
    assert received[3] == {"next": "E", "new": "C"}


async def test_a_task_reads_its_inbox_without_waiting(app: StoreApp) -> None:
    @app.task
    async def listener(ctx: interlock.Context) -> Any:
        with pytest.raises(TimeoutError):
            await ctx.receive("never", timeout=0)
        with pytest.raises(ValueError, match="timeout"):
            await ctx.receive("never", timeout=-1)
        return [(one.seq, one.name, one.payload) for one in await ctx.inbox()], len(await ctx.inbox("b"))

    handle = await listener.enqueue()
    await handle.send("a", 1)
    await handle.send("b", 2)
    await app.drain()
    assert await handle.result() == [[[1, "a", 1], [2, "b", 2]], 1]


async def test_a_message_to_a_topic_is_received_by_all_jobs_that_wait_for_it(app: StoreApp, clock: ManualClock) -> None:
    @app.task
    async def watcher(ctx: interlock.Context) -> list[Any]:
        first = await ctx.receive(topic="news", schema=int)
        with pytest.raises(TimeoutError, match="topic 'news'"):
            await ctx.receive(topic="news", timeout=0)
        with pytest.raises(TypeError, match="exactly one"):
            await ctx.receive("news", topic="news")
        return [first, await ctx.receive("news"), await ctx.receive(topic="other")]

    handles = await watcher.enqueue_many([{}, {}])
    await app.drain()
    job = await app.jobs.get(handles[0].id)
    assert (job.awaiting_message, job.location(interlock.sdk.values.time_of(clock.now))) == (
        {"topic": "news", "after": 0}, "blocked",
    )  # fmt: skip
    assert (await app.publish("news", 1, id="a")) == interlock.Published(id="a", delivered=2)
    assert (await app.publish("news", 1, id="a")).delivered == 2
    await app.publish("other", "kept", retain=60)
    with pytest.raises(interlock.errors.TopicConflict):
        await app.publish("news", 2, id="a")
    await app.drain()
    assert (await app.jobs.why(handles[0].id)).code == "waiting_for_message"
    for handle in handles:
        await handle.send("news", 2)
    await app.drain()
    assert [await handle.result() for handle in handles] == [[1, 2, "kept"]] * 2
    found = await app.jobs.messages(handles[0].id)
    assert [(one.name, one.topic) for one in found] == [(None, "news"), ("news", None), (None, "other")]
