"""Processes that enqueue, claim and finish on the store without end, and report every call and result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, Final

from tests.process.load import Book, run_load
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.workers import Member, Place, members

PAUSE_SECONDS: Final = 0.25


def run_steady_load(pipe: Connection, place: Place, worker: int) -> None:
    """Until there is a word from outside; a call whose outcome is unknown is made again."""

    def record(when: str, verb: str, facts: Any) -> None:
        if (when, verb) == ("before", "enqueue"):
            time.sleep(PAUSE_SECONDS)  # a steady load, not a wait
        pipe.send((when, verb, facts))

    async def work() -> None:
        store = await place.open(size=2)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), stop.set)
        await run_load(store, worker, record, insist=True, stop=stop)
        await store.close()
        pipe.send(None)

    asyncio.run(work())


class DirectWorkers:
    """The reports of several such processes so far."""

    def __init__(self, place: Place, count: int) -> None:
        self.book = Book()
        self.workers = [Member(run_steady_load, place, number) for number in range(count)]
        self._notes = [self.book.writer(number) for number in range(count)]
        self._counts = [0] * count
        self._answered: list[float] = []
        self._at_work = set(range(count))

    async def all_make_progress(self) -> None:
        """Until each has been given answers to calls that it makes from now on."""
        before = list(self._counts)

        async def got_on() -> bool:
            return all(now >= then + 4 for now, then in zip(self._counts, before, strict=True))

        await eventually(got_on)

    def longest_silence(self, since: float) -> float:
        """For how long no process got a response."""
        times = [since, *(at for at in self._answered if at > since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    async def listen(self) -> None:
        """Record their reports until all have stopped."""
        while self._at_work:
            for number in sorted(self._at_work):
                self._hear(number)
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        for member in self.workers:
            member.pipe.send("enough")

    def _hear(self, number: int) -> None:
        pipe = self.workers[number].pipe
        while pipe.poll(0):
            reported = pipe.recv()
            if reported is None:
                self._at_work.discard(number)
                return
            self._notes[number](*reported)
            if reported[0] == "after":
                self._counts[number] += 1
                self._answered.append(time.monotonic())


@asynccontextmanager
async def hands(place: Place, count: int) -> AsyncIterator[DirectWorkers]:
    """Several working processes; when the block ends, they stop and have reported everything."""
    made = DirectWorkers(place, count)
    with members(*made.workers):
        listening = asyncio.create_task(made.listen())
        try:
            yield made
            made.stop()
            await asyncio.wait_for(listening, RETRY_SECONDS)
        finally:
            listening.cancel()
            await asyncio.wait([listening])
