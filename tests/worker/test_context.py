"""What a task can do through its context, over several runs of its job."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import interlock
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.progress import Level
from interlock.sdk.values import time_of
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock

NOW = {"kind": "fixed", "base_seconds": 0}


@dataclass
class Page:
    title: str
    words: int


async def again(app: StoreApp, clock: ManualClock) -> None:
    """The next attempt."""
    clock.advance(1)
    await app.drain()


async def test_a_step_runs_once_over_any_number_of_runs(app: StoreApp, clock: ManualClock) -> None:
    searched = []

    async def search(topic: str) -> list[Page]:
        searched.append(topic)
        return [Page(topic, 7)]

    @app.task(backoff=NOW)
    async def research(ctx: interlock.Context, topic: str) -> str:
        (page,) = await ctx.step("search", search, topic)
        if ctx.attempt == 1:
            raise RuntimeError("after the step")
        assert isinstance(page, Page)
        return page.title

    handle = await research.enqueue(topic="tides")
    await app.drain()
    await again(app, clock)
    assert await handle.result(timeout=RETRY_SECONDS) == "tides"
    assert searched == ["tides"]


async def test_steps_of_one_name_are_distinguished_by_their_order(app: StoreApp, clock: ManualClock) -> None:
    calls = []

    def double(n: int) -> int:
        calls.append((n, threading.current_thread() is threading.main_thread()))
        return 2 * n

    @app.task(backoff=NOW)
    async def series(ctx: interlock.Context) -> list[int]:
        found = [await ctx.step("double", double, n) for n in range(3)]
        if ctx.attempt == 1:
            raise RuntimeError
        return [*found, await ctx.step("double", double, 21)]

    handle = await series.enqueue()
    await app.drain()
    await again(app, clock)
    assert await handle.result(timeout=RETRY_SECONDS) == [0, 2, 4, 42]
    assert calls == [(0, False), (1, False), (2, False), (21, False)]


async def test_a_step_returns_the_same_value_in_its_first_run_as_in_later_ones(app: StoreApp) -> None:
    @app.task
    async def shape(ctx: interlock.Context) -> bool:
        return bool(await ctx.step("pair", lambda: (1, 2)) == [1, 2])  # type: ignore[comparison-overlap]

    handle = await shape.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) is True


async def test_a_value_declared_as_a_type_that_json_cannot_decode_is_returned_as_plain_json(app: StoreApp) -> None:
    def split(text: str) -> Iterable[str]:
        return text.split()

    @app.task
    async def words(ctx: interlock.Context, text: str) -> Iterable[str]:
        return await ctx.step("split", split, text)

    handle = await words.enqueue("a tide")
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["a", "tide"]


async def test_a_failed_step_is_not_saved(app: StoreApp, clock: ManualClock) -> None:
    tries = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no route")
        return 5

    @app.task(backoff=NOW)
    async def careful(ctx: interlock.Context) -> int:
        value: int = await ctx.step("flaky", flaky)
        return value

    handle = await careful.enqueue()
    await app.drain()
    await again(app, clock)
    assert await handle.result(timeout=RETRY_SECONDS) == 5


async def test_a_checkpoint_is_read_by_the_next_run(app: StoreApp, clock: ManualClock) -> None:
    @app.task(backoff=NOW, max_attempts=10)
    async def crawl(ctx: interlock.Context) -> int:
        page = (ctx.checkpoint or {"page": 0})["page"] + 1
        await ctx.save_checkpoint({"page": page})
        await ctx.save_checkpoint({"page": page})
        if page < 3:
            raise RuntimeError
        return int(page)

    handle = await crawl.enqueue()
    await app.drain()
    await again(app, clock)
    await again(app, clock)
    assert await handle.result(timeout=RETRY_SECONDS) == 3
    assert (await app.job(handle.id)).checkpoint_seq == 6


async def test_events_are_sent_with_the_next_heartbeat_while_the_task_runs(app: StoreApp) -> None:
    go_on = threading.Event()

    @app.task
    def slow(ctx: interlock.Context) -> None:
        ctx.event("drafting", progress=0.5)
        ctx.event("odd page", level="warn")
        go_on.wait(RETRY_SECONDS)

    handle = await slow.enqueue()
    async with app.working():

        async def reported() -> bool:
            return len(await handle.events()) == 2

        await eventually(reported)
        assert (await app.job(handle.id)).status == Status.RUNNING
        go_on.set()
        await handle.result(timeout=RETRY_SECONDS)
    first, second = await handle.events()
    assert (first.message, first.level, first.payload) == ("drafting", Level.INFO, {"progress": 0.5})
    assert (second.message, second.level, second.payload) == ("odd page", Level.WARN, None)


async def test_an_event_emitted_at_the_very_end_of_a_task_is_not_lost(app: StoreApp) -> None:
    @app.task
    async def quick(ctx: interlock.Context, n: int) -> None:
        ctx.progress(1, "all done")
        if n == 1:
            raise interlock.Fail("but")

    handles = await quick.enqueue_many([{"n": 0}, {"n": 1}])
    await app.drain(heartbeat_interval=20)
    for handle in handles:
        assert [event.message for event in await handle.events()] == ["all done"]
        assert [event.message async for event in handle.tail()] == ["all done"]


async def test_a_message_sent_before_a_step_is_ordered_before_it(app: StoreApp, clock: ManualClock) -> None:
    """Events are sent together at the end of the run; each has the time at which the task recorded it."""

    @app.task
    async def talks(ctx: interlock.Context) -> None:
        ctx.event("before")
        clock.advance(25)
        await ctx.step("work", str)
        ctx.event("after")
        clock.advance(25)

    handle = await talks.enqueue()
    await app.drain(heartbeat_interval=20)  # later than the run takes
    before, after = await handle.events()
    (step,) = await app.engine.progress.steps(TENANT, handle.id)
    now = time_of(clock.now)
    assert before.at < time_of(step.at) <= after.at <= now
    assert before.received_at == after.received_at == now


async def test_a_blank_message_fails_where_it_is_emitted(app: StoreApp) -> None:
    @app.task(max_attempts=1)
    async def silent(ctx: interlock.Context) -> None:
        ctx.event(TimeoutError())  # type: ignore[arg-type]
        ctx.event(" ")

    handle = await silent.enqueue()
    await app.drain()
    assert "expected text that people can read" in ((await app.job(handle.id)).error or "")
    assert [event.message for event in await handle.events()] == ["TimeoutError"]


async def test_an_event_is_emitted_once_per_attempt_over_any_number_of_runs(app: StoreApp, clock: ManualClock) -> None:
    @app.task
    async def child() -> None: ...

    @app.task(backoff=NOW)
    async def parent(ctx: interlock.Context) -> None:
        ctx.event("begins", attempt=ctx.attempt)
        ctx.event("page")
        ctx.event("page")
        await (await ctx.enqueue(child)).result()
        ctx.event("goes on")
        if ctx.attempt == 1:
            raise RuntimeError

    handle = await parent.enqueue()
    await app.drain()
    reported = [event.message for event in await handle.events()]
    assert reported == ["begins", "page", "page", "goes on"]
    await again(app, clock)
    assert [event.message for event in await handle.events()] == [*reported, *reported]


async def test_an_event_with_any_payload_is_emitted(app: StoreApp) -> None:
    @app.task
    async def odd(ctx: interlock.Context) -> None:
        ctx.event("thing", thing=Store)
        ctx.event("large", text="x" * 10_000)
        ctx.event("long " * 10_000)
        ctx.event("half a pair", text="\ud800")

    handle = await odd.enqueue()
    await app.drain()
    thing, large, long, half = await handle.events()
    assert "Store" in thing.payload["thing"]
    assert large.payload == {"left_out": "10011 characters of text"}
    assert long.message.startswith("long long ")
    assert (half.payload, half.sanitized) == ({"text": "\ufffd"}, True)


async def test_a_file_and_a_link_are_attached_to_the_job(store: Store, tmp_path: Path) -> None:
    app = StoreApp(store, FileObjects(tmp_path / "artifacts"))

    @app.task
    async def report(ctx: interlock.Context) -> list[str]:
        return [await ctx.attach("report.md", "# Tides"), await ctx.link("source", "https://example.com/tides")]

    handle = await report.enqueue()
    await app.drain()
    ids = await handle.result(timeout=RETRY_SECONDS)
    artifacts = await app.engine.artifacts.list(TENANT, handle.id)
    assert {artifact.id: (artifact.name, artifact.url) for artifact in artifacts} == {
        ids[0]: ("report.md", None),
        ids[1]: ("source", "https://example.com/tides"),
    }
    assert next(a.size for a in artifacts if a.id == ids[0]) == len("# Tides")


async def test_a_worker_with_one_slot_runs_a_parent_that_awaits_ten_children(app: StoreApp) -> None:
    ran: list[str] = []

    @app.task
    async def child(n: int) -> int:
        ran.append("child")
        return n * n

    @app.task
    async def parent(ctx: interlock.Context) -> int:
        ran.append("parent")
        children = await ctx.enqueue_many(child, [{"n": n} for n in range(10)])
        return sum(await ctx.results(children))

    handle = await parent.enqueue()
    await app.drain(concurrency=1)
    assert await handle.result(timeout=RETRY_SECONDS) == 285
    assert ran == ["parent", *["child"] * 10, "parent"]
    job = await app.job(handle.id)
    assert (job.attempt, job.releases) == (1, 0)
    created = await (await app._client()).jobs.children(handle.id)
    assert [(one.type, one.parent_id) for one in created] == [("child", handle.id)] * 10


async def test_more_children_than_a_release_may_name_are_awaited_in_batches(
    app: StoreApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.worker.executor.MAX_CHILDREN", 4)
    waits: list[int] = []

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: interlock.Context) -> int:
        waits.append(len(await (await app._client()).jobs.children(ctx.id)))
        return sum(await ctx.results(await ctx.enqueue_many(child, [{"n": n} for n in range(10)])))

    handle = await parent.enqueue()
    await app.drain(concurrency=1)
    assert await handle.result(timeout=RETRY_SECONDS) == 45
    assert waits[0] == 0
    assert set(waits[1:]) == {10}
    assert (await app.job(handle.id)).attempt == 1


async def test_children_are_awaited_one_after_another_and_never_created_twice(app: StoreApp) -> None:
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    async def chain(ctx: interlock.Context) -> int:
        total = 0
        for _ in range(3):
            one = await ctx.enqueue(child, total)
            total = await one.result()
        return total

    handle = await chain.enqueue()
    await app.drain(concurrency=1)
    assert await handle.result(timeout=RETRY_SECONDS) == 3
    assert len(await (await app._client()).jobs.children(handle.id)) == 3


async def test_a_parent_gets_the_failure_of_a_child(app: StoreApp) -> None:
    @app.task
    async def child() -> None:
        raise interlock.Fail("no")

    @app.task
    async def parent(ctx: interlock.Context) -> str:
        try:
            await (await ctx.enqueue(child)).result()
        except interlock.JobFailed as failed:
            return str(failed.error["message"])
        return "?"

    handle = await parent.enqueue()
    await app.drain(concurrency=1)
    assert await handle.result(timeout=RETRY_SECONDS) == "no"


async def test_a_synchronous_task_uses_the_sync_methods_of_its_context(app: StoreApp, clock: ManualClock) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task(backoff=NOW)
    def blocking_task(ctx: interlock.Context) -> list[int]:
        assert threading.current_thread() is not threading.main_thread()
        ten = ctx.step_sync("ten", lambda: 10)
        ctx.save_checkpoint_sync({"ten": ten})
        if ctx.attempt == 1:
            raise RuntimeError
        children = ctx.enqueue_many_sync(child, [{"n": 1}, {"n": 2}])
        return [ten, *ctx.results_sync(children), ctx.enqueue_sync(child, 3).result_sync()]

    handle = await blocking_task.enqueue()
    await app.drain()
    await again(app, clock)
    assert await handle.result(timeout=RETRY_SECONDS) == [10, 1, 2, 3]
    verbs = [row.verb for row in await handle.history()]
    assert verbs.count(Verb.RELEASE) == 2
