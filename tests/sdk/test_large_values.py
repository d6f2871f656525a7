"""Results above the limit: stored as artifacts, and read again where they are used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import Context, Retry, Worker
from interlock.api.options import Options
from interlock.domain.lifecycle import Status
from interlock.domain.operations import PruneCommand
from interlock.sdk import large
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import Limits, new_id
from tests.api.rig import serving
from tests.support.apps import TENANT, StoreApp
from tests.support.stores import ManualClock

BIG = "ß" * 200_000  # 400 kB of JSON


@pytest.fixture
async def objects(tmp_path: Path) -> FileObjects:
    return FileObjects(tmp_path / "artifacts")


@pytest.fixture
async def app(store: Store, objects: FileObjects) -> AsyncIterator[StoreApp]:
    made = StoreApp(store, objects)
    yield made
    await made.close()


def reading(app: StoreApp, name: str = "read") -> tuple[Any, list[str]]:
    """A task with a large step, whose first run fails behind it."""
    calls: list[str] = []

    def load() -> str:
        calls.append("load")
        return BIG

    @app.task(name=name)
    async def read(ctx: Context) -> int:
        found = await ctx.step("load", load)
        calls.append("go on")
        if calls.count("go on") == 1:
            raise Retry("again", delay=0)
        return len(found)

    return read, calls


async def test_a_large_step_is_an_artifact_and_replayed_from_it(app: StoreApp, clock: ManualClock) -> None:
    read, calls = reading(app)
    handle = await read.enqueue()
    await app.drain()
    clock.advance(60)
    await app.drain()
    assert await handle.result() == len(BIG)
    assert calls == ["load", "go on", "go on"]
    (step,) = await app.engine.progress.steps(TENANT, handle.id)
    (kept,) = await app.artifacts.list(handle.id)
    content = json.dumps(BIG, ensure_ascii=False).encode()
    digest = hashlib.sha256(content).hexdigest()
    named = {"name": "interlock.step/load/1.json", "size": len(content), "sha256": digest}
    assert json.loads(step.result) == {"interlock.artifact": named}
    assert (kept.name, kept.size, kept.content_type) == (named["name"], named["size"], "application/json")
    verified = await app.audit.verify()
    assert verified.first_bad is None


async def test_the_content_of_a_large_step_is_compared_with_what_the_history_covers(
    app: StoreApp, clock: ManualClock, tmp_path: Path
) -> None:
    read, _ = reading(app)
    handle = await read.enqueue()
    await app.drain()
    for file in (tmp_path / "artifacts").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes().replace("ß".encode(), b"ss", 1))
    clock.advance(60)
    await app.drain()
    job = await handle.refresh()
    assert job.status is not Status.SUCCEEDED
    assert job.error is not None
    assert "artifact" in job.error["message"]


async def test_a_redrive_keeps_large_steps_after_the_first_job_is_pruned(
    app: StoreApp, clock: ManualClock, tmp_path: Path
) -> None:
    calls: list[str] = []

    def load() -> str:
        calls.append("load")
        return BIG

    @app.task
    async def read(ctx: Context, n: int) -> int:
        return len(await ctx.step("load", load)) // (n if calls == ["load", "redriven"] else 0)

    handle = await read.enqueue(2)
    for _ in range(10):
        await app.drain()
        clock.advance(86_400)
    assert (await handle.refresh()).status is Status.DEAD_LETTER
    used = await app.store.artifacts.total_bytes(TENANT)
    again = await handle.redrive("load")
    assert await app.store.artifacts.total_bytes(TENANT) == 2 * used
    clock.advance(86_400)
    pruned = PruneCommand(id=new_id(), actor="test", cutoff=clock.now - 1, after_seq=0, step=100)
    await app.store.prune(TENANT, pruned)
    assert await app.store.get(TENANT, [handle.id]) == [None]
    assert await app.store.artifacts.total_bytes(TENANT) == used
    clock.advance(2 * 3600)
    await app.engine.artifacts.collect_orphans()
    calls.append("redriven")
    await app.drain()
    assert await again.result() == len(BIG) // 2
    assert calls == ["load", "redriven"]
    clock.advance(86_400)
    await app.store.prune(TENANT, pruned._replace(id=new_id(), cutoff=clock.now - 1))
    clock.advance(2 * 3600)
    await app.engine.artifacts.collect_orphans()
    assert [file for file in (tmp_path / "artifacts").rglob("*") if file.is_file()] == []


async def test_a_large_result_is_returned_whole_to_producers_and_parents(app: StoreApp) -> None:
    @app.task
    async def load() -> str:
        return BIG

    @app.task
    async def parent(ctx: Context) -> int:
        child = await ctx.enqueue(load)
        (found,) = await ctx.results([child])
        return len(found)

    handle = await parent.enqueue()
    for _ in range(4):
        await app.drain()
    assert await handle.result() == len(BIG)
    whole = await load.enqueue()
    await app.drain()
    assert await whole.result() == BIG


async def test_a_large_result_of_an_effect_is_an_artifact_and_the_call_is_not_repeated(
    app: StoreApp, clock: ManualClock
) -> None:
    calls = 0

    def load() -> str:
        nonlocal calls
        calls += 1
        return BIG

    @app.task
    async def read(ctx: Context) -> int:
        found = await ctx.effect("load", load)
        if ctx.attempt == 1:
            raise Retry("again", delay=0)
        return len(found)

    handle = await read.enqueue()
    for _ in range(2):
        await app.drain()
        clock.advance(60)
    job = await handle.refresh()
    assert (job.status, job.error, job.result, calls) == (Status.SUCCEEDED, None, len(BIG), 1)
    (effect,) = await app.jobs.effects(handle.id)
    assert effect.state == "done"


@pytest.mark.parametrize("has_objects", [True, False])
async def test_a_step_that_can_never_be_saved_fails_the_job_at_once(
    store: Store, objects: FileObjects, has_objects: bool
) -> None:
    app = StoreApp(store, objects if has_objects else None, limits=Limits(artifact=300_000))
    read, calls = reading(app)
    handle = await read.enqueue()
    await app.drain()
    job = await handle.refresh()
    assert (job.status, job.attempt, calls) == (Status.FAILED, 1, ["load"])
    assert job.error is not None
    assert job.error["kind"] == "step_too_large"
    assert "load" in job.error["message"]
    await app.close()


async def test_a_worker_over_http_needs_no_other_role_for_large_values(
    store: Store, objects: FileObjects, clock: ManualClock
) -> None:
    async with serving(store, clock, Options(auth=True, tenant=TENANT), objects=objects) as api:
        worker = await api.as_role("work", worker_id="w")
        producer = await api.as_role("produce", "read")
        async with (
            interlock.App(api.url, token=worker.token) as works,
            interlock.App(api.url, token=producer.token) as asks,
        ):
            calls: list[str] = []

            def load() -> str:
                calls.append("load")
                return BIG

            async def read(ctx: Context) -> str:
                found = await ctx.step("load", load)
                calls.append("go on")
                if calls.count("go on") == 1:
                    raise Retry("again", delay=0)
                return found

            works.task(name="read")(read)
            handle = await asks.task(name="read")(read).enqueue()
            for _ in range(2):
                await Worker(works, name="w").run(drain=True)
                clock.advance(60)
            assert await handle.result() == BIG
            assert calls == ["load", "go on", "go on"]


def test_names_of_artifacts_fit() -> None:
    assert large.step_name("x" * 300, 7).endswith("/7.json")
    assert len(large.step_name("x" * 300, 7)) <= 200
    assert large.step_name("x" * 300, 1) != large.step_name("y" * 300, 1)


async def test_values_of_users_are_not_taken_for_references(app: StoreApp) -> None:
    values: list[Any] = [
        {"artifact": {"name": "result.json", "sha256": "x"}},
        {"interlock.artifact": {"sha256": 1}},
        '"sha256"',
    ]

    @app.task
    async def keep(ctx: Context, n: int) -> Any:
        return await ctx.step("s", lambda: values[n])

    for n, value in enumerate(values):
        handle = await keep.enqueue(n)
        await app.drain()
        assert await handle.result() == value
