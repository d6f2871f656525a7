"""Single calls share a batch exactly when another is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from interlock.storage.coalescer import Coalescer
from interlock.storage.commit_window import MAX_PASSES, CommitWindow


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


async def test_operations_of_one_batch_are_sent_together_when_the_last_batch_is_done() -> None:
    window = CommitWindow()
    one, other = Recorder(), Recorder()
    call_one, call_other = Coalescer(one, window=window), Coalescer(other, window=window)
    first = asyncio.create_task(call_one("a", 1))
    await started(one, 1)
    others = [asyncio.create_task(call("a", n)) for n in (2, 3) for call in (call_one, call_other)]
    for _ in range(2 * MAX_PASSES):
        await asyncio.sleep(0)
    assert other.batches == []  # although nothing of its own is under way
    one.approval.set()
    other.approval.set()
    assert await first == 10
    assert await asyncio.gather(*others) == [20, 20, 30, 30]
    assert (one.batches, other.batches) == ([("a", [1]), ("a", [2, 3])], [("a", [2, 3])])


async def test_successive_calls_share_a_batch_and_cannot_delay_it_forever() -> None:
    recorder = Recorder()
    call = Coalescer(recorder, window=CommitWindow())
    calls: list[asyncio.Task[int]] = []
    for n in range(3 * MAX_PASSES):
        calls.append(asyncio.create_task(call("a", n)))
        await asyncio.sleep(0)
    recorder.approval.set()
    assert await asyncio.gather(*calls) == [n * 10 for n in range(len(calls))]
    assert 1 < len(recorder.batches[0][1]) < 2 * MAX_PASSES


def test_a_batch_interrupted_with_its_loop_delays_none_on_the_next_loop() -> None:
    window = CommitWindow()

    async def left_behind() -> None:
        recorder = Recorder()
        task = asyncio.create_task(Coalescer(recorder, window=window)("a", 1))
        await started(recorder, 1)
        later = asyncio.create_task(Coalescer(recorder, window=window)("a", 2))
        await asyncio.sleep(0)
        assert not task.done()
        assert not later.done()

    async def next_loop() -> int:
        recorder = Recorder()
        recorder.approval.set()
        return await Coalescer(recorder, window=window)("a", 3)

    asyncio.run(left_behind())
    assert asyncio.run(next_loop()) == 30
