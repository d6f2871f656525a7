"""Streams that a task writes: complete and in order when the run ends, followed by readers while it runs."""

from __future__ import annotations

import asyncio

import pytest

import interlock
from interlock.domain.stream import MAX_CHUNK_BYTES
from tests.support.apps import StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock


async def test_a_reader_gets_what_a_run_writes_before_it_ends(app: StoreApp) -> None:
    seen = asyncio.Event()

    @app.task
    async def speak(ctx: interlock.Context) -> None:
        ctx.stream("tokens").write("Hel")
        await seen.wait()
        ctx.stream("tokens").write("lo ß")
        ctx.stream("tokens").write(b"\xff\x00")

    job = await speak.enqueue()
    working = asyncio.create_task(app.drain())
    chunks = []
    async with asyncio.timeout(RETRY_SECONDS):
        async for chunk in job.stream("tokens"):
            chunks.append(chunk)
            seen.set()
    await working
    assert [(one.offset, one.text) for one in chunks[:2]] == [(0, "Hel"), (1, "lo ß")]
    assert (chunks[2].data, chunks[2].is_text) == (b"\xff\x00", False)
    assert {(one.attempt, one.fence) for one in chunks} == {(1, 1)}
    assert [one.offset async for one in job.stream("tokens", after=0)] == [1, 2]
    (info,) = await app.jobs.streams(job.id)
    assert (info.name, info.chunks, info.bytes) == ("tokens", 3, 10)
    assert await app.jobs.chunks(job.id, "tokens", after=1) == chunks[2:]


async def test_what_a_step_or_effect_wrote_is_stored_before_its_result_is_saved(app: StoreApp) -> None:
    """A run that is killed then has it, although a later run does not call the function again."""
    stored: list[str] = []

    def write() -> None:
        for word in ("the", "tide"):
            interlock.current().stream("tokens").write(word)

    @app.task
    async def speak(ctx: interlock.Context) -> None:
        await ctx.step("write", write)
        stored.append("".join(one.text for one in await app.jobs.chunks(ctx.id, "tokens")))
        await ctx.effect("write aloud", write)
        stored.append("".join(one.text for one in await app.jobs.chunks(ctx.id, "tokens")))
        write()
        await ctx.save_checkpoint(1)
        stored.append("".join(one.text for one in await app.jobs.chunks(ctx.id, "tokens")))

    await speak.enqueue()
    await app.drain()
    assert stored == ["thetide" * count for count in (1, 2, 3)]


async def test_a_synchronous_task_writes_and_a_large_text_is_split_between_characters(app: StoreApp) -> None:
    text = "x" + "€" * 100_000

    @app.task
    def speak(ctx: interlock.Context) -> None:
        writer = ctx.stream("tokens")
        writer.write(text)
        writer.flush_sync()
        writer.write("")

    job = await speak.enqueue()
    await app.drain()
    chunks = [one async for one in job.stream("tokens")]
    assert "".join(one.text for one in chunks) == text
    assert max(len(one.data) for one in chunks) <= MAX_CHUNK_BYTES


async def test_a_later_run_continues_the_stream_after_a_failure_and_an_approval(
    app: StoreApp, clock: ManualClock
) -> None:
    @app.task(backoff={"kind": "fixed", "base_seconds": 0})
    async def speak(ctx: interlock.Context) -> None:
        ctx.stream("tokens").write(f"run {ctx.job.fence} ")
        if ctx.attempt == 1:
            raise RuntimeError("after the write")
        await ctx.approve("Go on?")

    job = await speak.enqueue()
    await app.drain()
    clock.advance(1)
    await app.drain()
    (approval,) = await app.approvals.list()
    assert [(one.offset, one.text) for one in await app.jobs.chunks(job.id, "tokens")] == [(0, "run 1 "), (1, "run 2 ")]
    await app.approvals.decide(approval.id, "approve")
    await app.drain()
    chunks = [one async for one in job.stream("tokens")]
    assert [(one.offset, one.attempt, one.text) for one in chunks] == [
        (0, 1, "run 1 "), (1, 2, "run 2 "), (2, 2, "run 3 "),
    ]  # fmt: skip


async def test_output_above_the_limit_is_an_error_of_the_writer_and_not_of_the_job(app: StoreApp) -> None:
    errors: list[str] = []

    @app.task
    async def speak(ctx: interlock.Context) -> None:
        for n in range(101):
            ctx.stream(f"s{n}").write("x")
        with pytest.raises(interlock.Error) as raised:
            await asyncio.gather(*(ctx.stream(f"s{n}").flush() for n in range(101)))
        errors.append(raised.value.code)

    job = await speak.enqueue()
    await app.drain()
    assert (await job.refresh()).status == "succeeded"
    assert errors == ["limit_reached"]
    assert any("was lost" in event.message for event in await job.events())


async def test_an_invalid_name_or_value_is_rejected(app: StoreApp) -> None:
    rejected: list[type[BaseException]] = []

    @app.task
    async def speak(ctx: interlock.Context) -> None:
        for name, data in (("", "a"), ("tokens", 3)):
            try:
                ctx.stream(name).write(data)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                rejected.append(type(error))

    await speak.enqueue()
    await app.drain()
    assert rejected == [ValueError, TypeError]
