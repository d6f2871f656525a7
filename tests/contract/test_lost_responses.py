"""PostgreSQL has committed a call, and the connection breaks before the response arrives.

Safe calls are repeated; calls whose result would then differ are reported as uncertain. Neither runs twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.domain.decide import Command
from interlock.domain.edit import EditJob
from interlock.domain.job import Rejected
from interlock.domain.registry import Agent, JobType
from interlock.errors import Indeterminate
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from tests.api.toxic_proxy import ToxicProxy
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, fail, release
from tests.contract.test_prune import prune
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock

Act = Callable[[Store], Awaitable[Any]]


@pytest.fixture
def engine() -> str:
    return "postgres"


class Deaf(ToxicProxy):
    """Passes a message on and loses what is answered to it."""

    marker: bytes | None = None  # what stands in that message
    lost = False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.lost:
                self.marker, self.lost = None, False
                return
            self.lost = self.marker is not None and self.marker in data
            writer.write(data)


@asynccontextmanager
async def deaf_store(postgres: Postgres, place: str, clock: ManualClock) -> AsyncIterator[tuple[PostgresStore, Deaf]]:
    line = Deaf(postgres.dsn(place, user=APP_LOGIN))
    server = await asyncio.start_server(line.connected, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    store = await PostgresStore.open(line.dsn, size=1, clock=clock)
    try:
        yield store, line
    finally:
        await store.close()
        server.close()
        await line.close()
        await server.wait_closed()


async def test_a_conditional_edit_is_uncertain_and_not_repeated(
    queue: TenantQueue, postgres: Postgres, place: str
) -> None:
    id = await queue.add()
    async with deaf_store(postgres, place, queue.clock) as (store, line):
        line.marker = b"COMMIT"
        with pytest.raises(Indeterminate):
            await store.carry_out(queue.tenant, [EditJob(id, OPERATOR, priority=5, expected_version=1)])
    job = await queue.job(id)
    assert (job.priority, job.version) == (5, 2)


async def test_an_unconditional_edit_is_repeated(queue: TenantQueue, postgres: Postgres, place: str) -> None:
    id = await queue.add()
    async with deaf_store(postgres, place, queue.clock) as (store, line):
        line.marker = b"COMMIT"
        (answer,) = await store.carry_out(queue.tenant, [EditJob(id, OPERATOR, priority=5)])
    assert not isinstance(answer, Rejected)
    assert (await queue.job(id)).priority == 5


async def test_a_deletion_is_uncertain_and_not_reported_as_not_found(
    queue: TenantQueue, postgres: Postgres, place: str
) -> None:
    tenant = queue.tenant
    await queue.do(complete(await queue.running()))
    queue.clock.advance(10)
    await queue.store.registry.set_agent(tenant, Agent("bot", "obsolete"))
    await queue.store.registry.set_type(tenant, JobType("obsolete"))
    acts: list[Act] = [
        lambda store: store.registry.delete_agent(tenant, "bot", "obsolete"),
        lambda store: store.registry.delete_type(tenant, "obsolete"),
        lambda store: prune(TenantQueue(store, tenant, queue.clock), cutoff=queue.clock.now, actor="user:obsolete"),
    ]
    async with deaf_store(postgres, place, queue.clock) as (store, line):
        for act, marker in zip(acts, (b"COMMIT", b"COMMIT", b"obsolete"), strict=True):
            line.marker = marker
            with pytest.raises(Indeterminate):
                await act(store)
    assert [await act(queue.store) for act in acts[:2]] == [False, False]
    assert (await acts[2](queue.store)).deleted == 0


async def test_a_batch_of_all_kinds_of_commands_is_one_transaction(queue: TenantQueue, master: Any) -> None:
    """So that, should it be run again for a deadlock, nothing of it was done before."""
    jobs = [await queue.running() for _ in range(6)]
    waiting = await queue.add()
    orders: list[Command] = [
        complete(jobs[0]), release(jobs[1]), fail(jobs[2]), cancel(jobs[3].id), cancel(jobs[3].id), complete(jobs[4]),
        EditJob(waiting, OPERATOR, priority=1), EditJob(waiting, OPERATOR, priority=2),
    ]  # fmt: skip
    answers = await queue.store.carry_out(queue.tenant, orders)
    assert not any(isinstance(answer, Rejected) for answer in answers)
    rows = await master.run(
        "select distinct xmin::text from job_history where tenant = $1 and verb not in ('enqueue', 'claim')",
        queue.tenant,
    )
    assert len(rows) == 1


async def test_concurrent_operator_commands_are_sent_separately(queue: TenantQueue, master: Any) -> None:
    """Merged calls run one by one if they fail; a call that may not be repeated is never merged."""
    front = batched(queue.store)
    ids = [await queue.add() for _ in range(5)]
    await asyncio.gather(*(front.carry_out(queue.tenant, [EditJob(id, OPERATOR, priority=1)]) for id in ids))
    rows = await master.run(
        "select distinct xmin::text from job_history where tenant = $1 and verb = 'edit'", queue.tenant
    )
    assert len(rows) == len(ids)
