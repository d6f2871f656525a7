"""Sleeps: the run ends, the job is due later, and the next run continues after the sleep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.domain.timestamps import EPOCH
from tests.support.apps import StoreApp
from tests.support.stores import SECOND, ManualClock


async def test_a_sleep_uses_no_attempt_and_counts_no_release(app: StoreApp, clock: ManualClock) -> None:
    began = clock.now

    @app.task(max_attempts=1)
    async def sleepy(ctx: interlock.Context) -> str:
        await ctx.sleep(60)
        await ctx.sleep(timedelta(minutes=2))
        return "awake"

    handle = await sleepy.enqueue()
    for end in (60, 180):
        await app.drain()
        job = await app.job(handle.id)
        assert (job.status, job.run_at, job.attempt, job.releases) == (Status.QUEUED, began + end * SECOND, 1, 0)
        assert (await handle.history())[-1].reason == "sleeping"
        clock.advance((job.run_at - clock.now) / SECOND)
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.result, job.attempt, job.releases) == (Status.SUCCEEDED, '"awake"', 1, 0)


async def test_a_repeated_run_sleeps_only_the_rest(app: StoreApp, clock: ManualClock) -> None:
    began, runs = clock.now, 0

    @app.task
    async def sleepy(ctx: interlock.Context) -> None:
        nonlocal runs
        runs += 1
        await ctx.sleep(100, name="cool down")

    handle = await sleepy.enqueue()
    await app.drain()
    clock.advance(40)
    client = await app._client()
    await client.jobs.run_now(handle.id)
    await app.drain()
    job = await app.job(handle.id)
    assert (runs, job.status, job.run_at) == (2, Status.QUEUED, began + 100 * SECOND)
    clock.advance(60)
    await app.drain()
    assert (await app.job(handle.id)).status == Status.SUCCEEDED


async def test_a_task_sleeps_until_a_time(app: StoreApp, clock: ManualClock) -> None:
    at = EPOCH + timedelta(microseconds=clock.now + 30 * SECOND)

    @app.task
    def sleepy(ctx: interlock.Context) -> None:
        ctx.sleep_until_sync(datetime(2001, 1, 1, tzinfo=UTC))
        ctx.sleep_until_sync(at)

    handle = await sleepy.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).run_at == clock.now + 30 * SECOND
    clock.advance(30)
    await app.drain()
    assert (await app.job(handle.id)).status == Status.SUCCEEDED


async def test_a_sleep_that_cannot_be_is_rejected(app: StoreApp) -> None:
    @app.task
    async def odd(ctx: interlock.Context) -> None:
        for wrong in (-1, float("nan"), timedelta(days=40_000)):
            with pytest.raises(ValueError, match="seconds"):
                await ctx.sleep(wrong)
        with pytest.raises(ValueError, match="UTC offset"):
            await ctx.sleep_until(datetime(2030, 1, 1))

    handle = await odd.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status == Status.SUCCEEDED


async def test_a_step_in_the_place_of_a_sleep_is_a_mismatch(app: StoreApp, clock: ManualClock) -> None:
    runs = 0

    @app.task(max_attempts=1)
    async def changed(ctx: interlock.Context) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await ctx.sleep(5, name="pause")
        await ctx.step("pause", lambda: 1)

    handle = await changed.enqueue()
    await app.drain()
    clock.advance(5)
    await app.drain()
    job = await app.job(handle.id)
    assert job.status != Status.SUCCEEDED
    assert "a sleep" in (job.error or "")
