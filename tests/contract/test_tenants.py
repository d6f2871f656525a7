"""Tenants never see each other: a foreign id is answered exactly like an unknown one, by every verb."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interlock.domain.decide import Command
from interlock.domain.job import Filter, Job
from interlock.errors import NotFound
from tests.contract.builders import (
    NEVER,
    OPERATOR,
    TenantQueue,
    cancel,
    cancel_ack,
    complete,
    expire,
    fail,
    heartbeat,
    pass_deadline,
    release,
    revoke,
    save,
)  # fmt: skip

ORDERS: dict[str, Callable[[Job], Command]] = {
    "complete": complete,
    "fail": fail,
    "release": release,
    "cancel_ack": cancel_ack,
    "cancel": lambda job: cancel(job.id),
    "force": lambda job: cancel(job.id, force=True),
    "revoke": lambda job: revoke(job.id),
    "expire": lambda job: expire(job.id),
    "pass_deadline": lambda job: pass_deadline(job.id),
}


@pytest.mark.parametrize("verb", ORDERS)
async def test_no_command_reaches_a_foreign_job(queue: TenantQueue, rival: TenantQueue, verb: str) -> None:
    theirs = await rival.running(lease_seconds=1.0, deadline=rival.after(1))
    await rival.do(cancel(theirs.id))
    queue.clock.advance(60)
    before = await rival.trace(theirs.id)
    foreign = await queue.refused(ORDERS[verb](theirs))
    unknown = await queue.refused(ORDERS[verb](theirs._replace(id=NEVER)))
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert await rival.trace(theirs.id) == before


async def test_no_heartbeat_or_checkpoint_reaches_a_foreign_job(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.running()
    before = await rival.trace(theirs.id)
    queue.clock.advance(1)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(theirs)), NotFound)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(theirs, checkpoint=save(theirs, 1))), NotFound)
    assert isinstance(await queue.checkpoint_rejected(save(theirs, 1)), NotFound)
    assert await rival.trace(theirs.id) == before


async def test_no_read_shows_a_foreign_job(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.add()
    assert await queue.store.get(queue.tenant, [theirs]) == [None]
    assert await queue.history(theirs) == []
    assert await queue.store.find(queue.tenant, Filter()) == []


async def test_two_tenants_may_use_the_same_id(queue: TenantQueue, rival: TenantQueue) -> None:
    id = await queue.add(payload='"mine"')
    assert await rival.add(id=id, payload='"theirs"') == id
    (mine,) = await queue.claim()
    assert mine.payload == '"mine"'
    await queue.do(complete(mine))
    (theirs,) = await rival.claim()
    assert theirs.payload == '"theirs"'
    assert len(await rival.history(id)) == 2
    await queue.verify()
    await rival.verify()


async def test_operations_of_one_tenant_do_not_affect_the_other(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.running(lease_seconds=5.0)
    waiting = await rival.add(deadline=rival.after(5))
    before = [await rival.trace(id) for id in (theirs.id, waiting)]
    queue.clock.advance(10)
    await queue.add()
    await queue.claim(limit=100)
    await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason=None)
    assert [await rival.trace(id) for id in (theirs.id, waiting)] == before


@pytest.mark.parametrize("name", ["a'; drop table job; --", "größe", "🐢", "a/b", "A", "%", "NULL", " "])
async def test_any_tenant_name_is_an_ordinary_name(queue: TenantQueue, name: str) -> None:
    other = TenantQueue(queue.store, f"{queue.tenant}{name}", queue.clock)
    job = await other.running()
    await other.do(complete(job))
    assert (await other.job(job.id)).tenant == other.tenant
    assert await queue.store.find(queue.tenant, Filter()) == []
    await other.verify()
