"""Just a queue, over HTTP: the same as in process."""

from __future__ import annotations

import asyncio

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.errors import Forbidden, LeaseLost
from interlock.sdk.queue import Item
from tests.api.rig import Api
from tests.contract_clients.test_app import token_for


async def pop(queue: interlock.Queue) -> Item:
    item = await queue.pop(wait=60)
    assert item is not None
    return item


async def status(api: Api, tenant: str, id: str) -> Status:
    return (await api.engine.queries.job(tenant, id)).status


async def test_values_are_pushed_and_popped_through_a_server(api: Api, tenant: str) -> None:
    queue = interlock.Queue("mail", api.url)
    first, second = await queue.push_many([{"to": "ada"}, ["any", 1, None]])
    urgent = await queue.push("urgent", priority=5)
    popped = [await pop(queue), *await queue.pop_many(10)]
    assert [(item.id, item.payload) for item in popped] == [
        (urgent, "urgent"),
        (first, {"to": "ada"}),
        (second, ["any", 1, None]),
    ]
    assert (await queue.size(), await queue.pop()) == (0, None)
    await popped[0].ack({"sent": True})
    await popped[1].nack("nobody there", delay=3600)
    await popped[2].release()
    found = [await status(api, tenant, item.id) for item in popped]
    assert found == [Status.SUCCEEDED, Status.RETRY, Status.QUEUED]
    assert (await pop(queue)).attempt == 1
    await queue.close()


async def test_a_with_block_settles_the_item_it_popped(api: Api, tenant: str) -> None:
    queue = interlock.Queue("mail", api.url)
    id = await queue.push("good")
    async with queue.consume() as item:
        assert item is not None
    assert await status(api, tenant, id) is Status.SUCCEEDED
    id = await queue.push("bad")
    with pytest.raises(ZeroDivisionError):
        async with queue.consume():
            raise ZeroDivisionError
    assert await status(api, tenant, id) is Status.RETRY
    await queue.close()


async def test_an_item_with_a_lost_lease_cannot_be_acknowledged(api: Api, tenant: str) -> None:
    queue = interlock.Queue("mail", api.url)
    await queue.push("mine")
    item = await pop(queue)
    await api.engine.jobs.cancel(local(tenant), item.id, force=True)
    with pytest.raises(LeaseLost):
        await item.ack()
    assert item.is_lost
    await queue.close()


async def test_the_roles_of_a_token_decide_who_may_push_and_pop(guarded: Api) -> None:
    producer = interlock.Queue("mail", guarded.url, token=await token_for(guarded, "produce", "read"))
    worker = interlock.Queue("mail", guarded.url, token=await token_for(guarded, "work", worker="crew"))
    await producer.push(1)
    with pytest.raises(Forbidden):
        await producer.pop()
    item = await pop(worker)
    await item.ack()
    with pytest.raises(Forbidden):
        await worker.push(2)
    await producer.close()
    await worker.close()


async def test_synchronous_code_pushes_and_pops_through_a_server(api: Api) -> None:
    def blocking() -> object:
        queue = interlock.Queue("mail", api.url)
        queue.push_sync({"n": 1})
        with queue.consume(wait=60) as item:
            assert item is not None
            payload = item.payload
        assert queue.size_sync() == 0
        queue.close_sync()
        return payload

    assert await asyncio.to_thread(blocking) == {"n": 1}
