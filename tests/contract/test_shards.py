"""A router over two shards: where tenants live, what is merged, and what a map that is old or wrong leads to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from interlock.domain.approval import ApprovalFilter
from interlock.domain.job import Enqueued, Filter, Job, NewJob, Rejected
from interlock.domain.registry import Agent, JobType
from interlock.domain.shards import shard_of_id
from interlock.domain.token import NewToken
from interlock.engine.usage_totals import UsageTotals
from interlock.errors import IdempotencyKeyReuse, Invalid, NotFound, TenantMoved, Unavailable
from interlock.storage import history_chain
from interlock.storage.contract import Terms
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.sharded_store import ShardedStore
from interlock.wire import new_id
from tests.contract.approvals import command, decided, waiting
from tests.contract.artifacts import file, show
from tests.contract.builders import NEVER, TenantQueue, complete, new_job
from tests.support.eventually import eventually
from tests.support.postgres import Postgres
from tests.support.shards import SHARDS, resident, wire_to
from tests.support.stores import APP_LOGIN, ManualClock


class Spread:
    """A supplier that has the jobs of all tenants on both shards; new ones go to the one that a test names."""

    def __init__(self) -> None:
        self.current = "a"

    def queue_shards(self, tenant: str, type: str | None) -> Sequence[str]:
        return SHARDS

    def current_shard(self, tenant: str, type: str | None) -> str:
        return self.current


class ByType:
    """Jobs of type left on one shard, all others on the other."""

    async def queue_shards(self, tenant: str, type: str | None) -> Sequence[str]:
        return SHARDS if type is None else [await self.current_shard(tenant, type)]

    async def current_shard(self, tenant: str, type: str | None) -> str:
        return "b" if type == "left" else "a"


@pytest.fixture
def addresses(shards: dict[str, str], postgres: Postgres) -> dict[str, str]:
    return {name: postgres.dsn(database, user=APP_LOGIN) for name, database in shards.items()}


@pytest.fixture
async def router(addresses: dict[str, str], clock: ManualClock) -> AsyncIterator[ShardedStore]:
    """A router that goes by the directory."""
    opened = await open_sharded_store(addresses, size=2, clock=clock)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def spread() -> Spread:
    return Spread()


@pytest.fixture
async def wide(
    addresses: dict[str, str], spread: Spread, clock: ManualClock, tenant: str
) -> AsyncIterator[TenantQueue]:
    """A tenant whose jobs are on both shards."""
    opened = await open_sharded_store(addresses, supplier=spread, size=2, clock=clock)
    try:
        yield TenantQueue(opened, tenant, clock)
    finally:
        await opened.close()


async def created(queue: TenantQueue, type: str | None = None) -> str:
    """A new id, as the engine makes it."""
    return new_id(await queue.store.new_job_shard(queue.tenant, type))


async def on_both(wide: TenantQueue, spread: Spread, count: int = 3) -> list[str]:
    """New jobs, alternately on both shards."""
    ids = []
    for number in range(count * 2):
        spread.current = SHARDS[number % 2]
        ids.append(await wide.add(id=await created(wide)))
    return ids


async def test_each_tenant_is_placed_on_one_shard_and_its_ids_name_it(
    router: ShardedStore, tenant: str, clock: ManualClock, addresses: dict[str, str]
) -> None:
    for no, name in enumerate(SHARDS):
        queue = TenantQueue(router, resident(name, tenant), clock)
        id = await queue.add(id=await created(queue))
        assert shard_of_id(id) == no
        assert (await queue.job(id)).id == id
        for other in SHARDS:
            alone = await PostgresStore.open(addresses[other], size=1)
            try:
                assert [job is not None for job in await alone.get(queue.tenant, [id])] == [other == name]
            finally:
                await alone.close()


async def test_claims_rotate_over_the_shards_of_a_tenant(wide: TenantQueue, spread: Spread) -> None:
    await on_both(wide, spread, 4)
    first = [shard_of_id((await wide.claim())[0].id) for _ in range(8)]
    assert first in ([0, 1] * 4, [1, 0] * 4)
    await on_both(wide, spread)
    assert len(await wide.claim(limit=6)) == 6
    assert await wide.claim() == []


async def test_an_artifact_is_found_by_its_id_on_any_shard(wide: TenantQueue, spread: Spread, tenant: str) -> None:
    await on_both(wide, spread, 1)
    jobs = await wide.claim(limit=2)
    assert {shard_of_id(job.id) for job in jobs} == {0, 1}
    encoded = await show(wide, *(file(job) for job in jobs))
    for current in SHARDS:
        spread.current = current
        assert [await wide.store.artifacts.job_of(tenant, one.id) for one in encoded] == [job.id for job in jobs]
        assert await wide.store.artifacts.job_of(tenant, NEVER) is None
        assert await wide.store.artifacts.job_of(f"{tenant} too", encoded[0].id) is None


async def test_a_repeated_claim_gets_its_jobs_from_any_shard(wide: TenantQueue, spread: Spread) -> None:
    spread.current = "b"
    id = await wide.add()
    (leased,) = await wide.claim(limit=2, claim_id="c1")
    assert leased.id == id
    for current in SHARDS:
        spread.current = current
        await wide.add()
        assert [job.id for job in await wide.claim(limit=2, claim_id="c1")] == [id]


async def test_lists_are_merged_by_cursor_without_a_gap_or_a_duplicate(wide: TenantQueue, spread: Spread) -> None:
    ids = await on_both(wide, spread, 5)
    found: list[str] = []
    seqs: list[int] = []
    while page := await wide.store.find(wide.tenant, Filter(before_seq=seqs[-1] if seqs else None, limit=3)):
        found += [job.id for job in page]
        seqs += [job.seq for job in page]
    assert sorted(found) == sorted(ids)
    assert seqs == sorted(set(seqs), reverse=True)
    histories = await wide.store.audit.histories(wide.tenant, jobs=100)
    assert [export.seq for export in histories] == sorted(seqs)


async def test_counts_of_a_type_are_added_up(wide: TenantQueue, spread: Spread) -> None:
    await on_both(wide, spread, 3)
    first, _ = await wide.claim(limit=2)
    await wide.do(complete(first))
    (stats,) = await wide.store.registry.stats(wide.tenant)
    assert (stats.ready, stats.in_progress, stats.succeeded) == (4, 1, 1)
    (minute,) = await wide.store.registry.minutes(wide.tenant)
    assert minute[2:] == (4, 1, 6, 1, 0)
    await wide.store.registry.pause(wide.tenant, "work", actor="user:ada", reason="rest")
    (stats,) = await wide.store.registry.stats(wide.tenant)
    assert stats.paused_by == "user:ada"
    assert await wide.claim(limit=10) == []


async def test_usage_is_added_up_and_trees_are_followed_over_shards(wide: TenantQueue, spread: Spread) -> None:
    tree: list[Job] = []
    for shard in "abab":
        spread.current = shard
        tree.append(await wide.running(parent_id=tree[-1].id if tree else None))
    for job in reversed(tree):
        await wide.do(complete(job, usage='{"usd": 1.5}'))
    totals = UsageTotals(wide.store)
    for by, name in (("type", "work"), ("tree", tree[0].id)):
        (one,) = await totals.page(wide.tenant, by)
        assert (one.key[0], one.jobs, one.usage) == (name, 4, {"usd": 6.0})


async def test_a_job_is_found_by_its_id_on_any_shard(wide: TenantQueue, spread: Spread) -> None:
    ids = await on_both(wide, spread)
    foreign = await wide.add()  # an id that names no shard of ours
    got = await wide.store.get(wide.tenant, [*ids, NEVER, foreign])
    assert [job and job.id for job in got] == [*ids, None, foreign]
    jobs = await wide.claim(limit=10)
    assert {job.id for job in jobs} == {*ids, foreign}
    receipts = await wide.store.carry_out(wide.tenant, [complete(job) for job in jobs])
    assert [receipt.id for receipt in receipts if not isinstance(receipt, Rejected)] == [job.id for job in jobs]
    assert await wide.store.has_ended(wide.tenant, foreign)
    await wide.verify()


async def test_a_key_used_before_the_current_shard_changed_finds_its_job(wide: TenantQueue, spread: Spread) -> None:
    first = await wide.add(idempotency_key="k", body_sha256=b"one")
    spread.current = "b"
    (again,) = await wide.store.enqueue(
        wide.tenant, [new_job(idempotency_key="k", body_sha256=b"one")]
    )  # fmt: skip
    assert isinstance(again, Enqueued)
    assert (again.id, again.replayed) == (first, True)
    (other,) = await wide.store.enqueue(wide.tenant, [new_job(idempotency_key="k", body_sha256=b"two")])
    assert isinstance(other, Rejected)
    assert isinstance(other.error, IdempotencyKeyReuse)


async def test_new_jobs_are_placed_on_the_current_shard_and_children_beside_their_parent(
    wide: TenantQueue, spread: Spread, addresses: dict[str, str]
) -> None:
    parent = await wide.running(id=await created(wide))
    spread.current = "b"
    child, other = await wide.add_all([new_job(parent_id=parent.id), new_job()])
    where: dict[str, str] = {}
    for name, address in addresses.items():
        alone = await PostgresStore.open(address, size=1)
        try:
            where |= {job.id: name for job in await alone.get(wide.tenant, [parent.id, child, other]) if job}
        finally:
            await alone.close()
    assert where == {parent.id: "a", child: "a", other: "b"}
    await wide.do(complete(parent))
    assert {job.id for job in await wide.claim(limit=9)} == {child, other}


async def test_approvals_and_tokens_are_found_on_any_shard(wide: TenantQueue, spread: Spread) -> None:
    for current in SHARDS:
        spread.current = current
        _, approval = await waiting(wide, job=await wide.running(type=current))
        await decided(wide, command(approval))
        hash = hashlib.sha256(f"{current} {wide.tenant}".encode()).digest()
        (token,) = await wide.store.tokens.create(
            wide.tenant,
            [NewToken(new_id(), hash, ("read",), "user:ada")],
        )
        spread.current = "a"
        seen = await wide.store.tokens.find(hash)
        assert seen is not None
        assert not isinstance(token, Rejected)
        assert seen.token.id == token.id
        (revoked,) = await wide.store.tokens.revoke(wide.tenant, [token.id], actor="user:ada")
        assert not isinstance(revoked, Rejected)
    (unknown,) = await wide.store.tokens.revoke(wide.tenant, [NEVER], actor="user:ada")
    assert isinstance(unknown, Rejected)
    assert isinstance(unknown.error, NotFound)
    approvals = await wide.store.approvals.find(wide.tenant, ApprovalFilter())
    assert len(approvals) == 2


async def test_types_and_agents_are_set_on_every_shard(wide: TenantQueue, spread: Spread) -> None:
    await wide.store.registry.set_type(wide.tenant, JobType("work"))
    await wide.store.registry.set_agent(wide.tenant, Agent("planner", "one", max_concurrency=1))
    registry = await wide.store.registry.read(wide.tenant)
    assert list(registry.types) == ["work"]
    assert [agent.id for agent in await wide.store.registry.agents(wide.tenant, ("", ""), 10)] == ["one"]
    for current in SHARDS:
        spread.current = current
        terms = Terms(registry=(await wide.store.registry.read(wide.tenant)).version)
        jobs = [new_job(agent_kind="planner", agent_id="one") for _ in range(2)]
        answers = await wide.store.enqueue(wide.tenant, jobs, terms=terms)
        assert all(isinstance(answer, Enqueued) for answer in answers)
    assert len(await wide.claim(limit=9)) == 2  # one place on each shard: the limit does not reach across


async def test_a_verification_goes_from_shard_to_shard(wide: TenantQueue, spread: Spread) -> None:
    await on_both(wide, spread, 3)
    jobs, after, parts = 0, None, 0
    while True:
        part = await wide.store.audit.verify_part(wide.tenant, after=after, jobs=2)
        assert part.first_bad is None
        jobs, after, parts = jobs + part.jobs, part.next, parts + 1
        if after is None:
            break
    assert jobs == 6
    assert parts > 2
    with pytest.raises(Invalid):
        await wide.store.audit.verify_part(wide.tenant, after="c/", jobs=2)


async def test_a_head_covers_the_chains_of_all_shards_in_their_order(
    wide: TenantQueue, spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    await on_both(wide, spread, 3)
    jobs = await wide.store.find(wide.tenant, Filter())
    ends = [(wide.tenant, id, (await wide.history(id))[-1].hash) for id in sorted(job.id for job in jobs)]
    assert len(ends) == 6
    monkeypatch.setattr(history_chain, "ENDS_BATCH_SIZE", 2)
    assert await wide.store.audit.head(wide.tenant) == history_chain.head(ends)


async def test_a_supplier_may_place_by_type(addresses: dict[str, str], clock: ManualClock, tenant: str) -> None:
    router = await open_sharded_store(addresses, supplier=ByType(), size=2, clock=clock)
    try:
        queue = TenantQueue(router, tenant, clock)
        ids = [await queue.add(id=await created(queue, type), type=type) for type in ("left", "right")]
        assert [shard_of_id(id) for id in ids] == [1, 0]
        with pytest.raises(Invalid, match="several shards"):
            await router.enqueue(tenant, [new_job(type="left"), new_job(type="right")], whole=True)
        assert {job.id for job in await queue.claim(limit=5)} == set(ids)
    finally:
        await router.close()


async def test_an_unconfigured_shard_is_rejected_at_startup(
    addresses: dict[str, str], router: ShardedStore, tenant: str
) -> None:
    await TenantQueue(router, resident("b", tenant), ManualClock()).add()
    with pytest.raises(Invalid, match="the directory places tenants on shard 'b', which the settings do not name"):
        await open_sharded_store({"a": addresses["a"]})
    with pytest.raises(
        Invalid, match="the settings name a shard 'c' that the directory lacks; run interlock shards add c"
    ):
        await open_sharded_store({**addresses, "c": addresses["b"]})
    with pytest.raises(Invalid, match="the first shard, 'b', must hold the directory, but it is shard 'a'"):
        await open_sharded_store({"b": addresses["a"], "a": addresses["b"]})
    with pytest.raises(Invalid, match="the URL of shard 'b' is that of shard 'a'"):
        await open_sharded_store({"a": addresses["a"], "b": addresses["a"]})
    with pytest.raises(Invalid, match="no package offers a shard supplier named 'nobody'"):
        await open_sharded_store(addresses, supplier="nobody")


async def test_a_supplier_that_names_an_unknown_shard_is_rejected_at_startup(addresses: dict[str, str]) -> None:
    class Lost(Spread):
        def shards(self) -> Sequence[str]:
            return ["a", "z"]

    with pytest.raises(Invalid, match="maps jobs to shard 'z', which the settings do not name"):
        await open_sharded_store(addresses, supplier=Lost())


async def test_a_job_cannot_be_enqueued_in_a_database_without_its_tenant(
    router: ShardedStore, addresses: dict[str, str], tenant: str
) -> None:
    there = resident("b", tenant)
    job = NewJob(new_id(), "work")
    for name, lives in (("a", False), ("b", True)):
        connection = await asyncpg.connect(addresses[name])
        try:
            async with connection.transaction():
                if lives:
                    (answer,) = await router.enqueue_within(connection, there, [job])
                    assert isinstance(answer, Enqueued)
                else:
                    with pytest.raises(TenantMoved):
                        await router.enqueue_within(connection, there, [job])
        finally:
            await connection.close()
    alone = await PostgresStore.open(addresses["a"], size=1)
    try:
        with pytest.raises(TenantMoved):
            await alone.enqueue(there, [NewJob(new_id(), "work")])
    finally:
        await alone.close()


@pytest.mark.parametrize("fault", ["cut", "stall"])
async def test_an_unavailable_shard_does_not_affect_the_others(
    addresses: dict[str, str], tenant: str, clock: ManualClock, fault: str
) -> None:
    async with wire_to(addresses["b"]) as (wire, near):
        router = await open_sharded_store({**addresses, "b": near}, size=2, clock=clock)
        try:
            here, there = (TenantQueue(router, resident(name, tenant), clock) for name in SHARDS)
            await asyncio.gather(here.add(), there.add())
            getattr(wire, fault)()
            pending = asyncio.create_task(there.add())
            await eventually(lambda: _is_down(router))
            with pytest.raises(Unavailable, match="shard b cannot be reached now"):
                await there.claim()
            (job,) = await here.claim(lease_seconds=1.0)
            clock.advance(5)
            assert here.tenant in {due.tenant for due in await router.due_leases(1000)}
            await here.sweep()
            assert (await here.job(job.id)).attempt == 2
            with pytest.raises(Unavailable):  # no shard can rule out that it exists
                await router.tokens.find(hashlib.sha256(b"unknown").digest())
            wire.restore()
            await eventually(lambda: _is_up(router))
            await asyncio.gather(pending, return_exceptions=True)
            assert len(await there.claim()) == 1
        finally:
            wire.restore()
            await router.close()


async def test_a_service_starts_while_a_shard_is_down(
    addresses: dict[str, str], tenant: str, clock: ManualClock
) -> None:
    async with wire_to(addresses["b"]) as (wire, near):
        wire.cut()
        router = await open_sharded_store({**addresses, "b": near}, size=2, clock=clock)
        try:
            await TenantQueue(router, resident("a", tenant), clock).add()
            there = TenantQueue(router, resident("b", tenant), clock)
            with pytest.raises(Unavailable, match="shard b cannot be reached now"):
                await there.add()
            wire.restore()
            await eventually(lambda: _is_up(router))
            await there.add()
        finally:
            await router.close()


async def _is_down(router: ShardedStore) -> bool:
    return "b" in await router.unreachable()


async def _is_up(router: ShardedStore) -> bool:
    return await router.unreachable() == {}
