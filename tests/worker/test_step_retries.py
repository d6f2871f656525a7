"""Retries and timeouts of steps, inside one run."""

from __future__ import annotations

import asyncio
import threading

import pytest

import interlock
from tests.support.apps import StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually

SOON = interlock.Backoff("fixed", base=0)
LATE = interlock.Backoff("fixed", base=3600, max=3600)


async def test_a_step_is_retried_inside_the_run(app: StoreApp) -> None:
    calls: list[int] = []

    async def flaky(word: str) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("not yet")
        return word

    @app.task
    async def work(ctx: interlock.Context) -> str:
        return await ctx.step("fetch", flaky, "tide", retry=SOON, attempts=3)

    handle = await work.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "tide"
    assert (len(calls), (await handle.refresh()).attempt) == (3, 1)
    assert [event.payload["attempt"] for event in await handle.events()] == [1, 2]


async def test_a_step_that_gives_up_uses_an_attempt_of_the_job(app: StoreApp) -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise OSError("never")

    @app.task(max_attempts=1)
    def work(ctx: interlock.Context) -> None:
        ctx.step_sync("fetch", broken, retry=SOON, attempts=2)

    handle = await work.enqueue()
    await app.drain()
    job = await handle.refresh()
    assert (len(calls), job.status, (job.error or {})["kind"]) == (2, "dead_letter", "OSError")


async def test_a_permanent_failure_is_not_retried(app: StoreApp) -> None:
    calls: list[int] = []

    async def refuse() -> None:
        calls.append(1)
        raise interlock.Fail("closed")

    @app.task
    async def work(ctx: interlock.Context) -> None:
        await ctx.step("fetch", refuse, retry=SOON, attempts=5)

    handle = await work.enqueue()
    await app.drain()
    assert (len(calls), (await handle.refresh()).status) == (1, "failed")


async def test_a_step_exceeds_its_timeout(app: StoreApp) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    @app.task
    async def work(ctx: interlock.Context) -> str:
        with pytest.raises(TimeoutError, match="step 'fetch' exceeded its timeout"):
            await ctx.step("fetch", forever, timeout=0.01)
        return "next"

    handle = await work.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "next"


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_cancel_interrupts_the_wait_for_the_next_attempt(app: StoreApp, is_async: bool) -> None:
    failed = threading.Event()

    def broken() -> None:
        failed.set()
        raise OSError

    async def waits(ctx: interlock.Context) -> None:
        await ctx.step("fetch", broken, retry=LATE, attempts=2)

    def blocks(ctx: interlock.Context) -> None:
        ctx.step_sync("fetch", broken, retry=LATE, attempts=2)

    task = app.task(name="work")(waits if is_async else blocks)
    handle = await task.enqueue()
    async with app.working():

        async def has_failed() -> bool:
            return failed.is_set()

        await eventually(has_failed)
        await handle.cancel()
        await app.until(handle.id, "cancelled")


@pytest.mark.parametrize(
    "options", [{"retry": SOON}, {"retry": 3, "attempts": 2}, {"attempts": 0}, {"attempts": "2"}, {"timeout": 0}]
)
async def test_invalid_options_of_a_step_are_rejected(app: StoreApp, options: dict[str, object]) -> None:
    @app.task
    async def work(ctx: interlock.Context) -> str:
        with pytest.raises((TypeError, ValueError), match=f"{next(iter(options))} "):
            await ctx.step("fetch", str.upper, "a", **options)
        return "rejected"

    handle = await work.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "rejected"
