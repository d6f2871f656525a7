# ruff: noqa: ASYNC240 - what is looked at is a directory of the test
"""Hints between processes that have the same SQLite file open: how they arrive, and what happens when they cannot."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import pytest_asyncio

from interlock.domain.job import Heartbeat, Job
from interlock.domain.progress import Event, Level
from interlock.storage.contract import cancels_of
from interlock.storage.sqlite import notify
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import TenantQueue, ask, cancel, new_job
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock, migrated_file

TENANT = "acme"
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def polling_is_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LOOK_AT_OTHERS_SECONDS", 3600.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return migrated_file(tmp_path / "interlock.db")


@pytest_asyncio.fixture(loop_scope="module")
async def here(path: str) -> AsyncIterator[SQLiteStore]:
    store = await SQLiteStore.open(path)
    yield store
    await store.close()


def pipes(path: str) -> list[str]:
    directory = Path(f"{path}-wake")
    return sorted(pipe.name for pipe in directory.iterdir()) if directory.is_dir() else []


async def heard(changed: asyncio.Event) -> None:
    await asyncio.wait_for(changed.wait(), RETRY_SECONDS)


def in_another_process(act: Callable[..., None], *given: object) -> tuple[BaseProcess, Connection]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=act, args=(theirs, *given), daemon=True)
    process.start()
    return process, ours


def add(pipe: Connection, path: str) -> None:
    async def run() -> None:
        store = await SQLiteStore.open(path)
        await store.enqueue(TENANT, [new_job()])
        await store.close()

    asyncio.run(run())


def interrupt(pipe: Connection, path: str, job: Job) -> None:
    """Cancel a job that another process runs, and record an event for it."""

    async def run() -> None:
        store = await SQLiteStore.open(path)
        await TenantQueue(store, TENANT, ManualClock()).do(cancel(job.id))
        event = Event("e1", Level.INFO, "said")
        await store.heartbeat(TENANT, [Heartbeat(job.id, job.fence, str(job.worker), events=(event,))])
        await store.close()

    asyncio.run(run())


def wait_for_ever(pipe: Connection, path: str) -> None:
    async def run() -> None:
        store = await SQLiteStore.open(path)
        changed = store.watch(TENANT)
        pipe.send("listens")
        await changed.wait()
        pipe.send("woken")
        await asyncio.Event().wait()

    asyncio.run(run())


async def test_a_job_of_another_process_wakes_a_claim_that_waits(here: SQLiteStore, path: str) -> None:
    changed, idle = here.watch(TENANT), here.watch("rival")
    assert await here.claim(TENANT, ask()) == []
    process, _ = in_another_process(add, path)
    await heard(changed)
    assert len(await here.claim(TENANT, ask())) == 1
    assert not idle.is_set()
    await asyncio.to_thread(process.join)


async def test_a_cancel_and_an_event_of_another_process_wake_those_who_watch_for_them(
    here: SQLiteStore, path: str
) -> None:
    await here.enqueue(TENANT, [new_job()])
    (job,) = await here.claim(TENANT, ask())
    cancelled, added = here.watch(cancels_of(TENANT)), here.watch_events()
    process, _ = in_another_process(interrupt, path, job)
    await heard(cancelled)
    await heard(added)
    await asyncio.to_thread(process.join)


async def test_the_pipe_of_a_killed_process_is_removed_by_the_next_sender(here: SQLiteStore, path: str) -> None:
    process, said = in_another_process(wait_for_ever, path)
    assert await asyncio.to_thread(said.recv) == "listens"
    await here.enqueue(TENANT, [new_job()])
    assert await asyncio.to_thread(said.recv) == "woken"
    assert len(pipes(path)) == 1
    os.kill(process.pid or 0, signal.SIGKILL)
    await asyncio.to_thread(process.join)
    assert len(pipes(path)) == 1

    async def removed() -> bool:
        await here.enqueue(TENANT, [new_job()])
        return pipes(path) == []

    await eventually(removed)


async def test_the_pipe_of_a_killed_process_is_removed_by_the_next_listener(here: SQLiteStore, path: str) -> None:
    Path(f"{path}-wake").mkdir(0o700)
    os.mkfifo(f"{path}-wake/1-dead")
    here.watch(TENANT)
    assert "1-dead" not in pipes(path)
    assert len(pipes(path)) == 1


async def test_a_closed_store_leaves_neither_pipe_nor_directory(path: str) -> None:
    first, second = await SQLiteStore.open(path), await SQLiteStore.open(path)
    first.watch(TENANT)
    second.watch(TENANT)
    assert len(pipes(path)) == 2
    await first.close()
    assert len(pipes(path)) == 1
    await second.close()
    assert not Path(f"{path}-wake").exists()


async def test_a_process_that_only_adds_jobs_makes_no_pipe(here: SQLiteStore, path: str) -> None:
    await here.enqueue(TENANT, [new_job()])
    assert not Path(f"{path}-wake").exists()


async def test_hints_reach_a_file_with_a_very_long_path(tmp_path: Path) -> None:
    """The address of a socket has at most 108 bytes; a pipe has no such limit."""
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    path = migrated_file(directory / "interlock.db")
    first, second = await SQLiteStore.open(path), await SQLiteStore.open(path)
    try:
        changed = first.watch(TENANT)
        await second.enqueue(TENANT, [new_job()])
        await heard(changed)
    finally:
        await first.close()
        await second.close()


async def test_a_listener_whose_pipe_was_removed_opens_another(
    here: SQLiteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "CHECK_PIPE_SECONDS", 0.0)
    here.watch(TENANT)
    (before,) = pipes(path)
    Path(f"{path}-wake", before).unlink()
    Path(f"{path}-wake").rmdir()
    here.watch(TENANT)
    (after,) = pipes(path)
    assert after != before


async def test_more_tenants_than_one_hint_can_name_are_all_woken(here: SQLiteStore, path: str) -> None:
    changed = here.watch(TENANT)
    notify.send(Path(path), [f"tenant-{i}" for i in range(1000)])
    await heard(changed)


async def test_a_full_pipe_stops_no_sender_and_loses_no_wakeup(here: SQLiteStore, path: str) -> None:
    changed = here.watch(TENANT)
    for _ in range(20_000):
        notify.send(Path(path), [TENANT])
    await heard(changed)


async def test_a_fork_of_a_listener_does_not_remove_its_pipe(
    here: SQLiteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.watch(TENANT)
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        here._notifier._close_pipe()
    assert len(pipes(path)) == 1


def no_pipes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_CAN_LISTEN", False)


def a_file_in_the_way(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{path}-wake").touch()


def a_directory_of_everybody(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{path}-wake").mkdir()
    Path(f"{path}-wake").chmod(0o777)


def a_link_to_elsewhere(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Path(path).with_name("elsewhere")
    elsewhere.mkdir(0o700)
    Path(f"{path}-wake").symlink_to(elsewhere)


def a_loop_without_readers(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_reader(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", add_reader)


@pytest.mark.parametrize(
    "trouble", [no_pipes, a_file_in_the_way, a_directory_of_everybody, a_link_to_elsewhere, a_loop_without_readers]
)
async def test_where_a_pipe_cannot_be_had_the_log_is_polled(
    path: str, trouble: Callable[[str, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LOOK_AT_OTHERS_SECONDS", 0.001)
    trouble(path, monkeypatch)
    here, there = await SQLiteStore.open(path), await SQLiteStore.open(path)
    try:
        changed = here.watch(TENANT)
        assert here._notifier._pipe is None
        await there.enqueue(TENANT, [new_job()])
        await heard(changed)
    finally:
        await here.close()
        await there.close()


async def test_no_hint_is_sent_into_a_directory_that_others_can_write(here: SQLiteStore, path: str) -> None:
    a_directory = Path(f"{path}-wake")
    a_directory.mkdir()
    os.mkfifo(a_directory / "trap")
    reader = os.open(a_directory / "trap", os.O_RDONLY | os.O_NONBLOCK)
    try:
        writer = os.open(a_directory / "trap", os.O_WRONLY | os.O_NONBLOCK)
        a_directory.chmod(0o777)
        notify.send(Path(path), [TENANT])
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        a_directory.chmod(0o700)
        notify.send(Path(path), [TENANT])
        assert os.read(reader, 100) == b'["acme"]\n'
        os.close(writer)
    finally:
        os.close(reader)


async def test_a_file_that_is_no_pipe_is_never_written(here: SQLiteStore, path: str) -> None:
    Path(f"{path}-wake").mkdir(0o700)
    stray = Path(f"{path}-wake", "stray")
    stray.write_text("kept")
    notify.send(Path(path), [TENANT])
    assert stray.read_text() == "kept"


async def test_pipes_and_their_directory_are_private(here: SQLiteStore, path: str) -> None:
    here.watch(TENANT)
    (name,) = pipes(path)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (Path(f"{path}-wake"), Path(f"{path}-wake", name))]
    assert modes == [0o700, 0o600]
