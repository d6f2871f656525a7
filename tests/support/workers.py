"""Real processes with a store each: to race against each other, to be stopped, and to be killed.

They are forked from a server process that has imported everything and opened nothing, so that one is up in a few milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Self

from interlock.errors import Error
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore

TIMEOUT: Final = 600.0  # what is waited for comes in a moment, or on a busy machine in minutes
HEAD_START: Final = 0.002

_context = multiprocessing.get_context("forkserver")

Act = Callable[..., Awaitable[Any]]


def preload(*modules: str) -> None:
    """What the server process imports before the first fork, so that no member has to."""
    _context.set_forkserver_preload(["tests.support.workers", *modules])


class Place(NamedTuple):
    """Where a store is: a file, or the address of a database."""

    engine: str
    address: str

    async def open(self, *, size: int = 4) -> Store:
        if self.engine == "sqlite":
            return await SQLiteStore.open(self.address)
        return await PostgresStore.open(self.address, size=size)


class Failed(NamedTuple):
    """An act that raised: the code of an error of ours, or the name of any other, and its text."""

    code: str
    message: str


class Member:
    """One process. On request it runs functions (async, of a module, with the store as first argument)."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def signal(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)

    def wait(self) -> None:
        """Until the process has ended."""
        self.process.join(TIMEOUT)
        assert not self.process.is_alive(), f"process {self.pid} does not end"

    def receive(self) -> Any:
        assert self.pipe.poll(TIMEOUT), f"process {self.pid} does not answer"
        return self.pipe.recv()

    def kill_within(self, seconds: float) -> list[Any]:
        """Kill it after this time, and return its reports; an incomplete last message does not count."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:  # a moment, not a wait: nothing depends on its length
            pass
        self.signal(signal.SIGKILL)
        self.wait()
        reported = []
        with contextlib.suppress(EOFError):
            while self.pipe.poll(0):
                reported.append(self.pipe.recv())
        return reported

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class ProcessGroup:
    """Several members on one place."""

    def __init__(self, place: Place, size: int) -> None:
        self.members = [Member(_serve, place) for _ in range(size)]

    def __enter__(self) -> Self:
        for member in self.members:
            opened = member.receive()
            assert opened is None, opened
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            with contextlib.suppress(OSError):
                member.pipe.send(None)
        for member in self.members:
            member.process.join(TIMEOUT)
            member.close()

    def race(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Every call is an act and its arguments; the first goes to the first member and so on, round and round.

        All start at one moment; the calls of one member are concurrent. Answers come in the order of the calls.
        """
        start = time.monotonic() + HEAD_START
        shares = [calls[i :: len(self.members)] for i in range(len(self.members))]
        for member, share in zip(self.members, shares, strict=True):
            if share:
                member.pipe.send((start, share))
        answers: list[Any] = [None] * len(calls)
        for i, (member, share) in enumerate(zip(self.members, shares, strict=True)):
            if share:
                answers[i :: len(self.members)] = member.receive()
        return answers


def _serve(pipe: Connection, place: Place) -> None:
    with asyncio.Runner() as runner:
        try:
            store = runner.run(place.open())
        except Exception as error:
            pipe.send(failed(error))
            return
        pipe.send(None)
        while (reported := pipe.recv()) is not None:
            start, calls = reported
            pipe.send(runner.run(_together(store, start, calls)))
        runner.run(store.close())


async def _together(store: Store, start: float, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    while time.monotonic() < start:  # spinning: the point is to be there at the very moment
        pass
    answers = await asyncio.gather(*(act(store, *args) for act, *args in calls), return_exceptions=True)
    return [failed(answer) if isinstance(answer, BaseException) else answer for answer in answers]


def failed(error: BaseException) -> Failed:
    return Failed(error.code if isinstance(error, Error) else type(error).__name__, str(error))


@contextlib.contextmanager
def members(*started: Member) -> Iterator[None]:
    """Leaves no process behind."""
    try:
        yield
    finally:
        for member in started:
            member.close()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition by polling; fail if it is not met in time."""
    deadline = time.monotonic() + TIMEOUT
    while not await condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        await asyncio.sleep(0.005)
