"""Single calls share a batch exactly when another is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from interlock.storage.batching import Coalescer


class Recorder:
    """A verb that waits to be let through and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.approval = asyncio.Event()
        self.called = asyncio.Condition()
        self.poison: set[int] = set()

    async def __call__(self, key: str, items: Sequence[int]) -> list[int]:
        self.batches.append((key, list(items)))
        async with self.called:
            self.called.notify_all()
        await self.approval.wait()
        if self.poison & set(items):
            raise ValueError("poison")
        return [item * 10 for item in items]


async def started(recorder: Recorder, count: int) -> None:
    async with recorder.called:
        await recorder.called.wait_for(lambda: len(recorder.batches) >= count)


async def test_calls_made_during_a_flush_share_the_next_one() -> None:
    recorder = Recorder()
    call = Coalescer(recorder)
    first = asyncio.create_task(call("a", 1))
    await started(recorder, 1)
    others = [asyncio.create_task(call("a", n)) for n in range(2, 7)]
    await asyncio.sleep(0)
    recorder.approval.set()
    assert await first == 10
    assert await asyncio.gather(*others) == [20, 30, 40, 50, 60]
    assert recorder.batches == [("a", [1]), ("a", [2, 3, 4, 5, 6])]


async def test_an_idle_call_is_sent_alone_and_immediately() -> None:
    recorder = Recorder()
    recorder.approval.set()
    call = Coalescer(recorder)
    assert [await call("a", n) for n in (1, 2, 3)] == [10, 20, 30]
    assert [len(items) for _, items in recorder.batches] == [1, 1, 1]


async def test_keys_are_never_mixed() -> None:
    recorder = Recorder()
    call = Coalescer(recorder)
    tasks = [asyncio.create_task(call(key, n)) for n, key in enumerate("abab")]
    await started(recorder, 2)
    recorder.approval.set()
    assert await asyncio.gather(*tasks) == [0, 10, 20, 30]
    assert sorted(recorder.batches) == [("a", [0, 2]), ("b", [1, 3])]


async def test_a_failed_batch_is_repeated_one_by_one() -> None:
    recorder = Recorder()
    recorder.poison = {3}
    call = Coalescer(recorder)
    tasks = [asyncio.create_task(call("a", n)) for n in range(5)]
    recorder.approval.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [a for a in answers if not isinstance(a, BaseException)] == [0, 10, 20, 40]
    assert isinstance(answers[3], ValueError)


async def test_a_caller_that_is_cancelled_cancels_no_other() -> None:
    recorder = Recorder()
    call = Coalescer(recorder)
    gone = asyncio.create_task(call("a", 1))
    stays = asyncio.create_task(call("a", 2))
    await started(recorder, 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    recorder.approval.set()
    assert await stays == 20


async def test_a_batch_never_exceeds_its_limit() -> None:
    recorder = Recorder()
    recorder.approval.set()
    call = Coalescer(recorder, most=4)
    assert await asyncio.gather(*(call("a", n) for n in range(10))) == [n * 10 for n in range(10)]
    assert [len(items) for _, items in recorder.batches] == [4, 4, 2]
