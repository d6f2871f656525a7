"""Real worker processes: stopped by a signal, killed, killing themselves, and several under one parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.assemble import App
from interlock.domain.lifecycle import Status, Verb
from tests.support.children import is_alive
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres, free_port
from tests.support.stores import APP_LOGIN, ENGINES, empty_database

PATIENT = {"--lease": "600", "--grace": "600"}
SHORT_LEASE = ("--lease", "1")
MODULE = f"""
import asyncio, os, pathlib, signal, time
import interlock, interlock.worker.loop

interlock.worker.loop.LAST_WORDS_SECONDS = {RETRY_SECONDS}  # a busy machine may take long to hear them
app = interlock.App(os.environ["JOBS"])
not_an_app = 1

@app.task(max_attempts=100)
async def slow(go: str) -> int:
    while not pathlib.Path(go).exists():
        await asyncio.sleep(0.01)
    return os.getpid()

@app.task
def stuck() -> None:
    time.sleep(3600)

@app.task(max_attempts=2)
async def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(max_attempts=100)
async def quick() -> int:
    return os.getpid()

def same(n: int) -> int:
    return n

@app.task(max_attempts=100)
async def sleepy(ctx: interlock.Context) -> list[int]:
    seen = []
    for n in range(20):
        seen.append(await ctx.step("same", same, n))
        await ctx.sleep(0.02)
    return seen

@app.task(max_attempts=100)
async def listener(ctx: interlock.Context) -> list[int]:
    return [await ctx.receive("note", schema=int) for _ in range(20)]

@app.task(max_attempts=100)
async def writer(ctx: interlock.Context) -> None:
    for n in range(100):
        ctx.stream("words").write(f"{{n}} ")
        await asyncio.sleep(0.005)

def book(ledger: str, key: str) -> str:
    with open(ledger, "a") as file:
        file.write(key + "\\n")
        file.flush()
        os.fsync(file.fileno())
    return key

@app.task(max_attempts=100)
async def seller(ctx: interlock.Context, ledger: str, dies: str) -> str:
    path = pathlib.Path(ledger)

    async def charge(*, key: str) -> str:
        path.with_suffix(".calls").open("a").write("call\\n")
        if ctx.job.releases == 0 and ctx.attempt == 1:
            if dies == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            book(ledger, key)
            if dies == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(3600)
        return book(ledger, key)

    def was_charged(*, key: str) -> str | None:
        return key if path.exists() and key in path.read_text().split() else None

    return await ctx.effect("charge", charge, key="k1", verify=was_charged)

def helper(ctx):
    return ctx.patched("helper")

@app.task(max_attempts=2)
async def patched(ctx: interlock.Context, killed: bool) -> list[bool]:
    def enclosed():
        return ctx.patched("enclosed")

    seen = [ctx.patched("v2"), enclosed(), helper(ctx)]
    if killed and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return seen
