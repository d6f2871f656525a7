"""The context of the running task, without a parameter for it."""

from __future__ import annotations

import asyncio

import pytest

import interlock
from tests.support.apps import StoreApp
from tests.support.eventually import RETRY_SECONDS


def here() -> str:
    return interlock.current().id


async def test_it_is_the_same_context_in_steps_threads_and_asyncio_tasks(app: StoreApp) -> None:
    async def deep() -> str:
        await asyncio.sleep(0)
        return here()

    @app.task
    async def asynchronous(ctx: interlock.Context) -> bool:
        found = [
            here(),
            await deep(),
            await asyncio.create_task(deep()),
            await asyncio.to_thread(here),
            await ctx.step("in a thread", here),
            await ctx.step("on the loop", deep),
        ]
        return interlock.current() is ctx and set(found) == {ctx.id}

    @app.task
    def blocking(ctx: interlock.Context) -> bool:
        return {here(), ctx.step_sync("in a thread", here), ctx.step_sync("on the loop", deep)} == {ctx.id}

    handles = [await asynchronous.enqueue(), await blocking.enqueue()]
    await app.drain()
    assert [await handle.result(timeout=RETRY_SECONDS) for handle in handles] == [True, True]


async def test_a_task_without_a_context_parameter_has_one_when_it_asks(app: StoreApp) -> None:
    async def search() -> int:
        return 3

    @app.task
    async def plain() -> int:
        ctx = interlock.current()
        ctx.event("searching")
        ctx.usage(tokens=5)
        return await ctx.step("search", search)

    handle = await plain.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == 3
    assert [event.message for event in await handle.events()] == ["searching"]
    assert (await app.job(handle.id)).usage == '{"tokens":5}'


async def test_each_of_many_concurrent_runs_has_its_own(app: StoreApp) -> None:
    @app.task
    async def own() -> str:
        before = here()
        await asyncio.sleep(0)
        assert before == here()
        return before

    handles = await own.enqueue_many([{}] * 20)
    await app.drain()
    assert [await handle.result(timeout=RETRY_SECONDS) for handle in handles] == [handle.id for handle in handles]


def test_outside_of_a_task_the_error_says_where_it_works() -> None:
    with pytest.raises(RuntimeError, match="works in a task"):
        interlock.current()
