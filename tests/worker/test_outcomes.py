"""The result of a task decides the next status of its job."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.domain.usage import summed
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import SECOND, ManualClock


def error_of(job: Any) -> Any:
    return json.loads(job.error)


async def test_the_return_value_of_a_task_is_the_result_of_its_job(app: StoreApp) -> None:
    @app.task
    async def add(a: int, b: int = 2) -> dict[str, int]:
        return {"sum": a + b}

    handle = await add.enqueue(a=40)
    assert await app.drain() == 1
    job = await app.job(handle.id)
    assert (job.status, job.result, job.attempt) == (Status.SUCCEEDED, '{"sum":42}', 1)


async def test_a_task_that_returns_nothing_succeeds_without_a_result(app: StoreApp) -> None:
    @app.task
    async def nothing() -> None: ...

    handle = await nothing.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.result) == (Status.SUCCEEDED, None)


@pytest.mark.parametrize("value", [float("nan"), {"deep": [None, float("-inf")]}])
async def test_a_result_that_json_cannot_encode_fails_the_job_instead_of_changing(app: StoreApp, value: object) -> None:
    @app.task
    async def measure() -> object:
        return value

    handle = await measure.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, error_of(job)["kind"]) == (Status.FAILED, "invalid_result")
    assert "NaN and infinity" in error_of(job)["message"]


async def test_an_exception_is_retried_with_its_traceback(app: StoreApp, clock: ManualClock) -> None:
    @app.task(max_attempts=2, backoff={"kind": "fixed", "base_seconds": 10})
    async def stumble() -> None:
        raise KeyError("pages")

    handle = await stumble.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.run_at) == (Status.RETRY, 2, clock.now + 10 * SECOND)
    error = error_of(job)
    assert (error["message"], error["kind"]) == ("'pages'", "KeyError")
    assert "in stumble" in error["details"]["traceback"]
    clock.advance(10)
    await app.drain()
    assert (await app.job(handle.id)).status == Status.DEAD_LETTER


async def test_retry_sets_the_time_of_the_next_attempt(app: StoreApp, clock: ManualClock) -> None:
    @app.task
    async def limited() -> None:
        raise interlock.Retry("quota", delay=timedelta(minutes=5))

    handle = await limited.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.run_at) == (Status.RETRY, 2, clock.now + 300 * SECOND)
    assert error_of(job)["message"] == "quota"


async def test_fail_ends_the_job_with_attempts_left(app: StoreApp) -> None:
    @app.task(max_attempts=5)
    async def hopeless() -> None:
        raise interlock.Fail("no such page", kind="gone", details={"page": 7})

    handle = await hopeless.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt) == (Status.FAILED, 1)
    assert error_of(job) == {"message": "no such page", "kind": "gone", "details": {"page": 7}}


async def test_release_returns_the_job_until_a_time_and_uses_no_attempt(app: StoreApp, clock: ManualClock) -> None:
    runs = []

    @app.task
    async def patient(ctx: interlock.Context) -> str:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            raise interlock.Release(delay=30, reason="provider is busy")
        if len(runs) == 2:
            raise interlock.Release(
                run_at=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now + SECOND)
            )
        return "done"

    handle = await patient.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.run_at) == (Status.QUEUED, 1, clock.now + 30 * SECOND)
    assert (await handle.history())[-1].reason == "provider is busy"
    clock.advance(30)
    await app.drain()
    assert (await app.job(handle.id)).run_at == clock.now + SECOND
    clock.advance(1)
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt, runs) == (Status.SUCCEEDED, 1, [1, 1, 1])


async def test_a_release_cannot_be_swallowed_by_catching_exceptions(app: StoreApp) -> None:
    @app.task
    async def careless() -> None:
        try:
            raise interlock.Release(delay=5)
        except Exception:
            return

    handle = await careless.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status == Status.QUEUED


@pytest.mark.parametrize("give", ["payload", "result"])
async def test_values_that_json_cannot_encode_or_decode_fail_permanently(app: StoreApp, give: str) -> None:
    @app.task
    async def odd(n: int) -> Any:
        return {1: object()}

    client = await app._client()
    payload = b'{"n":"one"}' if give == "payload" else b'{"n":1}'
    request = odd._request((), {"n": 1})
    (enqueued,) = await client.jobs.enqueue([type(request)(type="odd", payload=type(request.payload)(payload))])
    await app.drain()
    job = await app.job(enqueued.id)
    assert (job.status, error_of(job)["kind"]) == (Status.FAILED, f"invalid_{give}")


async def test_a_result_beyond_the_limit_fails_the_job_instead_of_running_it_forever(app: StoreApp) -> None:
    @app.task
    async def talkative() -> str:
        return "x" * 300_000

    handle = await talkative.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, error_of(job)["kind"]) == (Status.FAILED, "result_too_large")


async def test_a_result_beyond_the_limit_is_stored_as_an_artifact(store: Store, tmp_path: Path) -> None:
    app = StoreApp(store, FileObjects(tmp_path / "artifacts"))

    @app.task
    async def talkative() -> str:
        return "x" * 300_000

    handle = await talkative.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert job.status == Status.SUCCEEDED
    named = json.loads(job.result or "")["artifact"]
    (kept,) = await app.engine.artifacts.list(TENANT, job.id)
    content = b'"' + b"x" * 300_000 + b'"'
    assert (named["id"], named["name"], named["size"]) == (kept.id, "result.json", len(content))
    assert named["sha256"] == hashlib.sha256(content).hexdigest() == (kept.sha256 or b"").hex()
    assert "result.json" in (job.result_summary or "")
    download = await app.engine.artifacts.read(TENANT, job.id, kept.id)
    assert b"".join([chunk async for chunk in download.chunks]) == content


async def test_a_result_with_invalid_unicode_is_sanitized_not_lost(app: StoreApp) -> None:
    @app.task
    async def garbled() -> list[str]:
        return ["\x00", "half \ud800 pair"]

    handle = await garbled.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.sanitized) == (Status.SUCCEEDED, True)
    assert await handle.result(timeout=RETRY_SECONDS) == ["\x00", "half \ufffd pair"]


async def test_an_error_with_details_that_are_not_json_or_far_too_large_is_still_reported(app: StoreApp) -> None:
    @app.task
    async def first() -> None:
        raise interlock.Fail("a", details=object())

    @app.task
    async def second() -> None:
        raise interlock.Fail("b" * 100_000, details="c" * 100_000)

    handles = [await first.enqueue(), await second.enqueue()]
    await app.drain()
    jobs = [await app.job(handle.id) for handle in handles]
    assert [job.status for job in jobs] == [Status.FAILED, Status.FAILED]
    assert [error_of(job)["message"][:1] for job in jobs] == ["a", "b"]


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
async def test_a_task_that_wants_to_exit_the_process_fails_only_itself(app: StoreApp, raised: BaseException) -> None:
    @app.task(max_attempts=1)
    async def rude() -> None:
        raise raised

    @app.task(max_attempts=1)
    def rude_in_a_thread() -> None:
        raise raised

    handles = [await rude.enqueue(), await rude_in_a_thread.enqueue()]
    await app.drain()
    jobs = [await app.job(handle.id) for handle in handles]
    assert [error_of(job)["kind"] for job in jobs] == [type(raised).__name__] * 2


async def test_usage_of_a_run_is_summed_and_stored(app: StoreApp) -> None:
    @app.task
    async def thinking(ctx: interlock.Context) -> None:
        ctx.usage(tokens=100, cost=0.25)
        ctx.usage(tokens=20)

    handle = await thinking.enqueue()
    await app.drain()
    usage = (await app.job(handle.id)).usage
    assert usage is not None
    assert json.loads(usage) == {"tokens": 120, "cost": 0.25}


async def test_usage_of_failed_attempts_is_included(app: StoreApp, clock: ManualClock) -> None:
    @app.task(max_attempts=3, backoff={"kind": "fixed", "base_seconds": 1})
    async def thinking(ctx: interlock.Context) -> None:
        ctx.usage(tokens=100, cost=0.25)
        if ctx.attempt < 3:
            raise OSError("overloaded")

    async def search() -> int:
        return 7

    @app.task(max_attempts=2, backoff={"kind": "fixed", "base_seconds": 1})
    async def by_steps(ctx: interlock.Context) -> None:
        ctx.usage(tokens=await ctx.step("search", search))  # the step is not run again, but its usage is reported again
        if ctx.attempt < 2:
            raise OSError("overloaded")

    handles = [await thinking.enqueue(), await by_steps.enqueue()]
    for _ in range(3):
        await app.drain()
        clock.advance(1)
    used = [json.loads((await app.job(handle.id)).usage or "") for handle in handles]
    assert used == [{"tokens": 300, "cost": 0.75}, {"tokens": 7}]


async def test_usage_of_a_failed_job_is_known(app: StoreApp, clock: ManualClock) -> None:
    @app.task(max_attempts=2, backoff={"kind": "fixed", "base_seconds": 1})
    async def hopeless(ctx: interlock.Context) -> None:
        ctx.usage(tokens=50)
        raise OSError("overloaded")

    handle = await hopeless.enqueue()
    for _ in range(2):
        await app.drain()
        clock.advance(1)
    assert (await app.job(handle.id)).status == Status.DEAD_LETTER
    steps = await (await app._client()).jobs.steps(handle.id)
    assert summed(handle.id, steps, has_ended=True) == {"tokens": 100}


@pytest.mark.parametrize(("after", "waits"), [(-3.5, 0.1), (timedelta(days=40), 30 * 86_400.0)])
async def test_a_retry_at_a_time_that_is_past_or_too_far_is_still_reported(
    app: StoreApp, clock: ManualClock, after: float | timedelta, waits: float
) -> None:
    @app.task
    async def limited() -> None:
        raise interlock.Retry("quota", delay=after)

    handle = await limited.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.run_at) == (Status.RETRY, clock.now + round(waits * SECOND))
    assert error_of(job)["message"] == "quota"


async def test_a_release_until_a_past_time_is_immediate(app: StoreApp) -> None:
    runs = []

    @app.task(max_attempts=1)
    async def patient() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise interlock.Release(delay=timedelta(seconds=-2))
        return "done"

    handle = await patient.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.attempt, job.releases) == (Status.SUCCEEDED, 1, 1)
    with pytest.raises(ValueError, match="number of seconds"):
        interlock.Release(delay=float("nan"))


async def test_a_rejected_release_fails_the_attempt_and_explains_why(app: StoreApp) -> None:
    """Else it would hang until its lease expires, and the error would name a missing heartbeat."""

    @app.task(max_attempts=1)
    async def verbose() -> None:
        raise interlock.Release(reason="x" * 9000)

    handle = await verbose.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, error_of(job)["kind"]) == (Status.DEAD_LETTER, "invalid_release")
    assert "reason" in error_of(job)["message"]


async def test_a_run_can_be_suspended_from_inside_a_task_group(app: StoreApp) -> None:
    @app.task
    async def leaf(n: int) -> int:
        return n

    @app.task(max_attempts=1)
    async def parent(ctx: interlock.Context) -> int:
        children = await ctx.enqueue_many(leaf, [{"n": 1}, {"n": 2}])
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(child.result()) for child in children]
        return sum(wait.result() for wait in waits)

    @app.task(max_attempts=1)
    async def released(ctx: interlock.Context) -> None:
        async def quota() -> None:
            raise interlock.Release(delay=30)

        async with asyncio.TaskGroup() as group:
            group.create_task(quota())

    ids = [(await parent.enqueue()).id, (await released.enqueue()).id]
    await app.drain()
    jobs = [await app.job(id) for id in ids]
    assert [(job.status, job.error) for job in jobs] == [(Status.SUCCEEDED, None), (Status.QUEUED, None)]
    assert jobs[0].result == "3"


async def test_a_single_error_inside_a_task_group_is_reported_as_itself(app: StoreApp) -> None:
    async def fail_permanently() -> None:
        raise interlock.Fail("no such page", kind="gone")

    async def stumble(error: Exception) -> None:
        raise error

    @app.task(max_attempts=5)
    async def alone() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_permanently())

    @app.task(max_attempts=1)
    async def several() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stumble(KeyError("a")))
            group.create_task(stumble(OSError("b")))

    handles = [await alone.enqueue(), await several.enqueue()]
    await app.drain()
    jobs = [await app.job(handle.id) for handle in handles]
    assert (jobs[0].status, error_of(jobs[0])["kind"]) == (Status.FAILED, "gone")
    assert (jobs[1].status, error_of(jobs[1])["kind"]) == (Status.DEAD_LETTER, "ExceptionGroup")


async def test_a_task_that_cancels_its_own_run_fails_and_is_not_run_forever(app: StoreApp) -> None:
    @app.task(max_attempts=1)
    async def restless() -> None:
        running = asyncio.current_task()
        assert running is not None
        running.cancel()
        await asyncio.sleep(0)

    handle = await restless.enqueue()
    assert await app.drain() == 1
    job = await app.job(handle.id)
    assert (job.status, error_of(job)["kind"]) == (Status.DEAD_LETTER, "CancelledError")


@pytest.mark.parametrize("strict", [False, True])
async def test_children_of_the_same_agent_run_unless_the_agent_is_strict(app: StoreApp, strict: bool) -> None:
    await app.engine.registry.set_agent(local(TENANT), "planner", "solo", max_concurrency=1, strict=strict)

    @app.task(agent=("planner", "solo"))
    async def read(n: int) -> int:
        return n

    @app.task(agent=("planner", "solo"), max_attempts=1)
    async def plan(ctx: interlock.Context) -> int:
        return sum(await ctx.results(await ctx.enqueue_many(read, [{"n": 1}, {"n": 2}])))

    handle = await plan.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    if strict:
        error = json.loads(job.error or "{}")
        assert (job.status, error["kind"]) == (Status.DEAD_LETTER, "would_deadlock")
        assert "turn strict off" in error["message"]
    else:
        assert await handle.result(timeout=RETRY_SECONDS) == 3
