"""Waiting for jobs to end, and finding out to whom a fence was granted."""

from __future__ import annotations

import asyncio

import pytest

from interlock.domain import principal
from interlock.domain.decide import CompleteJob, ReleaseJob
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.engine.completion import first_of
from interlock.engine.engine import Engine
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import JobRequest
from tests.support.eventually import RETRY_SECONDS

WHO = principal.local()
NEVER = "0193a1b2-ffff-7fff-8fff-ffffffffffff"


@pytest.fixture
def app(store: Store) -> Engine:
    return Engine(store)


async def leased(app: Engine, worker: str = "w1") -> Job:
    await app.jobs.enqueue(WHO, JobRequest(type="t"))
    (job,) = await app.leases.claim(WHO.tenant, ClaimFilter(worker))
    return job


async def test_all_waiters_are_notified_of_the_end(app: Engine) -> None:
    job = await leased(app)
    waiting = [asyncio.create_task(app.waits.ended(WHO.tenant, job.id, wait_seconds=60)) for _ in range(20)]
    await asyncio.sleep(0)
    await app.leases.complete(WHO.tenant, CompleteJob(job.id, job.fence, "w1", result="42"))
    assert {(await one).result for one in waiting} == {"42"}
    await app.waits.stop()


async def test_a_waiter_gets_the_current_job_after_its_timeout(app: Engine) -> None:
    job = await leased(app)
    enough = asyncio.Event()
    waiting = asyncio.create_task(app.waits.ended(WHO.tenant, job.id, wait_seconds=60, enough=enough))
    await asyncio.sleep(0)
    enough.set()
    assert (await waiting).status is Status.RUNNING
    assert (await app.waits.ended(WHO.tenant, job.id)).status is Status.RUNNING
    assert (await app.waits.ended(WHO.tenant, job.id, wait_seconds=0.01)).status is Status.RUNNING
    await app.waits.stop()


async def test_waiting_for_an_unknown_job_or_for_too_long_is_rejected(app: Engine) -> None:
    with pytest.raises(NotFound):
        await app.waits.ended(WHO.tenant, NEVER, wait_seconds=5)
    with pytest.raises(NotFound):
        await app.waits.ended(WHO.tenant, "nobody")
    job = await leased(app)
    with pytest.raises(NotFound):
        await app.waits.ended("somebody-else", job.id, wait_seconds=5)
    with pytest.raises(Invalid):
        await app.waits.ended(WHO.tenant, job.id, wait_seconds=61)


async def test_a_claim_asked_to_stop_waiting_looks_once_and_returns(app: Engine) -> None:
    enough, looks = asyncio.Event(), 0
    enough.set()

    async def types() -> list[frozenset[str]]:
        nonlocal looks
        looks += 1
        assert looks == 1, "the claim goes on looking for jobs"
        return [frozenset({"t"})]

    asked = app.leases.claim(WHO.tenant, ClaimFilter("w1"), wait_seconds=60, enough=enough, in_order=types)
    assert await asked == []


async def test_a_claim_asked_to_stop_while_it_waits_returns(app: Engine) -> None:
    enough = asyncio.Event()
    claim = asyncio.create_task(app.leases.claim(WHO.tenant, ClaimFilter("w1"), wait_seconds=60, enough=enough))
    await asyncio.sleep(0)
    enough.set()
    async with asyncio.timeout(RETRY_SECONDS):
        assert await claim == []


async def test_the_first_of_several_events_ends_the_wait() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    second.set()
    async with asyncio.timeout(RETRY_SECONDS):
        await first_of(first, second, None, seconds=60)
    await first_of(first, seconds=0)


async def test_a_fence_identifies_the_worker_it_was_leased_to(app: Engine) -> None:
    job = await leased(app, "w1/a")
    assert await app.holders.of(WHO.tenant, job.id, job.fence) == "w1/a"
    await app.leases.release(WHO.tenant, ReleaseJob(job.id, job.fence, "w1/a"))
    (again,) = await app.leases.claim(WHO.tenant, ClaimFilter("w2"))
    assert await app.holders.of(WHO.tenant, job.id, job.fence) == "w1/a"
    assert await app.holders.of(WHO.tenant, job.id, again.fence) == "w2"
    assert await app.holders.of(WHO.tenant, job.id, again.fence + 1) is None
    assert await app.holders.of(WHO.tenant, NEVER, 1) is None
    assert await app.holders.of("somebody-else", job.id, job.fence) is None
