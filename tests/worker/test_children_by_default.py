"""A job that a running task enqueues is a child of its job, unless it is detached."""

from __future__ import annotations

import asyncio
from typing import Any

import interlock
from interlock.domain.job import Job
from tests.support.apps import StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock

SOON = interlock.Backoff("fixed", base=0)


async def children(app: StoreApp, handle: interlock.JobHandle[Any]) -> list[Job]:
    return await (await app._client()).jobs.children(handle.id)


async def test_a_job_enqueued_by_a_running_task_is_its_child_and_is_found_again(app: StoreApp) -> None:
    runs: list[int] = []

    @app.task
    async def count(word: str) -> int:
        return len(word)

    @app.task
    async def total() -> int:
        runs.append(1)
        one = await count.enqueue("tide")
        several = await count.enqueue_many([{"word": "a"}, {"word": "bc"}])
        if len(runs) == 1:
            raise interlock.Release(reason="so that a second run follows, also if the children end first")
        return sum(await interlock.current().results([one, *several]))

    handle = await total.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == 7
    assert len(runs) > 1
    assert len(await children(app, handle)) == 3
    assert (await handle.refresh()).parent_id is None


async def test_a_synchronous_task_and_another_event_loop_create_children_too(app: StoreApp) -> None:
    @app.task
    async def leaf(name: str) -> str:
        return name

    @app.task
    def blocking() -> list[str]:
        first = leaf.enqueue_sync(name="sync")

        async def elsewhere() -> interlock.JobHandle[str]:
            return await leaf.enqueue(name="loop")

        second = asyncio.run(elsewhere())
        return interlock.current().results_sync([first, second])

    handle = await blocking.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["sync", "loop"]
    assert len(await children(app, handle)) == 2


async def test_a_detached_job_has_no_parent(app: StoreApp) -> None:
    @app.task
    async def leaf(n: int) -> int:
        return n

    @app.task
    async def work() -> list[str]:
        one = await leaf.enqueue_detached(1)
        several = await leaf.enqueue_many_detached([{"n": 2}])
        return [one.id, *(handle.id for handle in several)]

    handle = await work.enqueue()
    await app.drain()
    ids = await handle.result(timeout=RETRY_SECONDS)
    assert [(await app.job(id)).parent_id for id in ids] == [None, None]
    assert await children(app, handle) == []


async def test_a_task_of_another_app_and_one_with_a_parent_keep_theirs(app: StoreApp) -> None:
    other = StoreApp(app.store)

    @other.task
    async def foreign() -> None: ...

    @app.task
    async def leaf() -> None: ...

    @app.task
    async def work(chosen: str) -> list[str]:
        return [(await foreign.enqueue()).id, (await leaf.options(parent_id=chosen).enqueue()).id]

    chosen = await leaf.options(delay=60).enqueue()
    handle = await work.enqueue(chosen.id)
    await app.drain()
    ids = await handle.result(timeout=RETRY_SECONDS)
    assert [(await app.job(id)).parent_id for id in ids] == [None, chosen.id]
    await other.close()


async def test_children_of_a_step_are_numbered_by_the_step(app: StoreApp, clock: ManualClock) -> None:
    """A saved step does not run again, so its children must not shift the numbers of later ones."""

    @app.task
    async def leaf(name: str) -> str:
        return name

    async def fan_out(name: str) -> str:
        return (await leaf.enqueue(name=name)).id

    def fan_out_in_a_thread(name: str) -> str:
        return leaf.enqueue_sync(name=name).id

    @app.task
    async def work(ctx: interlock.Context) -> list[str]:
        await ctx.step("search", fan_out, "a")
        await ctx.step("search", fan_out_in_a_thread, "b")
        last = await leaf.enqueue(name="c")
        await ctx.sleep(60)
        return await ctx.results([last])

    handle = await work.enqueue()
    await app.drain()
    clock.advance(61)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["c"]
    found = [await app.job(one.id) for one in await children(app, handle)]
    assert sorted(one.result or "" for one in found) == ['"a"', '"b"', '"c"']


async def test_a_repeated_step_finds_its_children(app: StoreApp, clock: ManualClock) -> None:
    attempts: list[str] = []

    @app.task
    async def leaf(name: str) -> str:
        return name

    async def fan_out(name: str) -> list[str]:
        ctx = interlock.current()
        one, named = await leaf.enqueue(name=name), await ctx.enqueue_many(leaf, [{"name": "x"}], name="a/1")
        attempts.append(one.id)
        if len(attempts) < 4:
            raise OSError
        return [one.id, named[0].id]

    @app.task
    async def work(ctx: interlock.Context) -> list[str]:
        await leaf.enqueue(name="before")
        return await ctx.step("search", fan_out, "a", attempts=2, retry=SOON)

    handle = await work.enqueue()
    await app.drain()
    clock.advance(3600)
    await app.drain()
    ids = await handle.result(timeout=RETRY_SECONDS)
    assert attempts == [ids[0]] * 4
    assert len(await children(app, handle)) == 3
