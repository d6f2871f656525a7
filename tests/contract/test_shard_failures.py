"""A tenant whose jobs are on several shards, by a map that changes: what was there before still counts."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from interlock.domain.job import Enqueued, Job
from interlock.domain.operations import PruneCommand, PrunedStep
from interlock.domain.registry import JobType
from interlock.domain.retry import SECOND
from interlock.domain.shards import shard_of_id
from interlock.domain.token import NewToken, Token
from interlock.errors import Indeterminate, Invalid
from interlock.storage.contract import Terms
from interlock.storage.parts.workers import MAX_NAMED
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.sharded_store import ShardedStore
from interlock.wire import new_id
from tests.contract.builders import OPERATOR, TenantQueue, complete, new_job
from tests.contract.test_redrive import order
from tests.contract.webhooks import listen
from tests.support.eventually import eventually
from tests.support.postgres import Postgres
from tests.support.shards import SHARDS, wire_to
from tests.support.stores import APP_LOGIN, ManualClock


class Map:
    """The jobs of all tenants are on the named shards; new ones go to the last of them, except some types."""

    def __init__(self) -> None:
        self.names: Sequence[str] = SHARDS
        self.types: dict[str | None, str] = {}

    def queue_shards(self, tenant: str, type: str | None) -> Sequence[str]:
        return self.names

    def current_shard(self, tenant: str, type: str | None) -> str:
        return self.types.get(type, self.names[-1])


@pytest.fixture
def addresses(shards: dict[str, str], postgres: Postgres) -> dict[str, str]:
    return {name: postgres.dsn(database, user=APP_LOGIN) for name, database in shards.items()}


@pytest.fixture
def map() -> Map:
    return Map()


@pytest.fixture
async def queue(addresses: dict[str, str], map: Map, clock: ManualClock, tenant: str) -> AsyncIterator[TenantQueue]:
    """A tenant whose jobs are where the map places them."""
    opened = await open_sharded_store(addresses, supplier=map, size=2, clock=clock)
    try:
        yield TenantQueue(opened, tenant, clock)
    finally:
        await opened.close()


async def on_each(queue: TenantQueue, map: Map, **fields: Any) -> list[str]:
    """A new job on either shard."""
    ids = []
    for names in (SHARDS, SHARDS[::-1]):
        map.names = names
        ids.append(await queue.add(id=new_id(await queue.store.new_job_shard(queue.tenant)), **fields))
    return ids


async def test_a_claim_with_an_id_is_served_by_the_shards_that_respond(
    addresses: dict[str, str], map: Map, clock: ManualClock, tenant: str
) -> None:
    async with wire_to(addresses["b"]) as (wire, near):
        router = await open_sharded_store({**addresses, "b": near}, supplier=map, size=2, clock=clock)
        try:
            queue = TenantQueue(router, tenant, clock)
            await on_each(queue, map)
            wire.cut()

            async def is_down() -> bool:
                return "b" in await router.unreachable()

            await eventually(is_down)
            (job,) = await queue.claim(limit=2, claim_id="named")
            assert shard_of_id(job.id) == 0
        finally:
            wire.restore()
            await router.close()


async def test_a_claim_that_may_have_been_leased_somewhere_does_not_return_nothing(
    queue: TenantQueue, map: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await queue.add()
    claim = PostgresStore.claim
    cut: list[PostgresStore] = []

    async def claim_and_cut(store: PostgresStore, *args: Any, **named: Any) -> list[Job]:
        leased = await claim(store, *args, **named)
        if leased and not cut:
            cut.append(store)
            raise Indeterminate("the connection broke")
        return leased

    monkeypatch.setattr(PostgresStore, "claim", claim_and_cut)
    with pytest.raises(Indeterminate):
        await queue.claim(claim_id="named")
    assert [job.id for job in await queue.claim(claim_id="named")] == [id]


async def test_jobs_are_enqueued_and_redriven_under_types_registered_before_a_shard_was_added(
    queue: TenantQueue, map: Map, addresses: dict[str, str]
) -> None:
    map.names = ("a",)
    old = await queue.running()
    await queue.do(complete(old))
    for _ in range(2):
        await queue.store.registry.set_type(queue.tenant, JobType("work"))
    before = (await queue.store.registry.read(queue.tenant)).version
    map.names = SHARDS
    current = (await queue.store.registry.read(queue.tenant)).version
    assert current != before
    (answer,) = await queue.store.redrive(queue.tenant, [order(old.id)], registry=current)
    assert isinstance(answer, Enqueued)
    map.types["far"] = "a"
    connection = await asyncpg.connect(addresses["a"])
    try:
        async with connection.transaction():
            (answer,) = await queue.store.enqueue_within(
                connection, queue.tenant, [new_job(type="far")], terms=Terms(registry=current)
            )
            assert isinstance(answer, Enqueued)
    finally:
        await connection.close()


async def test_tokens_and_subscriptions_from_before_the_current_shard_changed_are_listed_and_renewed(
    queue: TenantQueue, map: Map
) -> None:
    store, tenant = queue.store, queue.tenant
    tokens, subscriptions = [], []
    for number, names in enumerate((("a",), SHARDS, ("b", "a"))):
        map.names = names
        hash = hashlib.sha256(f"{number} {tenant}".encode()).digest()
        queue.clock.advance(1)
        (token,) = await store.tokens.create(tenant, [NewToken(new_id(), hash, ("read",), "user:ada")])
        assert isinstance(token, Token)
        tokens.append(token.id)
        subscriptions.append((await listen(queue, "job.succeeded")).id)
    map.names = SHARDS
    listed: list[str] = []
    while page := await store.tokens.page(tenant, before=listed[-1] if listed else None, limit=2):
        listed += [token.id for token in page]
    assert listed == tokens[::-1]
    listed = []
    while known := await store.outbox.subscriptions(tenant, before=listed[-1] if listed else None, limit=2):
        listed += [subscription.id for subscription in known]
    assert listed == sorted(subscriptions, reverse=True)
    for id in subscriptions:
        assert await store.outbox.subscription(tenant, id) is not None
        assert await store.outbox.renew(tenant, id, 60.0) is not None


async def test_the_first_jobs_of_a_worker_are_named_on_any_shard(queue: TenantQueue, map: Map) -> None:
    for _ in range(MAX_NAMED):
        await on_each(queue, map)
    ids = [job.id for job in await queue.claim(limit=2 * MAX_NAMED)]
    (worker,) = await queue.store.workers.page(queue.tenant, limit=10)
    assert (worker.running, list(worker.job_ids)) == (2 * MAX_NAMED, sorted(ids)[:MAX_NAMED])


async def ended_on_each(queue: TenantQueue, map: Map) -> int:
    """Two jobs on either shard that have ended; the time when they had."""
    for _ in range(2):
        await on_each(queue, map)
    for job in await queue.claim(limit=4):
        await queue.do(complete(job))
    queue.clock.advance(10)
    return queue.clock.now - SECOND


async def test_a_prune_over_several_shards_deletes_at_most_its_limit(queue: TenantQueue, map: Map) -> None:
    three = PruneCommand(new_id(), OPERATOR, await ended_on_each(queue, map), 0, 100, False, 3)
    step = await queue.store.prune(queue.tenant, three)
    assert (step.deleted, step.at_end) == (3, False)
    step = await queue.store.prune(queue.tenant, three._replace(id=new_id(), after_seq=step.last_seq))
    assert (step.deleted, step.at_end) == (1, True)


async def test_a_dry_run_counts_each_job_once_over_several_shards(queue: TenantQueue, map: Map) -> None:
    cutoff = await ended_on_each(queue, map)
    for most, expected in ((None, 4), (3, 3)):
        counted, step = 0, PrunedStep(0, 0, False)
        while not step.at_end and (most is None or counted < most):
            left = None if most is None else most - counted
            step = await queue.store.prune(
                queue.tenant, PruneCommand(new_id(), OPERATOR, cutoff, step.last_seq, 1, True, left)
            )
            counted += step.deleted
        assert counted == expected


async def test_a_supplier_that_misplaces_current_tenants_is_rejected_at_startup(
    queue: TenantQueue, map: Map, addresses: dict[str, str]
) -> None:
    await queue.add()
    assert isinstance(queue.store, ShardedStore)
    map.names = ("a", "z")
    with pytest.raises(Invalid, match="jobs are mapped to shard 'z', which the settings do not name"):
        await open_sharded_store(addresses, supplier=map)
