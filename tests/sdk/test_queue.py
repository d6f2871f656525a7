"""Just a queue, over the same engine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

import interlock
from interlock.client.local import LocalClient, LocalWork
from interlock.client.port import Client, LeasedJob
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.errors import AlreadyFinished, Indeterminate, Invalid, LeaseLost, TooLarge
from interlock.sdk.app import App
from interlock.sdk.queue import Item
from interlock.testing import MemoryApp
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock


async def pop(queue: interlock.Queue) -> Item:
    item = await queue.pop()
    assert item is not None
    return item


async def test_pushed_values_are_popped_in_order_and_acknowledged(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    first, second = await queue.push_many([{"to": "ada"}, ["any", 1, None]])
    urgent = await queue.push("urgent", priority=5)
    assert await queue.size() == 3
    popped = [await pop(queue), *await queue.pop_many(10)]
    assert [(item.id, item.payload) for item in popped] == [
        (urgent, "urgent"),
        (first, {"to": "ada"}),
        (second, ["any", 1, None]),
    ]
    assert (await queue.size(), await queue.pop()) == (0, None)
    await popped[0].ack({"sent": True})
    job = await app.job(urgent)
    assert (job.status, job.result) == (Status.SUCCEEDED, '{"sent":true}')


@pytest.mark.parametrize("limit", [0, 101])
async def test_a_pop_of_zero_or_more_than_a_hundred_is_rejected(app: StoreApp, limit: int) -> None:
    with pytest.raises(Invalid, match="limit must be from 1 to 100"):
        await interlock.Queue("mail", app).pop_many(limit)


async def test_other_types_and_jobs_with_requirements_are_not_popped(app: StoreApp) -> None:
    mail, other = interlock.Queue("mail", app), interlock.Queue("other", app)
    await other.push(1)
    await mail.push(2, requires=["gpu"])
    assert await mail.pop() is None
    assert (await mail.size(), await other.size(), await interlock.Queue("third", app).size()) == (1, 1, 0)


async def test_a_leased_item_is_kept_alive_and_learns_of_its_cancellation(app: StoreApp, clock: ManualClock) -> None:
    queue = interlock.Queue("mail", app, lease=1.5)
    id = await queue.push(1)
    item = await pop(queue)
    for _ in range(3):
        clock.advance(1)

        async def moved_on(until: int = clock.now + 1_500_000) -> bool:
            return (await app.job(id)).lease_expires_at == until

        await eventually(moved_on)
    assert await queue.pop() is None
    await app.engine.jobs.cancel(local(TENANT), id)

    async def reported() -> bool:
        return item.is_unwanted

    await eventually(reported)
    await item.nack()
    assert (await app.job(id)).status == Status.CANCELLED


async def test_an_abandoned_item_is_redelivered_when_its_lease_expires(app: StoreApp, clock: ManualClock) -> None:
    queue = interlock.Queue("mail", app, lease=10)
    id = await queue.push(1)
    await pop(queue)
    gc.collect()
    again = None
    for _ in range(20):  # a heartbeat in flight may have extended it once more
        clock.advance(10)
        again = again or await queue.pop()
    assert again is not None
    assert (again.id, again.attempt) == (id, 2)


async def test_an_item_with_a_lost_lease_cannot_be_settled(app: StoreApp, clock: ManualClock) -> None:
    queue, rival = interlock.Queue("mail", app, lease=3), interlock.Queue("mail", app)
    await queue.push(1)
    lost = await pop(queue)
    current = None
    while current is None:  # a heartbeat in flight may have extended it once more
        clock.advance(3)
        current = await rival.pop()
    for settle in (lost.ack, lost.nack, lost.release):
        with pytest.raises(LeaseLost):
            await settle()
    assert lost.is_lost
    assert not lost.is_settled
    await current.ack()


async def test_an_item_whose_result_is_too_large_is_not_lost_and_can_be_settled_again(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    await queue.push(1)
    item = await pop(queue)
    with pytest.raises(TooLarge):
        await item.ack("x" * 300_000)
    assert (item.is_lost, item.is_settled) == (False, False)
    await item.nack("its answer is too large")
    assert item.is_settled


async def test_an_item_is_settled_once_and_a_repeat_changes_nothing(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    await queue.push(1)
    item = await pop(queue)
    await item.ack()
    await item.ack()
    with pytest.raises(AlreadyFinished):
        await item.nack()


async def test_a_nack_uses_an_attempt_and_a_release_does_not(app: StoreApp, clock: ManualClock) -> None:
    queue = interlock.Queue("mail", app)
    id = await queue.push(1, max_attempts=2)
    await (await pop(queue)).release()
    await (await pop(queue)).release(delay=5)
    assert (await queue.pop(), await queue.size()) == (None, 1)
    clock.advance(5)
    item = await pop(queue)
    assert item.attempt == 1
    await item.nack("no such address", delay=60)
    assert await queue.pop() is None
    clock.advance(60)
    await (await pop(queue)).nack("no such address")
    job = await app.job(id)
    assert (job.status, "no such address" in (job.error or "")) == (Status.DEAD_LETTER, True)


async def test_a_with_block_acknowledges_its_item(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    id = await queue.push(7)
    async with queue.consume() as item:
        assert item is not None
        assert item.payload == 7
        assert (await app.job(id)).status == Status.RUNNING
    assert (await app.job(id)).status == Status.SUCCEEDED
    async with queue.consume() as nothing:
        assert nothing is None


async def test_a_with_block_that_raises_rejects_its_item_unless_it_is_settled(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    id = await queue.push(1, max_attempts=1)
    with pytest.raises(OSError, match="no route"):
        async with queue.consume():
            raise OSError("no route")
    job = await app.job(id)
    assert (job.status, job.error) == (Status.DEAD_LETTER, '{"message":"no route","kind":"OSError"}')
    id = await queue.push(1)
    async with queue.consume() as item:
        assert item is not None
        await item.release(delay=60)
    assert (await app.job(id)).status == Status.QUEUED


async def test_a_cancelled_with_block_releases_its_item(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    id = await queue.push(1)
    inside = asyncio.Event()

    async def work() -> None:
        async with queue.consume():
            inside.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    await asyncio.wait([working])
    job = await app.job(id)
    assert (working.cancelled(), job.status, job.attempt) == (True, Status.QUEUED, 1)


async def test_a_pop_waits_for_a_push(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    waiting = asyncio.create_task(queue.pop(wait=None))

    async def is_there() -> bool:
        return bool(await app.engine.workers.seen(TENANT))

    await eventually(is_there)
    id = await queue.push("late")
    item = await asyncio.wait_for(waiting, RETRY_SECONDS)
    assert item is not None
    assert item.id == id


async def test_a_cancelled_pop_leases_nothing(app: StoreApp) -> None:
    queue = interlock.Queue("mail", app)
    for _ in range(20):
        id = await queue.push(1)
        popping = asyncio.create_task(queue.pop(wait=30))
        await asyncio.sleep(0)
        popping.cancel()
        await asyncio.wait([popping])
        assert popping.cancelled()
        job = await app.job(id)
        assert (job.status, job.attempt) == (Status.QUEUED, 1)
        await (await pop(queue)).ack()


async def test_a_pop_whose_response_was_lost_is_released_by_the_next(app: StoreApp) -> None:
    class DeafWork(LocalWork):
        """Does not hear the answer of its first claim."""

        heard = False

        async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
            leases = await super().claim(ask, wait_seconds=wait_seconds)
            if not self.heard:
                self.heard = True
                raise Indeterminate("the connection broke")
            return leases

    async def connect() -> Client:
        client = LocalClient(app.engine, local(TENANT))
        client.work = DeafWork(app.engine, local(TENANT))
        return client

    queue = interlock.Queue("mail", App(connect))
    ids = await queue.push_many([1, 2])
    with pytest.raises(Indeterminate):
        await queue.pop_many(2)
    assert [(await app.job(id)).status for id in ids] == [Status.RUNNING] * 2
    item = await pop(queue)
    assert (item.id, item.attempt) == (ids[0], 1)
    assert (await app.job(ids[1])).status == Status.QUEUED
    await item.ack()


async def test_pops_use_few_claim_ids(app: StoreApp) -> None:
    seen: set[str | None] = set()

    class WatchedWork(LocalWork):
        async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
            seen.add(ask.claim_id)
            return await super().claim(ask, wait_seconds=wait_seconds)

    async def connect() -> Client:
        client = LocalClient(app.engine, local(TENANT))
        client.work = WatchedWork(app.engine, local(TENANT))
        return client

    queue = interlock.Queue("mail", App(connect))
    await queue.push_many(range(20))
    for _ in range(10):
        items: Sequence[Item] = await queue.pop_many(2)
        assert len({item.id for item in items}) == 2
        for item in items:
            await item.ack()
    assert await queue.pop() is None
    assert await queue.pop() is None
    assert len(seen) == 1


def test_a_queue_at_a_url_works_in_synchronous_programs(tmp_path: Path) -> None:
    queue = interlock.Queue("mail", f"sqlite:///{tmp_path}/queue.db")
    assert queue.size_sync() == 0
    queue.push_sync("hello")
    item = queue.pop_sync(wait=5)
    assert item is not None
    assert (item.payload, queue.size_sync()) == ("hello", 0)
    item.release_sync()
    with queue.consume() as again:
        assert again is not None
        assert (again.id, again.attempt) == (item.id, 1)
    assert queue.pop_sync() is None
    queue.close_sync()


def test_a_queue_in_memory_is_for_tests(interlock_app: MemoryApp) -> None:
    queue = interlock.Queue("mail", interlock_app)
    queue.push_sync(1)
    item = queue.pop_sync()
    assert item is not None
    item.ack_sync()

    async def ended() -> list[Status]:
        return [job.status for job in await (await interlock_app._client()).jobs.list(Filter())]

    assert asyncio.run(ended()) == [Status.SUCCEEDED]


async def test_a_queue_without_a_url_uses_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "interlock.toml").write_text('database = "sqlite:///from-the-file.db"\ntenant = "ours"\n')
    queue = interlock.Queue("mail")
    await queue.push(1)
    await queue.close()
    monkeypatch.setenv("INTERLOCK_DATABASE", f"sqlite:///{tmp_path}/from-the-environment.db")
    other = interlock.Queue("mail")
    assert await other.size() == 0
    await other.close()
    named = interlock.Queue("mail", f"sqlite:///{tmp_path}/from-the-file.db", tenant="ours")
    assert await named.size() == 1
    await named.close()
