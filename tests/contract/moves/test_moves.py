"""A tenant on another shard is the same tenant: everything that was there is, and goes on where it was."""

from __future__ import annotations

import asyncio
import hashlib

import asyncpg
import pytest

from interlock.domain.job import Enqueued, Filter
from interlock.domain.progress import SMALLEST_ID, FeedPosition
from interlock.domain.registry import Agent, JobType
from interlock.domain.token import NewToken
from interlock.domain.worker_presence import WorkerSeen
from interlock.errors import Conflict, Forbidden, Invalid, NotFound, TenantMoved, Unavailable
from interlock.storage.contract import Terms
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.admin_connection import Owner
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.sharded_store import ShardedStore
from interlock.storage.shards.tenant_copy import CopyDiffers
from interlock.storage.shards.tenant_move import Moved, Mover
from interlock.wire import new_id
from tests.contract.approvals import command, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import Desk, ask, complete, heartbeat, new_job
from tests.contract.moves.moving import Stop, home_of, move
from tests.contract.progress import event, keep, report, step, tell
from tests.contract.test_prune import prune
from tests.contract.webhooks import heard, listen
from tests.support.eventually import eventually
from tests.support.shards import resident
from tests.support.stores import ManualClock

START = FeedPosition(0, 0, SMALLEST_ID, 0)


async def test_everything_a_tenant_has_comes_along_and_goes_on(remote: Desk, owners: dict[str, str]) -> None:
    store, tenant = remote.store, remote.tenant
    await store.set_agent(tenant, Agent("planner", "one", max_concurrency=1))
    await store.set_type(tenant, JobType("work", schema="{}"))
    terms = Terms(registry=(await store.registry(tenant)).version)
    jobs = [new_job(idempotency_key=f"k{i}", body_sha256=b"x", agent_kind="planner", agent_id="one") for i in range(3)]
    created = [answer.id for answer in await store.enqueue(tenant, jobs, terms=terms) if isinstance(answer, Enqueued)]
    (held,) = await remote.claim(limit=5, lease_seconds=600)
    await keep(remote, step(held))
    (kept,) = await show(remote, file(held))
    assert await tell(remote, report(held, event("one"))) == (1,)
    await eventually(lambda: _fed(remote, START, ["one"]))
    position = (await store.feed(tenant, START, limit=10))[-1].position
    others = [new_job(type="other"), new_job(type="other")]
    await store.enqueue(tenant, others, terms=terms)
    asking, ended = await remote.claim(limit=2, types=frozenset({"other"}))
    _, approval = await waiting(remote, job=asking)
    await remote.do(complete(ended, result='"done"'))
    await listen(remote, "job.succeeded")
    hash = hashlib.sha256(tenant.encode()).digest()
    await store.create_tokens(tenant, [NewToken(new_id(), hash, ("read",), "user:ada")])
    before = {job.id: await remote.trace(job.id) for job in await store.find(tenant, Filter())}
    stats, head = await store.stats(tenant), await store.head()

    assert await home_of(remote) == "a"
    moved = await move(owners, remote, "b")
    assert moved == (tenant, "a", "b", 5, sum(job.version for job, _ in before.values()))
    assert await home_of(remote) == "b"

    assert {id: await remote.trace(id) for id in before} == before
    assert await store.stats(tenant) == stats
    assert await store.head() == head
    assert (await listed(remote, held), await store.artifact_home(tenant, kept.id)) == ([kept], held.id)
    await remote.verify()
    again = await store.enqueue(tenant, [job._replace(id=new_id()) for job in jobs], terms=terms)
    assert [(a.id, a.replayed) for a in again if isinstance(a, Enqueued)] == [(id, True) for id in created]
    assert await store.find_token(hash) is not None
    assert (await remote.heartbeat(heartbeat(held)))[0].cancel_requested is False
    assert await remote.claim(types=frozenset({"work"})) == []  # the only place of the agent is taken
    assert await tell(remote, report(held, event("two"))) == (2,)
    await eventually(lambda: _fed(remote, position, ["two"]))
    await decided(remote, command(approval))
    await remote.do(complete(held))
    assert await heard(remote) == ["job.succeeded"]
    (next_one,) = await remote.claim(types=frozenset({"work"}))
    assert next_one.id == created[1]
    (newest,) = await store.enqueue(tenant, [new_job()], terms=terms)
    assert isinstance(newest, Enqueued)
    assert newest.seq > max(job.seq for job, _ in before.values())
    await remote.verify()


