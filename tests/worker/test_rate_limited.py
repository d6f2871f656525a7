"""RateLimited: a task holds a limit for all workers, and its job is released."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.domain.timestamps import EPOCH
from interlock.wire.limits import LimitRequest
from tests.support.apps import StoreApp
from tests.support.stores import SECOND, ManualClock


async def test_a_hold_stops_other_jobs_and_counts_neither_attempt_nor_release(
    app: StoreApp, clock: ManualClock
) -> None:
    client, runs = await app._client(), 0
    await client.limits.set("provider", LimitRequest(concurrency=1, keyed=True))
    until = EPOCH + timedelta(microseconds=clock.now + 60 * SECOND)

    @app.task(max_attempts=1, limits=[{"name": "provider", "key": "{customer}"}])
    async def call(customer: str) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise interlock.RateLimited("provider", until=until, reason="429")
        return runs

    first = await call.enqueue("acme")
    await app.drain()
    other = await call.enqueue("acme")
    await app.drain()
    assert runs == 1
    (held,) = await client.limits.keys("provider")
    assert (held.key, held.held_until, held.hold_reason) == ("acme", clock.now + 60 * SECOND, "429")
    clock.advance(60)
    await app.drain()
    for id in (first.id, other.id):
        job = await app.job(id)
        assert (job.status, job.attempt, job.releases) == (Status.SUCCEEDED, 1, 0)


async def test_a_job_that_does_not_name_the_limit_waits_alone(app: StoreApp, clock: ManualClock) -> None:
    await (await app._client()).limits.set("other", LimitRequest(concurrency=1))

    @app.task(limits=["other"])
    async def call() -> None:
        raise interlock.RateLimited("nothing", delay=timedelta(minutes=1))

    handle = await call.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.run_at, job.releases) == (Status.QUEUED, clock.now + 60 * SECOND, 0)


@pytest.mark.parametrize("days", [-1, 400])
async def test_a_reset_that_no_hold_allows_is_brought_within_one(app: StoreApp, clock: ManualClock, days: int) -> None:
    """A provider may name a time that has passed, or one far ahead."""
    client, runs = await app._client(), 0
    await client.limits.set("provider", LimitRequest(concurrency=1))
    until = EPOCH + timedelta(microseconds=clock.now) + timedelta(days=days)

    @app.task(max_attempts=1, limits=["provider"])
    async def call() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise interlock.RateLimited("provider", until=until)

    handle = await call.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (runs, job.status, job.attempt, job.releases) == (1, Status.QUEUED, 1, 0)
    clock.advance(2 if days < 0 else 30 * 86_400 - 60)
    await app.drain()
    assert runs == (2 if days < 0 else 1)
    clock.advance(120)
    await app.drain()
    assert (runs, (await app.job(handle.id)).status) == (2, Status.SUCCEEDED)


def test_a_hold_needs_one_time() -> None:
    with pytest.raises(ValueError, match="expected one of them"):
        interlock.RateLimited("provider")
    with pytest.raises(ValueError, match="UTC offset"):
        interlock.RateLimited("provider", until=datetime.now())
    assert interlock.RateLimited("provider", until=datetime.now(UTC)).limit == "provider"


def test_a_release_has_at_most_one_time() -> None:
    with pytest.raises(ValueError, match="run_at and delay are both set"):
        interlock.Release(run_at=datetime.now(UTC), delay=1)
    with pytest.raises(ValueError, match=r"run_at is .*UTC offset"):
        interlock.Release(run_at=datetime.now())