"""


class Shop:
    """A directory with the module of an app, its database, and the processes that work for it."""

    def __init__(self, directory: Path, url: str, app: App) -> None:
        self.directory = directory
        self.url = url
        self.app = app
        self.log = directory / "worker.log"
        self._processes: list[subprocess.Popen[str]] = []

    def task(self, name: str) -> Any:
        """A task of the module by its name, to be enqueued from here."""
        return self.app.tasks[name]

    def worker(self, *options: str, target: str = "shop:app") -> subprocess.Popen[str]:
        """By default, one whose leases outlast any pause of a busy machine."""
        patient = [word for name, value in PATIENT.items() if name not in options for word in (name, value)]
        with self.log.open("a") as log:  # not a pipe: a worker stops at a full one
            process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "worker", target, *patient, *options],
                cwd=self.directory,
                env={**os.environ, "JOBS": self.url},
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        return process

    async def until(self, handle: interlock.JobHandle[Any], *statuses: Status) -> interlock.Job:
        async def there() -> bool:
            return (await handle.refresh()).status in statuses

        await eventually(there)
        return await handle.refresh()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(params=ENGINES)
async def url(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    async with empty_database(postgres) as name:
        yield postgres.dsn(name, user=APP_LOGIN)


@pytest.fixture
async def shop(url: str, tmp_path: Path) -> AsyncIterator[Shop]:
    (tmp_path / "shop.py").write_text(MODULE)
    async with interlock.App(url) as app:

        @app.task(max_attempts=100)
        async def slow(go: str) -> int:
            return 0

        @app.task
        def stuck() -> None: ...

        @app.task(max_attempts=2)
        async def deadly() -> None: ...

        @app.task(max_attempts=100)
        async def quick() -> int:
            return 0

        @app.task(max_attempts=2)
        async def patched(killed: bool) -> list[bool]:
            return []

        @app.task(max_attempts=100)
        async def sleepy() -> list[int]:
            return []

        @app.task(max_attempts=100)
        async def listener() -> list[int]:
            return []

        @app.task(max_attempts=100)
        async def writer() -> None: ...

        @app.task(max_attempts=100)
        async def seller(ledger: str, dies: str) -> str:
            return ""

        made = Shop(tmp_path, url, app)
        try:
            yield made
        finally:
            made.close()


async def test_sigterm_lets_a_running_job_finish_and_uses_no_attempt(shop: Shop) -> None:
    go = shop.directory / "go"
    running = await shop.task("slow").enqueue(go=str(go))
    worker = shop.worker("--concurrency", "1", "--prefetch", "1")
    await shop.until(running, Status.RUNNING)
    waiting = await shop.task("slow").enqueue(go=str(go))
    await shop.until(waiting, Status.RUNNING)
    worker.send_signal(signal.SIGTERM)
    handed_back = await shop.until(waiting, Status.QUEUED)
    go.touch()
    assert worker.wait(RETRY_SECONDS) == 0
    assert await running.result(timeout=RETRY_SECONDS) == worker.pid
    assert ((await running.refresh()).attempt, handed_back.attempt) == (1, 1)


@pytest.mark.parametrize("task", ["slow", "stuck"])
async def test_a_second_sigterm_releases_everything_immediately(shop: Shop, task: str) -> None:
    arguments = {"go": str(shop.directory / "never")} if task == "slow" else {}
    handle = await shop.task(task).enqueue(**arguments)
    worker = shop.worker()
    await shop.until(handle, Status.RUNNING)
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(RETRY_SECONDS) == 0
    job = await handle.refresh()
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 1)


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGINT), (signal.SIGKILL,)], ids=["grace", "at once", "kill"]
)
async def test_signals_during_sleep_receive_and_stream_lose_nothing(
    shop: Shop, signals: tuple[signal.Signals, ...]
) -> None:
    sleepy, listener, writer = [await shop.task(name).enqueue() for name in ("sleepy", "listener", "writer")]
    sent, is_killed = 0, signal.SIGKILL in signals
    lease = SHORT_LEASE if is_killed else ()

    async def progress() -> tuple[int, int]:
        chunks = await shop.app.jobs.chunks(writer.id, "words")
        return len(await shop.app.jobs.steps(sleepy.id)), len(chunks)

    for _ in range(4):
        worker = shop.worker(*lease)
        before = await progress()

        async def advanced(before: tuple[int, int] = before) -> bool:
            steps, chunks = await progress()
            return steps > before[0] and (chunks > before[1] or (await writer.refresh()).status is Status.SUCCEEDED)

        for _ in range(5):
            await listener.send("note", sent)
            sent += 1
        await eventually(advanced)
        for one in signals:
            worker.send_signal(one)
        assert worker.wait(RETRY_SECONDS) == (-signal.SIGKILL if is_killed else 0)
    shop.worker()
    expected = list(range(20))
    assert await sleepy.result(timeout=RETRY_SECONDS) == expected
    assert await listener.result(timeout=RETRY_SECONDS) == expected
    await writer.result(timeout=RETRY_SECONDS)
    if not is_killed:
        assert [(await one.refresh()).attempt for one in (sleepy, listener, writer)] == [1, 1, 1]
    chunks = [chunk async for chunk in writer.stream("words")]
    assert [chunk.offset for chunk in chunks] == list(range(len(chunks)))
    whole = "".join(f"{n} " for n in range(100))
    texts = {
        fence: "".join(one.text or "" for one in chunks if one.fence == fence) for fence in {c.fence for c in chunks}
    }
    assert texts[max(texts)] == whole
    assert all(whole.startswith(text) for text in texts.values())


@pytest.mark.parametrize("dies", ["before", "after", "by SIGTERM"])
async def test_an_effect_is_not_repeated_when_its_worker_dies(shop: Shop, dies: str) -> None:
    ledger = shop.directory / "ledger"
    handle = await shop.task("seller").enqueue(ledger=str(ledger), dies=dies)
    if dies == "by SIGTERM":
        first = shop.worker()

        async def booked() -> bool:
            return ledger.exists() and ledger.read_text() == "k1\n"

        await eventually(booked)
        first.send_signal(signal.SIGTERM)
        first.send_signal(signal.SIGINT)
        assert first.wait(RETRY_SECONDS) == 0
    else:
        first = shop.worker(*SHORT_LEASE)
        first.wait(RETRY_SECONDS)
    (effect,) = await shop.app.jobs.effects(handle.id)
    assert (effect.state, effect.key) == ("started", "k1")
    shop.worker()
    assert await handle.result(timeout=RETRY_SECONDS) == "k1"
    assert ledger.read_text() == "k1\n"
    assert len(ledger.with_suffix(".calls").read_text().split()) == (2 if dies == "before" else 1)
    (effect,) = await shop.app.jobs.effects(handle.id)
    assert (effect.state, effect.result, effect.attempt) == ("done", "k1", 2 if dies == "before" else 1)


async def test_the_job_of_a_killed_worker_is_run_by_another(shop: Shop) -> None:
    go = shop.directory / "go"
    handle = await shop.task("slow").enqueue(go=str(go))
    first = shop.worker("--name", "first", *SHORT_LEASE)
    await shop.until(handle, Status.RUNNING)
    first.kill()
    first.wait(RETRY_SECONDS)
    go.touch()
    second = shop.worker("--name", "second")
    assert await handle.result(timeout=RETRY_SECONDS) == second.pid
    # A machine that stood still may have let the first lose its lease, and claim again, before it was killed.
    *before, last = [row.actor for row in await handle.history() if row.verb == Verb.CLAIM]
    assert (set(before), last) == ({"worker:first"}, "worker:second")
    assert (await handle.refresh()).attempt == len(before) + 1


async def test_a_job_that_kills_its_worker_is_counted_and_its_process_replaced(shop: Shop) -> None:
    deadly = await shop.task("deadly").enqueue()
    fleet = shop.worker("--processes", "2", *SHORT_LEASE)
    job = await shop.until(deadly, Status.DEAD_LETTER)
    assert job.attempt == 2
    leases = [row for row in await deadly.history() if row.verb == Verb.CLAIM]
    assert len(leases) == 2
    quick = await shop.task("quick").enqueue()
    assert await quick.result(timeout=RETRY_SECONDS) != fleet.pid
    fleet.send_signal(signal.SIGTERM)
    assert fleet.wait(RETRY_SECONDS) == 0


async def test_a_run_that_is_killed_after_it_asked_for_a_patch_changes_no_answer(shop: Shop) -> None:
    handle = await shop.task("patched").enqueue(killed=True)
    shop.worker("--processes", "2", *SHORT_LEASE)
    assert await handle.result(timeout=RETRY_SECONDS) == [True, True, True]
    assert (await handle.refresh()).attempt == 2


async def test_worker_processes_do_not_outlive_their_supervisor(shop: Shop) -> None:
    fleet = shop.worker("--processes", "2")
    pids = set()

    async def both_work() -> bool:
        pids.add(await (await shop.task("quick").enqueue()).result(timeout=RETRY_SECONDS))
        return len(pids) == 2

    await eventually(both_work)
    fleet.kill()

    async def gone() -> bool:
        return not any(is_alive(pid) for pid in pids)

    await eventually(gone)


async def test_drain_exits_when_nothing_is_due_and_once_after_one_job(shop: Shop) -> None:
    handles = [await shop.task("quick").enqueue() for _ in range(5)]
    once = shop.worker("--once")
    assert once.wait(RETRY_SECONDS) == 0
    assert [(await handle.refresh()).status for handle in handles].count(Status.SUCCEEDED) == 1
    assert shop.worker("--drain").wait(RETRY_SECONDS) == 0
    assert [(await handle.refresh()).status for handle in handles].count(Status.SUCCEEDED) == 5


async def test_the_log_is_one_json_object_a_line(shop: Shop) -> None:
    await shop.task("quick").enqueue()
    worker = shop.worker("--drain", "--name", "ada")
    assert worker.wait(RETRY_SECONDS) == 0
    lines = [json.loads(line) for line in shop.log.read_text().splitlines()]
    # A warning would be true: that the machine stood still.
    assert [(line["event"], line["worker"]) for line in lines if line["level"] != "warning"] == [
        ("worker started", "ada"),
        ("run succeeded", "ada"),
        ("worker stopped", "ada"),
    ]
    assert all(line["at"].endswith("Z") for line in lines)


@pytest.fixture
def plain_shop(tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "shop.py").write_text(MODULE)
    made = Shop(tmp_path, f"sqlite:///{tmp_path}/jobs.db", interlock.App("sqlite:///unused.db"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("shop", (), "write MODULE:APP"),
        ("nowhere:app", (), "no module 'nowhere'"),
        ("nowhere:app", ("--processes", "2"), "no module 'nowhere'"),
        ("shop.py:app", (), "did you mean shop:app?"),
        ("shop:missing", (), "has no 'missing'"),
        ("shop:not_an_app", (), "is not an interlock.App"),
        ("shop:app", ("--type", "other"), "unknown task other"),
        ("shop:app", ("--concurrency", "0"), "at least 1"),
        ("shop:app", ("--processes", "0"), "at least 1"),
        ("shop:app", ("--grace", "-1"), "shutdown_grace is -1.0: expected at least 0"),
        ("shop:app", ("--processes", "2", "--name", "x"), "--name requires --processes 1"),
    ],
)
def test_an_invalid_command_line_is_rejected_with_a_reason(
    plain_shop: Shop, target: str, options: tuple[str, ...], expected: str
) -> None:
    worker = plain_shop.worker(*options, target=target)
    code, given = worker.wait(RETRY_SECONDS), plain_shop.log.read_text()
    assert (code, expected in given) == (2, True), given


@pytest.mark.parametrize("processes", ["1", "2"])
def test_draining_workers_exit_when_the_server_is_unreachable(plain_shop: Shop, processes: str) -> None:
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/jobs"
    worker = plain_shop.worker("--drain", "--processes", processes, "--database", nowhere)
    code, given = worker.wait(RETRY_SECONDS), plain_shop.log.read_text()
    assert (code, "cannot be reached" in given) == (5, True), given
