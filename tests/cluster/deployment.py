"""Real servers and real workers as processes, producers that insist, and a book of what was acknowledged to them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import interlock
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.errors import Unavailable
from interlock.storage.postgres.store import PostgresStore
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.invariants import check_history
from tests.support.postgres import free_port

LEASE_SECONDS: Final = 5
PAUSE_SECONDS: Final = 0.15
TENANT: Final = "default"
MODULE: Final = """
import asyncio, os, pathlib
import interlock

app = interlock.App(os.environ["JOBS"])
last = pathlib.Path(os.environ["WORKER"] + ".last")

@app.task(max_attempts=100)
async def count(number: int) -> int:
    await asyncio.sleep(0.01)
    last.write_text(f"{number}.")
    return number
"""


class Program:
    """A command of Interlock as a process that can be killed and started again, the same as before."""

    def __init__(self, directory: Path, name: str, *words: str, **variables: str) -> None:
        self.name = name
        self._directory, self._words, self._variables = directory, words, variables
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interlock", *self._words],
                cwd=self._directory,
                env={**inherited, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Signal this process and wait for its end; its exit code."""
        assert self._process is not None
        self._process.send_signal(how)
        try:
            return self._process.wait(RETRY_SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def wrote(self) -> str:
        return (self._directory / f"{self.name}.log").read_text(errors="replace")[-2000:]


class Deployment:
    """Servers, workers and producers on one database."""

    def __init__(self, directory: Path, dsn: str) -> None:
        (directory / "plant.py").write_text(MODULE)
        self.directory, self.dsn = directory, dsn
        self.servers: dict[str, Program] = {}
        self.workers: dict[str, Program] = {}
        self._numbers = itertools.count(1)
        self._newest = 0
        self._sent: set[str] = set()
        self._acknowledged: dict[str, int] = {}
        self._producing: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    @property
    def programs(self) -> list[Program]:
        return [*self.servers.values(), *self.workers.values()]

    def add_server(self, name: str, dsn: str | None = None) -> str:
        """Where it listens, also after it was started again."""
        port = free_port()
        words = ("serve", "--port", str(port), "--database", dsn or self.dsn)
        self.servers[name] = Program(self.directory, name, *words, INTERLOCK_TENANT=TENANT)
        self.servers[name].start()
        return f"http://127.0.0.1:{port}"

    def add_worker(self, name: str, url: str) -> None:
        words = ("worker", "plant:app", "--name", name, "--lease", str(LEASE_SECONDS), "--concurrency", "4")
        self.workers[name] = Program(self.directory, name, *words, JOBS=url, WORKER=name)
        self.workers[name].start()

    async def until_ready(self, *urls: str) -> None:
        async def all_ready() -> bool:
            self._look()
            return all([await asyncio.to_thread(_ready, url) for url in urls])

        await eventually(all_ready)

    def produce(self, url: str) -> None:
        """Enqueue without end, and make every call again, the same as before, until it is answered."""
        self._producing.append(asyncio.create_task(self._produce(url)))

    async def all_make_progress(self) -> None:
        """Until every worker has run a job that came after this call."""
        mark = self._newest

        async def all_have() -> bool:
            self._look()
            return all(self._last(name) > mark for name in self.workers)

        await eventually(all_have)

    async def wind_up(self) -> None:
        """Send no more, and wait until all that was sent has ended."""
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._producing), RETRY_SECONDS)
        async with interlock.App(self.dsn) as app:
            client = await app._client()

            async def all_ended() -> bool:
                self._look()
                counts = await client.queues.get("count")
                return counts.ready + counts.delayed + counts.in_progress + counts.blocked == 0

            await eventually(all_ended)

    async def compare(self, store: PostgresStore) -> int:
        """Nothing acknowledged is lost, nothing was finished twice, nothing invented; how many jobs there were."""
        ids = sorted(self._acknowledged)
        found = [job for start in range(0, len(ids), 500) for job in await store.get(TENANT, ids[start : start + 500])]
        for id, job in zip(ids, found, strict=True):
            assert job is not None, f"lost: {id}"
            rows = await store.history(TENANT, id)
            check_history(job, rows)
            assert (job.status, job.result) == (Status.SUCCEEDED, str(self._acknowledged[id]))
            assert [row.verb for row in rows].count(Verb.COMPLETE) == 1
            assert sum(row.to_status in TERMINAL for row in rows) == 1
        numbers = sorted(self._acknowledged.values())
        assert numbers == sorted(set(numbers)), "one call made two jobs"
        assert {f"key-{number}" for number in numbers} == self._sent, "a producer gave up"
        return len(ids)

    def close(self) -> None:
        for task in self._producing:
            task.cancel()
        for program in self.programs:
            if program.is_running:
                program.end()

    async def _produce(self, url: str) -> None:
        async with interlock.App(url) as app:

            @app.task(max_attempts=100)
            async def count(number: int) -> int:
                return number

            while not self._stop.is_set():
                number = next(self._numbers)
                self._sent.add(f"key-{number}")
                task = count.options(idempotency_key=f"key-{number}")
                while True:
                    with contextlib.suppress(Unavailable):
                        handle = await task.enqueue(number)
                        break
                assert handle.id not in self._acknowledged, f"{handle.id} was given out twice"
                self._acknowledged[handle.id] = number
                self._newest = max(self._newest, number)
                await asyncio.sleep(PAUSE_SECONDS)  # a steady load, not a wait

    def _last(self, worker: str) -> int:
        """The number that a worker has written last; without its full stop it is half a number."""
        try:
            text = (self.directory / f"{worker}.last").read_text()
        except FileNotFoundError:
            return 0
        return int(text[:-1]) if text.endswith(".") else 0

    def _look(self) -> None:
        """Fail immediately if a process has exited that should not have."""
        for task in self._producing:
            if task.done() and not self._stop.is_set():
                task.result()
        gone = [program for program in self.programs if not program.is_running]
        assert not gone, f"{gone[0].name} has ended by itself:\n{gone[0].wrote}"


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def plant(directory: Path, dsn: str) -> Iterator[Deployment]:
    """Leaves no process behind."""
    made = Deployment(directory, dsn)
    try:
        yield made
    finally:
        made.close()
