"""Hooks and lifespans of an app."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import interlock
from interlock.testing import MemoryApp
from tests.support.apps import StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock


class Database:
    is_open = True


async def test_a_worker_enters_lifespans_before_the_first_run_and_leaves_them_after_the_last(app: StoreApp) -> None:
    calls: list[str] = []

    @app.lifespan
    async def database() -> AsyncIterator[Database]:
        calls.append("enter")
        opened = Database()
        yield opened
        opened.is_open = False
        calls.append("leave")

    @app.lifespan
    @asynccontextmanager
    async def text() -> AsyncIterator[str]:
        yield "tide"

    @app.on_start
    async def start() -> None:
        calls.append("start")

    @app.on_stop
    def stop() -> None:
        assert threading.current_thread() is not threading.main_thread()
        calls.append("stop")

    @app.task
    async def work(ctx: interlock.Context) -> str:
        calls.append("run")
        assert ctx.dependency(Database).is_open
        with pytest.raises(LookupError, match=r"no lifespan yields a float: declare one with @app\.lifespan"):
            ctx.dependency(float)
        return ctx.dependency(str)

    handle = await work.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "tide"
    assert calls == ["enter", "start", "run", "stop", "leave"]


async def test_a_worker_whose_start_fails_runs_nothing_and_closes_what_is_open(app: StoreApp) -> None:
    calls: list[str] = []

    @app.lifespan
    async def database() -> AsyncIterator[None]:
        try:
            yield
        finally:
            calls.append("leave")

    @app.on_start
    def start() -> None:
        raise OSError("no license server")

    @app.on_stop
    def stop() -> None:
        calls.append("stop")

    @app.task
    async def work() -> None: ...

    handle = await work.enqueue()
    with pytest.raises(OSError, match="no license server"):
        await app.drain()
    assert calls == ["leave"]
    assert (await handle.refresh()).status == "queued"


async def test_a_stop_interrupts_the_start(app: StoreApp) -> None:
    entered = asyncio.Event()

    @app.lifespan
    async def database() -> AsyncIterator[None]:
        entered.set()
        await asyncio.Event().wait()
        yield

    @app.task
    async def work() -> None: ...

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await entered.wait()
    worker.stop()
    assert await running == 0


async def test_errors_at_the_stop_are_logged_and_change_nothing(
    app: StoreApp, caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def database() -> AsyncIterator[None]:
        yield
        raise OSError("leaving")

    @app.on_stop
    async def stop() -> None:
        raise OSError("stopping")

    @app.task
    async def work() -> None: ...

    handle = await work.enqueue()
    assert await app.drain() == 1
    assert (await handle.refresh()).status == "succeeded"
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [
        "hook failed",
        "lifespan failed to close",
    ]


async def test_hooks_are_called_around_each_run(app: StoreApp, clock: ManualClock) -> None:
    calls: list[str] = []

    @app.before_run
    async def before(ctx: interlock.Context) -> None:
        calls.append(f"before {ctx.attempt}")

    @app.after_run
    def after(ctx: interlock.Context) -> None:
        ctx.usage(runs=1)
        calls.append("after")

    @app.on_failure
    async def failed(ctx: interlock.Context, error: Exception) -> None:
        calls.append(f"failed {error!r}")

    @app.task(backoff=interlock.Backoff("fixed", base=1))
    async def work(ctx: interlock.Context) -> int:
        if ctx.attempt == 1:
            raise KeyError("first")
        await ctx.sleep(60)
        return 3

    handle = await work.enqueue()
    for _ in range(3):
        await app.drain()
        clock.advance(61)
    assert await handle.result(timeout=RETRY_SECONDS) == 3
    assert calls == ["before 1", "failed KeyError('first')", "after", "before 2", "after", "before 2", "after"]
    assert (await handle.refresh()).usage == {"runs": 2}  # a resumed run repeats the usage of the run before it


@pytest.mark.parametrize(
    ("raised", "status"), [(OSError("closed"), "retry"), (interlock.Fail("closed"), "failed"), (interlock.Release(delay=9), "queued")]
)  # fmt: skip
async def test_an_exception_of_a_hook_before_the_run_counts_as_one_of_the_task(
    app: StoreApp, raised: BaseException, status: str
) -> None:
    runs: list[int] = []

    @app.before_run
    def before(ctx: interlock.Context) -> None:
        raise raised

    @app.task
    async def work() -> None:
        runs.append(1)

    handle = await work.enqueue()
    await app.drain()
    assert ((await handle.refresh()).status, runs) == (status, [])


async def test_a_hook_that_raises_after_the_run_does_not_change_its_result(app: StoreApp) -> None:
    @app.after_run
    async def after(ctx: interlock.Context) -> None:
        raise SystemExit(3)

    @app.task
    async def work() -> int:
        return 3

    handle = await work.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == 3


async def test_a_shutdown_during_a_hook_after_the_run_keeps_the_result(app: StoreApp) -> None:
    reached = asyncio.Event()

    @app.after_run
    async def after(ctx: interlock.Context) -> None:
        reached.set()
        await asyncio.Event().wait()

    @app.task
    async def work() -> int:
        return 3

    handle = await work.enqueue()
    async with app.working() as worker:
        await reached.wait()
        worker.stop(now=True)
        assert await handle.result(timeout=RETRY_SECONDS) == 3


async def test_each_way_to_fail_reaches_the_hook(app: StoreApp) -> None:
    errors: dict[str, Exception] = {}

    @app.on_failure
    def failed(ctx: interlock.Context, error: Exception) -> None:
        errors[ctx.id] = error

    @app.task(timeout=0.05)
    async def late() -> None:
        await asyncio.Event().wait()

    @app.task
    async def exits() -> None:
        raise SystemExit(3)

    @app.task
    async def returns() -> Any:
        return float("nan")

    @app.task
    async def takes(n: int) -> None: ...

    handles = [await late.enqueue(), await exits.enqueue(), await returns.enqueue()]
    handles.append(await app.jobs.enqueue("takes", {"n": "no number"}))
    async with app.working():

        async def all_failed() -> bool:
            return len(errors) == 4

        await eventually(all_failed)
    found = [errors[handle.id] for handle in handles]
    assert [type(error) for error in found] == [TimeoutError, RuntimeError, RuntimeError, interlock.errors.Invalid]
    assert isinstance(found[1].__cause__, SystemExit)


def test_an_adopted_app_brings_its_hooks() -> None:
    testing = MemoryApp()
    mine = interlock.App("sqlite:///unused.db")

    @mine.lifespan
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @mine.task
    def work() -> bool:
        return interlock.current().dependency(Database).is_open

    testing.adopt(mine)
    try:
        handle = work.enqueue_sync()
        testing.run_until_idle_sync()
        assert handle.result_sync(timeout=RETRY_SECONDS) is True
    finally:
        asyncio.run(testing.discard())


def test_a_lifespan_must_be_a_function() -> None:
    with pytest.raises(TypeError, match=r"is not a function: use @app\.lifespan"):
        interlock.App("sqlite:///unused.db").lifespan(3)  # type: ignore[type-var]
