"""Blocking callers have the same verbs with the same arguments."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import interlock
from interlock.sdk.app import App
from interlock.sdk.context import Child, Context
from interlock.sdk.handle import JobHandle
from interlock.sdk.queue import Queue
from interlock.sdk.tasks import Task
from interlock.testing import MemoryApp
from tests.support.eventually import RETRY_SECONDS

SEPARATE = {"client", "discard"}  # a client belongs to a loop; the other is internal


def is_verb(thing: object) -> bool:
    return inspect.iscoroutinefunction(thing) or inspect.isasyncgenfunction(thing)


def verbs(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_") and is_verb(inspect.getattr_static(cls, name))]


@pytest.mark.parametrize("cls", [App, Task, JobHandle, Context, Child, Queue, MemoryApp])
def test_every_method_has_a_sync_version_with_the_same_signature(cls: type) -> None:
    wanted = [name for name in verbs(cls) if name not in SEPARATE]
    assert wanted
    for name in wanted:
        twin = inspect.getattr_static(cls, f"{name}_sync")
        ours = inspect.signature(inspect.getattr_static(cls, name))
        assert inspect.signature(twin).parameters == ours.parameters, name
        assert twin.__name__ == f"{name}_sync"
        assert not is_verb(twin)
    twins = {name for name in dir(cls) if name.endswith("_sync") and not name.startswith("_")}
    assert twins == {f"{name}_sync" for name in wanted}


def test_a_synchronous_program_enqueues_waits_and_cancels(tmp_path: Path) -> None:
    app = interlock.App(f"sqlite:///{tmp_path}/x.db")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.enqueue_sync(1, 2)
    many = add.enqueue_many_sync([{"a": 1, "b": 1}, {"a": 2, "b": 2}])
    assert many[1].cancel_sync("enough") == "cancelled"

    async def work() -> int:
        async with app:
            return await interlock.Worker(app).run(drain=True)

    assert asyncio.run(work()) == 2
    assert handle.result_sync(timeout=RETRY_SECONDS) == 3
    assert many[0].result_sync(timeout=RETRY_SECONDS) == 2
    with pytest.raises(interlock.JobCancelled, match="enough"):
        many[1].result_sync()
    assert handle.refresh_sync().attempt == 1
    assert [row.version for row in handle.history_sync()] == [1, 2, 3]
    assert handle.events_sync() == [] == list(handle.tail_sync())
    assert [rows[-1].version for rows in app.audit.export_sync()] == [3, 3, 2]
    app.close_sync()


async def test_a_sync_method_refuses_to_block_an_event_loop() -> None:
    app = MemoryApp()

    @app.task
    def nothing() -> None: ...

    with pytest.raises(RuntimeError, match="would block the running event loop"):
        nothing.enqueue_sync()
    await app.discard()


def test_every_event_loop_has_its_own_client_and_an_unclosed_one_warns(tmp_path: Path) -> None:
    app = interlock.App(f"sqlite:///{tmp_path}/x.db")

    @app.task
    def nothing() -> None: ...

    async def tidy() -> None:
        async with app:
            assert (await app._client()) is (await app._client())
            await nothing.enqueue()

    async def untidy() -> None:
        await nothing.enqueue()

    asyncio.run(tidy())
    asyncio.run(untidy())
    with pytest.warns(ResourceWarning, match="async with app"):
        nothing.enqueue_sync()
    app.close_sync()


async def test_a_failed_connection_is_retried_at_the_next_call(tmp_path: Path) -> None:
    app = interlock.App(f"sqlite:///{tmp_path}/later/x.db")

    @app.task
    def nothing() -> None: ...

    with pytest.raises(interlock.Error, match="does not exist"):
        await nothing.enqueue()
    (tmp_path / "later").mkdir()
    async with app:
        await nothing.enqueue()


def test_importing_interlock_is_cheap_and_its_names_are_all_there() -> None:
    program = (
        "import sys, interlock\n"
        "assert not {'msgspec', 'apsw', 'structlog'} & set(sys.modules)\n"
        "assert [getattr(interlock, name).__name__.rpartition('.')[2] for name in interlock.__all__] == interlock.__all__\n"
        "assert set(interlock.__all__) <= set(dir(interlock))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError):
        _ = interlock.nonsense  # type: ignore[attr-defined]
