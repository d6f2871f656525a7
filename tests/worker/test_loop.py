"""The worker: number of concurrent jobs, heartbeats, cancels, timeouts, and shutdown without loss."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import threading
import time

import pytest

import interlock
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.engine.engine import Engine
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.wire import Limits
from interlock.worker.loop import LEAST_STEP_THREADS
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import SECOND, ManualClock

ADA = local(TENANT)


async def test_no_more_jobs_run_concurrently_than_the_concurrency_of_the_worker(app: StoreApp) -> None:
    running, most = 0, 0

    @app.task
    async def crowd() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await crowd.enqueue_many([{}] * 40)
    assert await app.drain(concurrency=7) == 40
    assert most == 7


@pytest.mark.parametrize("prefetch", [0, 3])
async def test_exactly_the_prefetch_is_leased_beyond_the_running_jobs(app: StoreApp, prefetch: int) -> None:
    go_on = asyncio.Event()

    @app.task
    async def wait() -> None:
        await go_on.wait()

    await wait.enqueue_many([{}] * 10)
    async with app.working(concurrency=2, prefetch=prefetch):

        async def all_taken() -> bool:
            jobs = await (await app._client()).jobs.list(Filter(statuses=(Status.RUNNING,)))
            return len(jobs) == 2 + prefetch

        await eventually(all_taken)
        go_on.set()

        async def all_done() -> bool:
            jobs = await (await app._client()).jobs.list(Filter(statuses=(Status.SUCCEEDED,)))
            return len(jobs) == 10

        await eventually(all_done)


async def test_a_job_far_longer_than_its_lease_keeps_it_by_heartbeats(app: StoreApp, clock: ManualClock) -> None:
    go_on = asyncio.Event()

    @app.task
    async def long() -> str:
        await go_on.wait()
        return "done"

    handle = await long.enqueue()
    async with app.working(lease=10):
        await app.until(handle.id, Status.RUNNING)
        for _ in range(5):
            clock.advance(9)
            due = clock.now

            async def beaten(since: int = due) -> bool:
                return ((await app.job(handle.id)).lease_expires_at or 0) >= since + 10 * SECOND

            await eventually(beaten)
            assert (await app.engine.maintenance.sweep()).leases == 0
        go_on.set()
        assert await handle.result(timeout=RETRY_SECONDS) == "done"
    assert (await app.job(handle.id)).attempt == 1


async def test_a_task_may_request_a_longer_lease_than_its_worker(app: StoreApp, clock: ManualClock) -> None:
    go_on = asyncio.Event()

    @app.task(lease=600)
    async def long() -> None:
        await go_on.wait()

    handle = await long.enqueue()
    async with app.working(lease=10):

        async def extended() -> bool:
            return (await app.job(handle.id)).lease_expires_at == clock.now + 600 * SECOND

        await eventually(extended)
        go_on.set()


async def test_a_task_that_requests_too_long_a_lease_keeps_its_current_one_with_a_warning(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = StoreApp(store)
    app.engine = Engine(batched(store), Limits(lease_seconds=60.0))
    go_on = asyncio.Event()

    @app.task(lease=600)
    async def long() -> str:
        await go_on.wait()
        return "done"

    handle = await long.enqueue()
    async with app.working(lease=10):
        await app.until(handle.id, Status.RUNNING)
        clock.advance(9)

        async def extended() -> bool:
            return (await app.job(handle.id)).lease_expires_at == clock.now + 10 * SECOND

        await eventually(extended)
        go_on.set()
        assert await handle.result(timeout=RETRY_SECONDS) == "done"
    await app.close()
    assert "heartbeat rejected" in caplog.messages


async def test_a_cancel_reaches_an_async_task_with_the_next_heartbeat(app: StoreApp) -> None:
    cleaned_up = asyncio.Event()

    @app.task
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    handle = await endless.enqueue()
    async with app.working():
        await app.until(handle.id, Status.RUNNING)
        assert await handle.cancel("no longer wanted") == Status.RUNNING
        with pytest.raises(interlock.JobCancelled, match="no longer wanted"):
            await handle.result(timeout=RETRY_SECONDS)
    assert cleaned_up.is_set()
    history = await handle.history()
    assert (history[-1].verb, history[-1].actor) == (Verb.CANCEL_ACK, "worker:w1")


RARELY = {"lease": 3600.0, "heartbeat_interval": 900.0}


@pytest.mark.parametrize("force", [False, True])
async def test_a_cancel_reaches_a_run_without_waiting_for_a_heartbeat(app: StoreApp, force: bool) -> None:
    stopped = asyncio.Event()

    @app.task
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handle, other = await endless.enqueue(), await endless.enqueue()
    async with app.working(**RARELY):
        await app.until(handle.id, Status.RUNNING)
        await app.until(other.id, Status.RUNNING)
        await handle.cancel("no longer wanted", force=force)
        async with asyncio.timeout(RETRY_SECONDS):
            await stopped.wait()
        await app.until(handle.id, Status.CANCELLED)
        assert (await app.job(other.id)).status == Status.RUNNING


async def test_a_revoked_lease_stops_its_run_without_waiting_for_a_heartbeat(app: StoreApp) -> None:
    stopped = asyncio.Event()

    @app.task(max_attempts=1)
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handle = await endless.enqueue()
    async with app.working(**RARELY):
        await app.until(handle.id, Status.RUNNING)
        await app.engine.jobs.revoke(ADA, handle.id)
        async with asyncio.timeout(RETRY_SECONDS):
            await stopped.wait()


async def test_a_run_that_succeeded_is_logged_with_its_duration(
    app: StoreApp, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def quick() -> int:
        return 1

    handle = await quick.enqueue()
    with caplog.at_level("INFO", logger="interlock.worker"):
        await app.drain()
    (record,) = [record for record in caplog.records if record.message == "run succeeded"]
    reported = vars(record)
    assert (reported["job"], reported["type"], reported["attempt"]) == (handle.id, "quick", 1)
    assert reported["duration_seconds"] >= 0


async def test_a_run_that_failed_is_logged_with_its_error(app: StoreApp, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no route to the moon")

    handle = await broken.enqueue()
    with caplog.at_level("INFO", logger="interlock.worker"):
        await app.drain()
    (record,) = [record for record in caplog.records if record.message == "run failed"]
    reported = vars(record)
    assert (reported["job"], reported["status"], reported["error"]) == (
        handle.id, "dead_letter", "no route to the moon",
    )  # fmt: skip


async def test_synchronous_steps_share_a_bounded_number_of_threads(app: StoreApp) -> None:
    running, go_on = threading.Semaphore(0), threading.Event()

    def step() -> str:
        running.release()
        go_on.wait(RETRY_SECONDS)
        return threading.current_thread().name

    def nested(ctx: interlock.Context) -> str:
        return ctx.step_sync("inner", lambda: threading.current_thread().name)

    @app.task
    async def many(ctx: interlock.Context) -> int:
        steps = [asyncio.create_task(ctx.step("wait", step)) for _ in range(100)]
        for _ in range(LEAST_STEP_THREADS):
            await asyncio.to_thread(running.acquire)
        busy = [thread for thread in threading.enumerate() if thread.name.startswith("interlock-step")]
        go_on.set()
        names = set(await asyncio.gather(*steps))
        inner = await asyncio.gather(*(ctx.step(f"nested {n}", nested, ctx) for n in range(2 * LEAST_STEP_THREADS)))
        assert len(inner) == 2 * LEAST_STEP_THREADS
        return max(len(busy), len(names))

    handle = await many.enqueue()
    await app.drain(concurrency=1)
    assert await handle.result(timeout=RETRY_SECONDS) == LEAST_STEP_THREADS


async def test_a_synchronous_task_sees_its_cancellation_and_stops(app: StoreApp) -> None:
    @app.task
    def looks(ctx: interlock.Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.001)
        ctx.step_sync("more", lambda: None)

    handle = await looks.enqueue()
    async with app.working():
        await app.until(handle.id, Status.RUNNING)
        await handle.cancel()
        assert (await app.until(handle.id, Status.CANCELLED)).attempt == 1


async def test_a_task_that_completes_despite_a_cancel_succeeds(app: StoreApp) -> None:
    @app.task
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "it was nearly done"

    handle = await stubborn.enqueue()
    async with app.working():
        await app.until(handle.id, Status.RUNNING)
        await handle.cancel()
        assert await handle.result(timeout=RETRY_SECONDS) == "it was nearly done"


async def test_a_run_beyond_its_timeout_is_interrupted_and_fails(app: StoreApp) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    handle = await slow.enqueue()
    async with app.working():
        job = await app.until(handle.id, Status.DEAD_LETTER)
    assert json.loads(job.error or "")["kind"] == "timeout"


@pytest.mark.parametrize(("asked", "delay"), [(0.0, 0.1), (7.0, 7.0)])
async def test_a_run_beyond_its_timeout_is_retried_like_an_expired_lease(
    app: StoreApp, asked: float, delay: float
) -> None:
    @app.task(timeout=0.05, backoff={"kind": "fixed", "base_seconds": 300}, expiry_delay=asked)
    async def slow() -> None:
        await asyncio.Event().wait()

    handle = await slow.enqueue()
    async with app.working():
        job = await app.until(handle.id, Status.RETRY)
    assert job.run_at == job.updated_at + round(delay * SECOND)


async def test_a_thread_beyond_its_timeout_is_not_waited_for_but_keeps_its_slot(app: StoreApp) -> None:
    go_on = threading.Event()
    ran = []

    @app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        go_on.wait(RETRY_SECONDS)

    @app.task
    def after() -> None:
        ran.append(go_on.is_set())

    first = await stuck.enqueue()
    async with app.working(concurrency=1):
        await app.until(first.id, Status.DEAD_LETTER)
        second = await after.enqueue()
        go_on.set()
        await second.result(timeout=RETRY_SECONDS)
    assert ran == [True]


async def test_a_worker_that_lost_its_lease_stops_and_its_finish_is_rejected(app: StoreApp, clock: ManualClock) -> None:
    interrupted, taken = asyncio.Event(), asyncio.Event()

    @app.task
    async def held() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.set()
            await taken.wait()  # its place stays filled, so that the old worker cannot be the one to claim again
        return "stale"

    handle = await held.enqueue()
    async with app.working(name="old", concurrency=1):
        await app.until(handle.id, Status.RUNNING)
        await app.engine.jobs.revoke(ADA, handle.id, reason="moved")
        (job,) = await app.store.claim(TENANT, ClaimFilter("new", types=frozenset({"held"})))
        await asyncio.wait_for(interrupted.wait(), RETRY_SECONDS)
        taken.set()
        assert (await app.job(handle.id)).worker == "new"
        await app.store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "new", '"fresh"')])
    assert (await app.job(handle.id)).result == '"fresh"'


async def test_synchronous_tasks_run_concurrently_in_threads_with_the_loop_free(app: StoreApp) -> None:
    barrier = threading.Barrier(3)
    where = []

    @app.task
    def meet() -> None:
        barrier.wait(RETRY_SECONDS)
        where.append(threading.current_thread() is threading.main_thread())

    await meet.enqueue_many([{}] * 3)
    assert await app.drain(concurrency=3) == 3
    assert where == [False] * 3


@pytest.mark.parametrize("prefetch", [0, 5])  # a prefetched job starts when another run ends
async def test_one_job_never_sees_the_context_variables_of_another(app: StoreApp, prefetch: int) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")
    seen = []

    @app.task
    async def dirty() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    @app.task
    def dirty_in_a_thread() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    for _ in range(2):
        await dirty.enqueue()
        await dirty_in_a_thread.enqueue()
    await app.worker(concurrency=1, prefetch=prefetch).run(drain=True)
    assert seen == ["clean"] * 4


async def test_stopping_waits_for_running_jobs_and_claims_no_more(app: StoreApp) -> None:
    go_on, started = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "done"

    handle = await slow.enqueue()
    worker = app.worker(concurrency=2)
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    later = await slow.enqueue()
    go_on.set()
    await running
    assert await handle.result(timeout=RETRY_SECONDS) == "done"
    job = await app.job(later.id)
    assert (job.status, job.version) == (Status.QUEUED, 1)


@pytest.mark.parametrize("kind", ["asynchronous", "blocking"])
@pytest.mark.parametrize("how", ["grace is over", "at once"])
async def test_a_job_that_does_not_end_in_time_is_released_without_using_an_attempt(
    app: StoreApp, kind: str, how: str
) -> None:
    go_on = threading.Event()

    @app.task
    async def asynchronous() -> None:
        await asyncio.Event().wait()

    @app.task
    def blocking() -> None:
        go_on.wait(RETRY_SECONDS)

    handle = await app.tasks[kind].enqueue()
    worker = app.worker(shutdown_grace=0.05 if how == "grace is over" else 30)
    running = asyncio.create_task(worker.run())
    await app.until(handle.id, Status.RUNNING)
    worker.stop()
    if how == "at once":
        worker.stop(now=True)
    await running
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 1)
    assert (await handle.history())[-1].reason == "worker shut down"
    go_on.set()


async def test_prefetched_jobs_are_released_immediately_when_the_worker_stops(app: StoreApp) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait() -> None:
        began.set()
        await go_on.wait()

    handles = await wait.enqueue_many([{}] * 3)
    worker = app.worker(concurrency=1, prefetch=2)
    running = asyncio.create_task(worker.run())
    await began.wait()
    for handle in handles:
        await app.until(handle.id, Status.RUNNING)
    worker.stop()
    for handle in handles[1:]:
        assert (await app.until(handle.id, Status.QUEUED)).attempt == 1
    go_on.set()
    await running
    assert (await app.job(handles[0].id)).status == Status.SUCCEEDED


async def test_a_worker_whose_own_task_is_cancelled_releases_everything(app: StoreApp) -> None:
    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    handle = await endless.enqueue()
    running = asyncio.create_task(app.worker(shutdown_grace=0).run())
    await app.until(handle.id, Status.RUNNING)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await app.job(handle.id)
    assert (job.status, job.attempt) == (Status.QUEUED, 1)


async def test_once_runs_exactly_one_job(app: StoreApp) -> None:
    @app.task
    async def quick() -> None: ...

    await quick.enqueue_many([{}] * 3)
    assert await app.worker().run(once=True) == 1
    assert await app.drain() == 2


async def test_a_worker_claims_only_its_types_and_capabilities(app: StoreApp) -> None:
    @app.task(requires=["gpu"])
    async def heavy() -> None: ...

    @app.task
    async def light() -> None: ...

    await heavy.enqueue()
    await light.enqueue()
    assert await app.drain(types=["heavy"]) == 0
    assert await app.drain(types=["heavy"], capabilities=["gpu"]) == 1
    assert await app.drain() == 1


async def test_a_worker_rejects_invalid_options(app: StoreApp) -> None:
    with pytest.raises(ValueError, match="no tasks"):
        app.worker()

    @app.task
    async def some() -> None: ...

    with pytest.raises(ValueError, match="less than half of the lease"):
        app.worker(lease=10, heartbeat_interval=5)
    with pytest.raises(ValueError, match="unknown task other"):
        app.worker(types=["other"])
    with pytest.raises(ValueError, match="concurrency"):
        app.worker(concurrency=0)


async def test_heartbeats_are_frequent_enough_for_the_shortest_lease_of_a_task(app: StoreApp) -> None:
    @app.task(lease=10)
    async def brief() -> None: ...

    with pytest.raises(ValueError, match="less than half of the lease"):
        app.worker(types=["brief"], lease=60, heartbeat_interval=5)
    with pytest.raises(ValueError, match="expected at least 1"):
        app.worker(lease=0.5)
    app.worker(types=["brief"], lease=60, heartbeat_interval=None)
