"""What users' tests are written with."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.testing import START, MemoryApp
from tests.support.eventually import RETRY_SECONDS

pytest_plugins = ["pytester"]


async def test_jobs_run_when_the_test_asks_and_the_clock_stands_still(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    async def later() -> str:
        return "done"

    handle = await later.options(delay=3600).enqueue()
    assert await app.run_until_idle() == 0
    app.clock.advance(timedelta(minutes=59))
    assert await app.run_until_idle() == 0
    app.clock.advance(60)
    assert await app.run_until_idle() == 1
    assert await handle.result(timeout=RETRY_SECONDS) == "done"
    assert app.clock.now == START + timedelta(hours=1)


async def test_advancing_the_clock_runs_everything_to_its_end_without_waiting(interlock_app: MemoryApp) -> None:
    app = interlock_app
    attempts = []

    @app.task(max_attempts=4, backoff={"kind": "fixed", "base_seconds": 200})
    async def flaky(ctx: interlock.Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise OSError

    handle = await flaky.enqueue()
    async with asyncio.timeout(RETRY_SECONDS):  # which is less than what passes on the clock
        assert await app.run_until_idle(move_clock=True) == 4
    assert (attempts, (await handle.refresh()).status) == ([1, 2, 3, 4], Status.SUCCEEDED)
    assert app.clock.now == START + timedelta(minutes=10)


async def test_advancing_the_clock_skips_jobs_that_do_not_wait_for_time(
    interlock_app: MemoryApp,
) -> None:
    app = interlock_app

    @app.task
    async def greet() -> str:
        return "hello"

    stuck = app.job(await interlock.Queue("nobodys", app).push("what no task takes"))
    later = await greet.options(delay=60).enqueue()
    assert await app.run_until_idle(move_clock=True) == 1
    assert await later.result(timeout=RETRY_SECONDS) == "hello"
    assert (await stuck.refresh()).status == Status.QUEUED


async def test_the_clock_moves_to_the_time_limit_of_a_wait_and_not_beyond(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    async def listener(ctx: interlock.Context) -> str:
        with contextlib.suppress(TimeoutError):
            await ctx.receive("early", timeout=60)
        return await ctx.receive("note", schema=str)

    handle = await listener.enqueue()
    async with asyncio.timeout(RETRY_SECONDS):  # a wait without a time limit would never be idle
        assert await app.run_until_idle(move_clock=True) == 2
    assert app.clock.now == START + timedelta(minutes=1)
    await handle.send("note", "hello")
    assert await app.run_until_idle(move_clock=True) == 1
    assert await handle.result(timeout=RETRY_SECONDS) == "hello"


async def test_jobs_with_requirements_run_too(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task(requires=["gpu"])
    async def render() -> str:
        return "rendered"

    @app.task(affinity_key="host-1")
    async def film(ctx: interlock.Context) -> str:
        return await (await ctx.enqueue(render)).result()

    handle = await film.enqueue()
    assert await app.run_until_idle() == 3
    assert await handle.result(timeout=RETRY_SECONDS) == "rendered"


async def test_several_votes_are_from_several_approvers(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    async def publish(ctx: interlock.Context) -> bool:
        return (await ctx.approve("Publish?", required=2)).approved

    handle = await publish.enqueue()
    await app.run_until_idle()
    await app.decide(handle, by="ada")
    await app.decide(handle, by="ada")
    assert (await handle.refresh()).status == Status.WAITING_FOR_APPROVAL
    await app.decide(handle, by="bob")
    await app.run_until_idle()
    assert await handle.result(timeout=RETRY_SECONDS) is True


async def test_enqueued_jobs_can_be_asserted(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    async def mail(to: str, subject: str = "hello") -> None: ...

    @app.task
    async def other() -> None: ...

    await mail.enqueue(to="ada", subject="tides")
    await mail.enqueue(to="bob")
    assert await app.enqueued(mail) == [{"to": "ada", "subject": "tides"}, {"to": "bob"}]
    await app.assert_enqueued(mail, to="ada")
    await app.assert_not_enqueued(other)
    with pytest.raises(AssertionError, match="no job mail with"):
        await app.assert_enqueued(mail, to="eve")
    with pytest.raises(AssertionError, match="mail was enqueued with"):
        await app.assert_not_enqueued(mail)


def test_synchronous_tests_work_the_same(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    def double(n: int) -> int:
        return 2 * n

    handle = double.enqueue_sync(21)
    app.assert_enqueued_sync(double, n=21)
    assert app.run_until_idle_sync() == 1
    assert handle.result_sync(timeout=RETRY_SECONDS) == 42


async def test_an_app_under_test_is_adopted_and_released(tmp_path: Path) -> None:
    real = interlock.App(f"sqlite:///{tmp_path}/real.db")

    @real.task
    async def work() -> int:
        return 1

    memory = MemoryApp()
    memory.adopt(real)
    handle = await work.enqueue()
    assert await memory.run_until_idle() == 1
    assert await handle.result(timeout=RETRY_SECONDS) == 1
    assert not (tmp_path / "real.db").exists()
    await memory.discard()
    async with real:
        assert (await (await work.enqueue()).refresh()).status == Status.QUEUED
    assert (tmp_path / "real.db").exists()


async def test_limits_and_budgets_of_an_adopted_app_exist_when_a_test_enqueues(interlock_app: MemoryApp) -> None:
    real = interlock.App("sqlite:///unused.db")

    @real.task(limits=[real.limit("provider", concurrency=2)], budgets=[real.budget("nightly", {"usd": 20})])
    async def work() -> int:
        return 1

    await interlock_app.limits.set("provider", concurrency=9)
    interlock_app.adopt(real)
    handle = await work.enqueue()
    assert await interlock_app.run_until_idle() == 1
    assert await handle.result(timeout=RETRY_SECONDS) == 1
    assert (await interlock_app.limits.get("provider")).concurrency == 9
    assert (await interlock_app.budgets.get("nightly")).amount == {"usd": 20}


async def test_a_parent_and_its_children_run_until_idle(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: interlock.Context) -> int:
        return sum(await ctx.results([await ctx.enqueue(child, n) for n in (1, 2, 3)]))

    handle = await parent.enqueue()
    assert await app.run_until_idle() == 5
    assert await handle.result(timeout=RETRY_SECONDS) == 6


async def test_an_approval_is_decided_by_the_test(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    async def publish(ctx: interlock.Context, on_deny: Literal["fail", "resume"]) -> list[object]:
        answer = await ctx.approve("Publish?", schema={"type": "object"}, on_deny=on_deny)
        return [answer.approved, answer.comment, answer.data]

    approved, denied, refused = [await publish.enqueue(on_deny) for on_deny in ("fail", "resume", "fail")]
    with pytest.raises(AssertionError, match="has no pending approval"):
        await app.decide(approved)
    await app.run_until_idle()
    await app.decide(approved, data={"title": "Tides"})
    await app.decide(denied.id, "deny", comment="not yet")
    await app.decide(refused, "deny")
    await app.run_until_idle()
    assert await approved.result(timeout=RETRY_SECONDS) == [True, None, {"title": "Tides"}]
    assert await denied.result(timeout=RETRY_SECONDS) == [False, "not yet", None]
    with pytest.raises(interlock.JobFailed):
        await refused.result(timeout=RETRY_SECONDS)


def test_synchronous_tests_decide_too(interlock_app: MemoryApp) -> None:
    app = interlock_app

    @app.task
    def ask(ctx: interlock.Context) -> bool:
        return ctx.approve_sync("Go on?").approved

    handle = ask.enqueue_sync()
    app.run_until_idle_sync()
    app.decide_sync(handle)
    app.run_until_idle_sync()
    assert handle.result_sync(timeout=RETRY_SECONDS) is True


def test_the_plugin_is_loaded_by_its_name(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["interlock.testing"]')
    pytester.makepyfile(
        """
        def test_one(interlock_app):
            @interlock_app.task
            def one() -> int:
                return 1

            handle = one.enqueue_sync()
            assert interlock_app.run_until_idle_sync() == 1
            assert handle.result_sync() == 1
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
