"""Unexpected behavior of a task harms neither its own result nor other tasks."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import interlock
from interlock.client.port import Client, JobRequest, LeasedJob
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.errors import Unavailable
from interlock.sdk.threads import Threads
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import SECOND, ManualClock

ASKS_ITS_NAME = """
from interlock.sdk.replay import identity_of

def search() -> None: ...

if __name__ == "__main__":
    import research
    print(identity_of(search), identity_of(research.search))
"""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


async def test_an_unprintable_error_is_reported_by_its_name(app: StoreApp) -> None:
    @app.task(max_attempts=1)
    async def odd() -> None:
        raise Unprintable

    handle = await odd.enqueue()
    await app.drain()
    with pytest.raises(interlock.JobFailed, match=r"Unprintable \(its text cannot be printed\)") as failed:
        await handle.result(timeout=RETRY_SECONDS)
    assert failed.value.error["kind"] == "Unprintable"


async def test_a_stray_stop_iteration_is_an_ordinary_failed_attempt(app: StoreApp) -> None:
    runs: list[str] = []

    class Shy:
        def __repr__(self) -> str:
            raise ValueError

    @app.task(max_attempts=1)
    async def closes(reported: bool = False) -> None:
        if reported:
            runs.append("closes")
        raise GeneratorExit

    @app.task(max_attempts=1)
    def closes_in_a_thread() -> None:
        runs.append("in a thread")
        raise GeneratorExit

    @app.task(max_attempts=1)
    async def closes_beside_it() -> None:
        runs.append("beside it")
        await asyncio.gather(closes())

    @app.task(max_attempts=1)
    def stops() -> None:
        runs.append("stops")
        raise StopIteration(Shy())

    handles = [await closes.enqueue(reported=True)]
    handles += [await task.enqueue() for task in (closes_in_a_thread, closes_beside_it, stops)]
    await app.drain()
    reported = []
    for handle in handles:
        with pytest.raises(interlock.JobFailed) as failed:
            await handle.result(timeout=RETRY_SECONDS)
        reported.append((failed.value.error["kind"], failed.value.error["message"]))
    assert reported == [
        *[("GeneratorExit", "the task raised GeneratorExit")] * 3,
        ("RuntimeError", "the task raised StopIteration"),
    ]
    assert sorted(runs) == ["beside it", "closes", "in a thread", "stops"]


async def test_an_error_with_invalid_unicode_keeps_its_traceback(app: StoreApp) -> None:
    @app.task(max_attempts=1)
    async def odd() -> None:
        raise OSError("no such file: caf\udce9.txt")

    handle = await odd.enqueue()
    await app.drain()
    with pytest.raises(interlock.JobFailed) as failed:
        await handle.result(timeout=RETRY_SECONDS)
    assert failed.value.error["message"] == "no such file: caf\ufffd.txt"
    assert "in odd" in str(failed.value.error["details"])


async def test_more_events_than_fit_one_call_are_all_emitted_and_their_messages_need_not_be_text(
    app: StoreApp,
) -> None:
    @app.task
    async def chatty(ctx: interlock.Context) -> None:
        ctx.event(OSError("no route"))  # type: ignore[arg-type]
        for n in range(1100):
            ctx.event(f"page {n}")

    handle = await chatty.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status == Status.SUCCEEDED
    reported = [event.message for event in await handle.events()]
    assert reported == ["no route", *(f"page {n}" for n in range(1100))]


async def test_a_task_that_suspends_itself_is_released_immediately(app: StoreApp) -> None:
    class NoModel(interlock.Suspended):
        pass

    @app.task
    async def patient(ctx: interlock.Context) -> int:
        if ctx.job.releases == 0:
            raise NoModel("no model is free")
        return ctx.attempt

    handle = await patient.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == 1
    assert [row.reason for row in await handle.history() if row.to_status == Status.QUEUED][1:] == ["no model is free"]


async def test_concurrent_checkpoints_are_saved_one_after_another(app: StoreApp) -> None:
    @app.task(max_attempts=1)
    async def crawl(ctx: interlock.Context) -> None:
        await asyncio.gather(*(ctx.save_checkpoint(n) for n in range(5)))

    handle = await crawl.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.checkpoint_seq) == (Status.SUCCEEDED, 5)


async def test_a_step_that_returns_another_type_than_declared_is_not_saved(app: StoreApp) -> None:
    def count() -> int:
        return "three"  # type: ignore[return-value]

    @app.task(max_attempts=1)
    async def research(ctx: interlock.Context) -> None:
        await ctx.step("count", count)

    handle = await research.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status == Status.DEAD_LETTER
    assert await app.engine.progress.steps(TENANT, handle.id) == []


async def test_numbers_of_any_size_reach_a_task_and_its_result(app: StoreApp) -> None:
    seen: list[Any] = []

    @app.task
    async def count(ctx: interlock.Context, whole: int, price: Decimal, anything: Any) -> dict[str, Any]:
        seen.append((whole, price, anything))
        kept = await ctx.step("large", lambda: 10**5000)
        await ctx.save_checkpoint({"n": 3**100})
        return {"whole": whole * 2, "kept": kept}

    payload = f'{{"whole":{2**100},"price":1.10,"anything":[1e400,{"7" * 5000}]}}'
    request = JobRequest(type=count.name, payload=Raw(payload.encode()))
    added = await app.engine.jobs.enqueue(local(TENANT), request)
    await app.drain()
    job = await app.job(added.id)
    assert (job.status, job.payload) == (Status.SUCCEEDED, payload)
    assert seen == [(2**100, Decimal("1.10"), [Decimal("1e400"), Decimal("7" * 5000)])]
    assert job.checkpoint == f'{{"n":{3**100}}}'
    assert (job.result or "").startswith(f'{{"whole":{2**101},"kept":')
    (step,) = await app.engine.progress.steps(TENANT, job.id)
    assert step.result == "1" + "0" * 5000


async def test_usage_has_numbers_that_can_be_summed(app: StoreApp) -> None:
    @app.task
    async def thinking(ctx: interlock.Context) -> str:
        ctx.usage(cost=Decimal("0.25"), tokens=3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"usage\['cost'\] is "):
            ctx.usage(cost=float("nan"))
        with pytest.raises(ValueError, match=r"usage\['cost'\] is .*expected a finite number >= 0"):
            ctx.usage(cost=-1)
        with pytest.raises(ValueError, match="visible"):
            ctx.usage(**{"": 1})
        return "done"

    handle = await thinking.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, json.loads(job.usage or "")) == (Status.SUCCEEDED, {"cost": 0.25, "tokens": 3})


async def test_a_worker_can_be_run_again(app: StoreApp) -> None:
    @app.task
    async def quick() -> None: ...

    worker = app.worker()
    for _ in range(2):
        await quick.enqueue()
        assert await worker.run(drain=True) == 1


def refused() -> Unavailable:
    error = Unavailable("PostgreSQL cannot be reached: connection refused")
    error.__cause__ = ConnectionRefusedError()
    return error


async def test_a_worker_waits_for_a_late_database_unless_it_is_to_drain(app: StoreApp) -> None:
    @app.task
    async def quick() -> None: ...

    handle = await quick.enqueue()
    client = await app._client()
    tries: list[Any] = [refused(), refused(), client]

    async def connect() -> Client:
        if isinstance(tries[0], Unavailable):
            raise tries.pop(0)
        return client

    async def done() -> bool:
        return (await client.jobs.get(handle.id)).status == Status.SUCCEEDED

    app._connect_by(connect)
    with pytest.raises(Unavailable):
        await app.worker().run(drain=True)
    working = asyncio.create_task(app.worker().run())
    try:
        await eventually(done)
        assert tries == [client]
    finally:
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.parametrize("how", [{"drain": True}, {"once": True}])
async def test_a_draining_worker_does_not_wait_for_a_server_that_was_never_there(
    app: StoreApp, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    @app.task
    async def quick() -> None: ...

    client: Any = await app._client()
    claim, lost = client.work.claim, [refused()]

    async def claim_unless_lost(*args: Any, **options: Any) -> Any:
        if lost:
            raise lost.pop()
        return await claim(*args, **options)

    monkeypatch.setattr(client.work, "claim", claim_unless_lost)
    await quick.enqueue()
    with pytest.raises(Unavailable):
        await app.worker().run(**how)
    assert await app.worker().run(**how) == 1


async def test_a_worker_does_not_wait_for_permanent_errors(app: StoreApp) -> None:
    @app.task
    async def quick() -> None: ...

    async def connect() -> Client:
        raise Unavailable("PostgreSQL refused the connection: password authentication failed")

    app._connect_by(connect)
    with pytest.raises(Unavailable, match="password"):
        await app.worker().run()


def test_a_step_of_a_program_is_recognized_by_a_worker_that_imports_it(tmp_path: Path) -> None:
    (tmp_path / "research.py").write_text(ASKS_ITS_NAME)
    for way in (["research.py"], ["-m", "research"]):
        done = subprocess.run(
            [sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, timeout=RETRY_SECONDS
        )
        assert done.stdout.split() == ["research.search", "research.search"], done.stderr


async def test_a_background_task_that_wants_to_exit_the_process_fails_only_the_run(app: StoreApp) -> None:
    async def rude() -> None:
        sys.exit(3)

    @app.task(max_attempts=1)
    async def waits() -> None:
        await asyncio.gather(rude(), asyncio.sleep(0))

    @app.task(max_attempts=1)
    async def groups() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(rude())

    @app.task(max_attempts=1)
    def steps(ctx: interlock.Context) -> None:
        ctx.step_sync("rude", rude)

    handles = [await waits.enqueue(), await groups.enqueue(), await steps.enqueue()]
    await app.drain()
    for handle in handles:
        with pytest.raises(interlock.JobFailed) as failed:
            await handle.result(timeout=RETRY_SECONDS)
        assert (failed.value.error["kind"], failed.value.error["message"]) == ("SystemExit", "3")
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_an_argument_that_only_a_newer_worker_knows_is_retried(app: StoreApp, clock: ManualClock) -> None:
    @app.task
    async def greet(name: str) -> str:
        return name

    (newer,) = await (await app._client()).jobs.enqueue(
        [JobRequest(type="greet", payload=Raw(b'{"name":"ada","times":2}'))]
    )
    (wrong,) = await (await app._client()).jobs.enqueue(
        [JobRequest(type="greet", payload=Raw(b'{"name":1,"times":2}'))]
    )
    await app.drain()
    waiting, failed = await app.job(newer.id), await app.job(wrong.id)
    assert (waiting.status, waiting.run_at) == (Status.RETRY, clock.now + 30 * SECOND)
    assert "times" in json.loads(waiting.error or "")["message"]
    assert failed.status == Status.FAILED


async def test_a_called_step_and_a_reserved_name_are_rejected_with_an_explanation(app: StoreApp) -> None:
    async def search(topic: str) -> str:
        return topic

    @app.task(max_attempts=1)
    async def called(ctx: interlock.Context) -> None:
        await ctx.step("search", search("tides"))  # type: ignore[call-overload]

    @app.task(max_attempts=1)
    async def nameless(ctx: interlock.Context) -> None:
        await ctx.step(search, "tides")  # type: ignore[call-overload]

    @app.task(max_attempts=1)
    async def ours(ctx: interlock.Context) -> None:
        await ctx.step("interlock.approve", search, "tides")

    handles = [await called.enqueue(), await nameless.enqueue(), await ours.enqueue()]
    await app.drain()
    reported = [json.loads((await app.job(handle.id)).error or "")["message"] for handle in handles]
    assert "a name, a function and its arguments, not a call" in reported[0]
    assert reported[1] == reported[0]
    assert "'interlock.approve': names that begin with 'interlock.' are reserved" in reported[2]


async def test_no_event_of_a_synchronous_task_is_lost_while_others_are_collected(app: StoreApp) -> None:
    @app.task
    def chatty() -> None: ...

    client = await app._client()
    job = await client.jobs.get((await chatty.enqueue()).id)
    context = interlock.Context(LeasedJob(job), client, asyncio.get_running_loop(), Threads(), chatty)
    messages = [str(number) for number in range(20_000)]

    def emit() -> None:
        for message in messages:
            context.event(message)

    emitting = threading.Thread(target=emit)
    taken: list[str] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        emitting.start()
        while emitting.is_alive():
            taken += [event.message for event in context._take_events()]
    finally:
        sys.setswitchinterval(before)
    while events := context._take_events():
        taken += [event.message for event in events]
    assert taken == messages


async def test_a_plain_function_around_an_async_one_is_awaited_as_a_step(app: StoreApp) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    around: Any = app.task(name="around")(lambda number: double(number))
    handle = await around.enqueue(21)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == 42


@pytest.mark.parametrize("content", [Path("report.md"), io.BytesIO(b"report"), None])
async def test_an_artifact_that_is_neither_bytes_nor_text_is_rejected_with_an_explanation(
    app: StoreApp, content: Any
) -> None:
    @app.task(max_attempts=1)
    async def attach(ctx: interlock.Context) -> None:
        await ctx.attach("report.md", content)

    handle = await attach.enqueue()
    await app.drain()
    assert "expected bytes or str" in ((await app.job(handle.id)).error or "")
