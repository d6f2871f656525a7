"""Merging of concurrent single calls: calls that arrive while a batch is in flight form the next batch.

There is no timer: when idle, a call is sent immediately; under load, it shares the next commit. Nothing here knows
about jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Final, Generic, TypeVar

from interlock.storage.commit_window import CommitWindow

RESULTS_PER_LOOP_PASS: Final = 4  # callers start sending their response while others still wait for a result

K = TypeVar("K", bound=Hashable)
I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")


class Coalescer(Generic[K, I, A]):
    """Merges calls with an equal key. Each item gets its own result.

    If a merged call fails, its items are retried one by one; a cancelled caller does not cancel the others. With a
    `window`, batches of several operations are sent together.
    """

    def __init__(
        self,
        verb: Callable[[K, Sequence[I]], Awaitable[Sequence[A]]],
        *,
        most: int = 1000,
        window: CommitWindow | None = None,
    ) -> None:
        self._verb = verb
        self._most = most
        self._window = window
        self._waiting: dict[K, list[tuple[I, asyncio.Future[A]]]] = {}
        self._runners: dict[K, asyncio.Task[None]] = {}
        self.batches = 0
        self.items = 0

    async def __call__(self, key: K, item: I) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((item, answer))
        if self._window is not None:
            self._window.came += 1
        if key not in self._runners:
            self._runners[key] = asyncio.create_task(self._run(key))
        return await answer

    async def _run(self, key: K) -> None:
        try:
            while key in self._waiting:
                async with self._window or nullcontext():
                    await self._flush(key, self._take(key))
        finally:
            del self._runners[key]
            for _, answer in self._waiting.pop(key, []):
                answer.cancel()

    def _take(self, key: K) -> list[tuple[I, asyncio.Future[A]]]:
        waiting = self._waiting.pop(key, [])
        if len(waiting) > self._most:
            self._waiting[key] = waiting[self._most :]
        return waiting[: self._most]

    async def _flush(self, key: K, batch: Sequence[tuple[I, asyncio.Future[A]]]) -> None:
        self.batches += 1
        self.items += len(batch)
        try:
            answers = await self._verb(key, [item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not batch[0][1].done():
                    batch[0][1].set_exception(error)
                return
            for one in batch:
                await self._flush(key, [one])
            return
        for number, ((_, future), answer) in enumerate(zip(batch, answers, strict=True), 1):
            if not future.done():
                future.set_result(answer)
            if self._window is not None and not number % RESULTS_PER_LOOP_PASS:
                await asyncio.sleep(0)