async def test_a_tenant_that_comes_back_is_at_home_again(remote: Desk, owners: dict[str, str]) -> None:
    ids = [await remote.add() for _ in range(5)]
    for target in ("b", "a", "b"):
        await move(owners, remote, target)
        ids.append(await remote.add(affinity_key=target))
        (job,) = await remote.claim()
        await remote.do(complete(job))
    assert sorted(job.id for job in await remote.store.find(remote.tenant, Filter())) == sorted(ids)
    await remote.verify()
    assert (await move(owners, remote, "b")).jobs == 0


async def test_a_router_with_an_old_map_is_refused_and_looks_again(
    remote: Desk, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    stale = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=1e9)
    try:
        beside = Desk(stale, remote.tenant, clock)
        first = await beside.add(idempotency_key="k")
        await move(owners, remote, "b")
        (again,) = await stale.enqueue(remote.tenant, [new_job(idempotency_key="k")])
        assert isinstance(again, Enqueued)
        assert (again.id, again.replayed) == (first, True)
        assert [job.id for job in await beside.claim(limit=2)] == [first]
        assert await home_of(beside) == "b"
    finally:
        await stale.close()


async def test_a_transaction_that_sees_the_past_cannot_add_a_job_where_the_tenant_was(
    remote: Desk, owners: dict[str, str], addresses: dict[str, str]
) -> None:
    await remote.add()
    connection = await asyncpg.connect(addresses["a"])
    alone = await PostgresStore.open(addresses["a"], size=1)
    try:
        await connection.execute("begin isolation level repeatable read")
        assert await connection.fetchval("select 1 from pg_class limit 1") == 1  # the past begins here
        await move(owners, remote, "b")
        with pytest.raises((asyncpg.SerializationError, TenantMoved)):
            await alone.enqueue_within(connection, remote.tenant, [new_job()])
    finally:
        await alone.close()
        await connection.close()


async def test_a_tenant_that_has_nothing_yet_is_moved_too(remote: Desk, owners: dict[str, str]) -> None:
    assert await home_of(remote) == "a"
    assert (await move(owners, remote, "b")).jobs == 0
    id = await remote.add()
    assert (await move(owners, remote, "a")).jobs == 1
    assert await remote.job(id)


async def test_jobs_are_not_deleted_while_their_tenant_is_copied(
    remote: Desk, owners: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.storage.shards.routing.MOVE_SECONDS", 0.0)
    await remote.do(complete(await remote.running()))
    remote.clock.advance(8 * 86_400)
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="leaving")
    with pytest.raises(TenantMoved):
        await prune(remote)
    await move(owners, remote, "b")
    assert (await prune(remote)).deleted == 1


async def test_a_tenant_between_two_shards_keeps_no_sweep_waiting(remote: Desk, owners: dict[str, str]) -> None:
    beside = Desk(remote.store, resident("a", f"{remote.tenant}-beside"), remote.clock)
    for one in (remote, beside):
        await listen(one, "job.queued")
        await one.running(lease_seconds=5)
        await one.add(deadline=one.after(5), type="late")
        await waiting(one, job=await one.running(type="asks"), expires_in_seconds=5)
    remote.clock.advance(6)
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="gone")
    store = remote.store
    sweeps = (store.due_leases, store.due_deadlines, store.due_approvals, store.outbox.due_channels)
    assert [{due.tenant for due in await sweep(1_000)} & {remote.tenant, beside.tenant} for sweep in sweeps] == [
        {beside.tenant}
    ] * 4
    await move(owners, remote, "b")
    for sweep in sweeps:
        assert {remote.tenant, beside.tenant} <= {due.tenant for due in await sweep(1_000)}


async def test_what_was_written_after_a_tenant_had_left_is_not_in_its_way_back(
    remote: Desk, owners: dict[str, str]
) -> None:
    await remote.store.note_workers(remote.tenant, [WorkerSeen("w1", (ask(),))])
    await move(owners, remote, "b")
    old = await asyncpg.connect(owners["a"])
    try:
        await old.execute("select interlock.note_workers($1, '{w1}', '{[]}')", remote.tenant)
    finally:
        await old.close()
    await move(owners, remote, "a")
    assert [worker.name for worker in await remote.store.workers(remote.tenant, limit=10)] == ["w1"]


