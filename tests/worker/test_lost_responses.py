"""Lost responses: a leased job is neither forgotten nor run twice, and a finish counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from interlock.client.local import LocalWork
from interlock.client.port import Client, LeasedJob
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import Finish
from interlock.domain.job import Receipt, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.errors import Indeterminate, Unauthenticated
from interlock.sdk.context import MAX_UPLOADS, Context
from interlock.sdk.exceptions import JobFailed
from interlock.sdk.handle import JobHandle
from interlock.storage.contract import Store
from tests.support.apps import TENANT, BorrowedStoreClient, StoreApp


class LossyWork(LocalWork):
    """Does everything it is asked, but loses the answer of the first claims and reports."""

    claims_to_lose = 0
    reports_to_lose = 0
    attaches_to_lose = 0
    hangs = False
    trouble: Exception | None = None  # raised for the repeated call

    def __init__(self, engine: Engine, who: Principal) -> None:
        super().__init__(engine, who)
        self.lost = asyncio.Event()
        self.reports: list[int] = []
        self._finishes, self.finishes = self.finishes, self._lossy_finishes

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        if self.trouble is not None and self.lost.is_set():
            trouble = self.trouble
            if isinstance(trouble, OSError):
                self.trouble = None
            raise trouble
        leases = await super().claim(ask, wait_seconds=wait_seconds)
        if leases and self.claims_to_lose:
            self.claims_to_lose -= 1
            self.lost.set()
            if self.hangs:
                await asyncio.Event().wait()
            raise Indeterminate("the connection broke")
        return leases

    async def _lossy_finishes(self, orders: Sequence[Finish]) -> list[Receipt | Rejected]:
        self.reports.append(len(orders))
        answers = await self._finishes(orders)
        if self.reports_to_lose:
            self.reports_to_lose -= 1
            raise Indeterminate("the connection broke")
        return answers

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        if self.attaches_to_lose:
            self.attaches_to_lose -= 1
            raise Indeterminate("the connection broke")
        return "attached"


class Lossy(BorrowedStoreClient):
    """A client whose answers get lost."""

    def __init__(self, engine: Engine, who: Principal) -> None:
        super().__init__(engine, who)
        self.work = self.lossy = LossyWork(engine, who)


@pytest.fixture
def client(store: Store) -> Lossy:
    return Lossy(StoreApp(store).engine, local(TENANT))


@pytest.fixture
def app(store: Store, client: Lossy) -> StoreApp:
    async def connect() -> Client:
        return client

    made = StoreApp(store)
    made._connect_by(connect)
    return made


async def test_a_claim_whose_response_was_lost_is_repeated_and_runs_once(app: StoreApp, client: Lossy) -> None:
    runs = []

    @app.task
    async def count(n: int) -> None:
        runs.append(n)

    client.lossy.claims_to_lose = 3
    handles = await count.enqueue_many([{"n": n} for n in range(5)])
    await app.drain(concurrency=5)
    assert sorted(runs) == [0, 1, 2, 3, 4]
    for handle in handles:
        assert [row.verb for row in await handle.history()] == [Verb.ENQUEUE, Verb.CLAIM, Verb.COMPLETE]


async def test_runs_that_end_in_turns_of_the_event_loop_after_each_other_are_reported_together(
    app: StoreApp, client: Lossy
) -> None:
    @app.task
    async def count(n: int) -> None: ...

    await count.enqueue_many([{"n": n} for n in range(20)])
    await app.worker(concurrency=5, prefetch=15).run(drain=True)
    assert client.lossy.reports == [20]


async def test_a_worker_stopped_while_it_waits_for_a_claim_releases_its_jobs(app: StoreApp, client: Lossy) -> None:
    @app.task
    async def never() -> None:
        raise AssertionError("no heartbeat arrived")

    client.lossy.claims_to_lose, client.lossy.hangs = 1, True
    handle = await never.enqueue()
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await client.lossy.lost.wait()
    other = await never.enqueue()
    worker.stop()
    assert await running == 0
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 1)
    assert (await app.job(other.id)).version == 1


@pytest.mark.parametrize("trouble", [OSError("a driver's own"), Unauthenticated()], ids=["odd", "hopeless"])
async def test_a_worker_that_cannot_recover_a_claim_still_releases_all_other_leases(
    app: StoreApp, client: Lossy, trouble: Exception
) -> None:
    started = asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        await asyncio.Event().wait()

    held = await long.enqueue()
    worker = app.worker(concurrency=2, shutdown_grace=0)
    running = asyncio.create_task(worker.run())
    await started.wait()
    client.lossy.claims_to_lose, client.lossy.hangs, client.lossy.trouble = 1, True, trouble
    lost = await long.enqueue()
    await client.lossy.lost.wait()
    worker.stop()
    assert await running == 1
    jobs = [await app.job(handle.id) for handle in (held, lost)]
    assert [(job.status, job.attempt) for job in jobs] == [
        (Status.QUEUED, 1),
        (Status.QUEUED if isinstance(trouble, OSError) else Status.RUNNING, 1),
    ]


async def test_a_finish_whose_response_was_lost_is_repeated_and_counts_once(app: StoreApp, client: Lossy) -> None:
    @app.task
    async def good() -> int:
        return 1

    @app.task
    async def bad() -> None:
        raise OSError

    client.lossy.reports_to_lose = 3
    handles: list[JobHandle[Any]] = [await good.enqueue(), await bad.enqueue()]
    assert await app.drain() == 2
    jobs = [await app.job(handle.id) for handle in handles]
    assert [(job.status, job.attempt, job.version) for job in jobs] == [
        (Status.SUCCEEDED, 1, 3),
        (Status.RETRY, 2, 3),
    ]


async def test_a_file_is_sent_again_when_its_response_is_lost_but_not_forever(app: StoreApp, client: Lossy) -> None:
    @app.task(max_attempts=1)
    async def report(ctx: Context) -> str:
        return await ctx.attach("report", b"large")

    client.lossy.attaches_to_lose = MAX_UPLOADS - 1
    heard = await report.enqueue()
    await app.drain()
    assert await heard.result(timeout=0) == "attached"
    client.lossy.attaches_to_lose = MAX_UPLOADS * 2
    unheard = await report.enqueue()
    await app.drain()
    with pytest.raises(JobFailed, match="the connection broke"):
        await unheard.result(timeout=0)
    assert client.lossy.attaches_to_lose == MAX_UPLOADS
