"""Just a queue, over the same engine."""

from __future__ import annotations

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.errors import LeaseLost
from interlock.testing import MemoryApp
from tests.support.apps import StoreApp
from tests.support.stores import ManualClock


async def test_what_is_pushed_is_popped_in_its_order_and_acknowledged(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    first, second = await queue.push_many([{"to": "ada"}, ["any", 1, None]])
    urgent = await queue.push("urgent", priority=5)
    assert await queue.size() == 3
    popped = [await queue.pop() for _ in range(3)]
    assert [(message.id, message.value) for message in popped if message] == [
        (urgent, "urgent"),
        (first, {"to": "ada"}),
        (second, ["any", 1, None]),
    ]
    assert (await queue.size(), await queue.pop()) == (0, None)
    assert popped[0] is not None
    await queue.ack(popped[0], {"sent": True})
    job = await app.job(urgent)
    assert (job.status, job.result) == (Status.SUCCEEDED, '{"sent":true}')


async def test_a_message_that_is_not_acknowledged_comes_back(app: StoreApp, clock: ManualClock) -> None:
    queue = interlock.Queue("mail", app)
    await queue.push(1)
    (lost,) = await queue.pop_many(10, lease_seconds=10)
    clock.advance(9)
    assert await queue.extend(lost) is False
    clock.advance(9)
    assert await queue.pop() is None
    clock.advance(2)
    again = await queue.pop()
    assert again is not None
    assert (again.id, again.attempt) == (lost.id, 2)
    with pytest.raises(LeaseLost):
        await queue.ack(lost)
    with pytest.raises(LeaseLost):
        await queue.extend(lost)
    await queue.ack(again)


async def test_a_message_is_refused_until_its_attempts_are_used_up_or_put_back_for_nothing(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    id = await queue.push(1, max_attempts=1)
    message = await queue.pop()
    assert message is not None
    await queue.put_back(message)
    message = await queue.pop()
    assert message is not None
    assert message.attempt == 1
    await queue.nack(message, "no such address")
    job = await app.job(id)
    assert (job.status, "no such address" in (job.error or "")) == (Status.DEAD_LETTER, True)


def test_a_queue_works_in_blocking_programs_too(interlock_app: MemoryApp) -> None:
    queue = interlock.Queue("mail", interlock_app)
    assert queue.size_sync() == 0
    queue.push_sync("hello")
    message = queue.pop_sync()
    assert message is not None
    assert message.value == "hello"
    queue.ack_sync(message)