async def test_a_tenant_that_lives_in_two_databases_is_not_moved_until_somebody_says_which_counts(
    remote: Desk, owners: dict[str, str]
) -> None:
    id = await remote.add()
    await move(owners, remote, "b")
    old, new = await asyncpg.connect(owners["a"]), await asyncpg.connect(owners["b"])
    try:
        # As when the first database is of a backup from before the move.
        await old.execute("update interlock.tenant set state = 'here' where tenant = $1", remote.tenant)
        await old.execute("update interlock.placement set shard = 'a' where tenant = $1", remote.tenant)
        with pytest.raises(Conflict, match="lives in both databases"):
            await move(owners, remote, "b")
        assert await new.fetchval("select count(*) from interlock.job where tenant = $1", remote.tenant) == 1
        await old.execute("update interlock.tenant set state = 'gone' where tenant = $1", remote.tenant)
        await old.execute(
            "update interlock.placement set shard = 'b', other = 'a', phase = 'clearing' where tenant = $1",
            remote.tenant,
        )
        await move(owners, remote, "b")
    finally:
        await old.close()
        await new.close()
    assert await remote.job(id)
    await move(owners, remote, "a")
    assert await remote.claimed() == [id]


async def test_tenants_that_pass_each_other_both_arrive(remote: Desk, owners: dict[str, str]) -> None:
    other = Desk(remote.store, resident("b", f"{remote.tenant}-other"), remote.clock)
    for one in (remote, other):
        await one.add()
    passed: list[Moved] = []

    class Meets(Mover):
        async def _lift_epoch(self, old: Owner, new: Owner) -> None:
            await super()._lift_epoch(old, new)
            if not passed:
                passed.append(await move(owners, other, "a"))

    assert (await Meets(owners, stale_seconds=0.02).move(remote.tenant, "b")).jobs == 1
    assert (await home_of(remote), await home_of(other)) == ("b", "a")


async def test_a_history_that_does_not_verify_is_not_moved(remote: Desk, owners: dict[str, str]) -> None:
    ended = await remote.running()
    await remote.do(complete(ended))
    connection = await asyncpg.connect(owners["a"])
    try:
        await connection.execute("set session_replication_role = replica")
        await connection.execute(
            "update interlock.job_history set actor = 'user:mallory' where tenant = $1 and version = 2", remote.tenant
        )
    finally:
        await connection.close()
    with pytest.raises(CopyDiffers, match="the hash does not match"):
        await move(owners, remote, "b")
    assert await home_of(remote) == "a"
    assert await remote.job(ended.id)


async def test_limits_that_a_server_sets_for_everybody_do_not_end_a_move(
    remote: Desk, owners: dict[str, str], shards: dict[str, str]
) -> None:
    await remote.add()
    admin = await asyncpg.connect(owners["a"])
    try:
        for database in shards.values():
            await admin.execute(f"alter database {database} set idle_in_transaction_session_timeout = '1ms'")
        assert (await move(owners, remote, "b")).jobs == 1
    finally:
        for database in shards.values():
            await admin.execute(f"alter database {database} reset idle_in_transaction_session_timeout")
        await admin.close()


async def test_a_move_that_cannot_begin_leaves_nothing_to_be_finished(remote: Desk, owners: dict[str, str]) -> None:
    await remote.add()
    with pytest.raises(Unavailable, match="shard b cannot be reached"):
        await move({**owners, "b": "postgresql://postgres@127.0.0.1:1/nowhere"}, remote, "b")
    assert isinstance(remote.store, ShardedStore)
    (home,) = await remote.store.homes(remote.tenant)
    assert remote.tenant not in await home.run(lambda store: store.moves())


async def test_who_may_move_whom_where(remote: Desk, owners: dict[str, str], addresses: dict[str, str]) -> None:
    await remote.add()
    with pytest.raises(Forbidden, match="superuser"):
        await Mover(addresses).move(remote.tenant, "b")
    with pytest.raises(Invalid, match="no shard 'z'"):
        await move(owners, remote, "z")
    with pytest.raises(NotFound):
        await Mover(owners).move("nobody was ever called so", "b")
    with pytest.raises(Stop):
        await move(owners, remote, "b", until="noted")
    with pytest.raises(Conflict, match="being moved to shard 'b'"):
        await Mover({**owners, "c": owners["b"]}).move(remote.tenant, "c")
    await move(owners, remote, "b")


async def test_one_tenant_is_moved_by_one_mover_at_a_time(remote: Desk, owners: dict[str, str]) -> None:
    await remote.add()
    outcomes = await asyncio.gather(*(move(owners, remote, "b") for _ in range(3)), return_exceptions=True)
    assert [isinstance(one, Moved) for one in outcomes].count(True) >= 1
    assert all(isinstance(one, (Moved, Conflict)) for one in outcomes), outcomes
    assert await home_of(remote) == "b"


async def _fed(remote: Desk, after: FeedPosition, messages: list[str]) -> bool:
    return [fed.event.message for fed in await remote.store.feed(remote.tenant, after, limit=10)] == messages
