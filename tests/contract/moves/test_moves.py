"""A tenant on another shard is the same tenant: everything that was there is, and goes on where it was."""

from __future__ import annotations

import asyncio
import hashlib

import asyncpg
import pytest

from interlock.domain.job import Enqueued, Filter
from interlock.domain.progress import SMALLEST_ID, Place
from interlock.domain.registry import Agent, JobType
from interlock.domain.token import NewToken
from interlock.domain.worker_presence import Sighting
from interlock.errors import Conflict, Forbidden, Invalid, NotFound, TenantMoved, Unavailable
from interlock.storage.contract import Terms
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.admin_connection import Owner
from interlock.storage.shards.factory import open_router
from interlock.storage.shards.sharded_store import Router
from interlock.storage.shards.tenant_copy import CopyDiffers
from interlock.storage.shards.tenant_move import Moved, Mover
from interlock.wire import new_id
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import Desk, ask, beat, complete, new_job
from tests.contract.moves.moving import Stop, home_of, move
from tests.contract.progress import event, keep, report, step, tell
from tests.contract.test_prune import prune
from tests.contract.webhooks import heard, listen
from tests.support.eventually import eventually
from tests.support.shards import resident
from tests.support.stores import ManualClock

START = Place(0, 0, SMALLEST_ID, 0)


async def test_everything_a_tenant_has_comes_along_and_goes_on(desk: Desk, owners: dict[str, str]) -> None:
    store, tenant = desk.store, desk.tenant
    await store.set_agent(tenant, Agent("planner", "one", max_concurrency=1))
    await store.set_type(tenant, JobType("work", schema="{}"))
    terms = Terms(registry=(await store.registry(tenant)).version)
    jobs = [new_job(idempotency_key=f"k{i}", body_sha256=b"x", agent_kind="planner", agent_id="one") for i in range(3)]
    born = [answer.id for answer in await store.enqueue(tenant, jobs, terms=terms) if isinstance(answer, Enqueued)]
    (held,) = await desk.claim(limit=5, lease_seconds=600)
    await keep(desk, step(held))
    (kept,) = await show(desk, file(held))
    assert await tell(desk, report(held, event("one"))) == (1,)
    await eventually(lambda: _fed(desk, START, ["one"]))
    place = (await store.feed(tenant, START, limit=10))[-1].place
    others = [new_job(type="other"), new_job(type="other")]
    await store.enqueue(tenant, others, terms=terms)
    asking, ended = await desk.claim(limit=2, types=frozenset({"other"}))
    _, gate = await waiting(desk, job=asking)
    await desk.do(complete(ended, result='"done"'))
    await listen(desk, "job.succeeded")
    hash = hashlib.sha256(tenant.encode()).digest()
    await store.create_tokens(tenant, [NewToken(new_id(), hash, ("read",), "user:ada")])
    before = {job.id: await desk.trace(job.id) for job in await store.find(tenant, Filter())}
    stats, head = await store.stats(tenant), await store.head()

    assert await home_of(desk) == "a"
    moved = await move(owners, desk, "b")
    assert moved == (tenant, "a", "b", 5, sum(job.version for job, _ in before.values()))
    assert await home_of(desk) == "b"

    assert {id: await desk.trace(id) for id in before} == before
    assert await store.stats(tenant) == stats
    assert await store.head() == head
    assert (await listed(desk, held), await store.artifact_home(tenant, kept.id)) == ([kept], held.id)
    await desk.verify()
    again = await store.enqueue(tenant, [job._replace(id=new_id()) for job in jobs], terms=terms)
    assert [(a.id, a.replayed) for a in again if isinstance(a, Enqueued)] == [(id, True) for id in born]
    assert await store.find_token(hash) is not None
    assert (await desk.heartbeat(beat(held)))[0].cancel_requested is False
    assert await desk.claim(types=frozenset({"work"})) == []  # the only place of the agent is taken
    assert await tell(desk, report(held, event("two"))) == (2,)
    await eventually(lambda: _fed(desk, place, ["two"]))
    await decided(desk, ballot(gate))
    await desk.do(complete(held))
    assert await heard(desk) == ["job.succeeded"]
    (next_one,) = await desk.claim(types=frozenset({"work"}))
    assert next_one.id == born[1]
    (newest,) = await store.enqueue(tenant, [new_job()], terms=terms)
    assert isinstance(newest, Enqueued)
    assert newest.seq > max(job.seq for job, _ in before.values())
    await desk.verify()


async def test_a_tenant_that_comes_back_is_at_home_again(desk: Desk, owners: dict[str, str]) -> None:
    ids = [await desk.add() for _ in range(5)]
    for target in ("b", "a", "b"):
        await move(owners, desk, target)
        ids.append(await desk.add(affinity_key=target))
        (job,) = await desk.claim()
        await desk.do(complete(job))
    assert sorted(job.id for job in await desk.store.find(desk.tenant, Filter())) == sorted(ids)
    await desk.verify()
    assert (await move(owners, desk, "b")).jobs == 0


async def test_a_router_with_an_old_map_is_refused_and_looks_again(
    desk: Desk, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    stale = await open_router(addresses, size=2, clock=clock, fresh_seconds=1e9)
    try:
        beside = Desk(stale, desk.tenant, clock)
        first = await beside.add(idempotency_key="k")
        await move(owners, desk, "b")
        (again,) = await stale.enqueue(desk.tenant, [new_job(idempotency_key="k")])
        assert isinstance(again, Enqueued)
        assert (again.id, again.replayed) == (first, True)
        assert [job.id for job in await beside.claim(limit=2)] == [first]
        assert await home_of(beside) == "b"
    finally:
        await stale.close()


async def test_a_transaction_that_sees_the_past_cannot_add_a_job_where_the_tenant_was(
    desk: Desk, owners: dict[str, str], addresses: dict[str, str]
) -> None:
    await desk.add()
    connection = await asyncpg.connect(addresses["a"])
    alone = await PostgresStore.open(addresses["a"], size=1)
    try:
        await connection.execute("begin isolation level repeatable read")
        assert await connection.fetchval("select 1 from pg_class limit 1") == 1  # the past begins here
        await move(owners, desk, "b")
        with pytest.raises((asyncpg.SerializationError, TenantMoved)):
            await alone.enqueue_within(connection, desk.tenant, [new_job()])
    finally:
        await alone.close()
        await connection.close()


async def test_a_tenant_that_has_nothing_yet_is_moved_too(desk: Desk, owners: dict[str, str]) -> None:
    assert await home_of(desk) == "a"
    assert (await move(owners, desk, "b")).jobs == 0
    id = await desk.add()
    assert (await move(owners, desk, "a")).jobs == 1
    assert await desk.job(id)


async def test_jobs_are_not_deleted_while_their_tenant_is_copied(
    desk: Desk, owners: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.storage.shards.routing.MOVE_SECONDS", 0.0)
    await desk.do(complete(await desk.running()))
    desk.clock.advance(8 * 86_400)
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="leaving")
    with pytest.raises(TenantMoved):
        await prune(desk)
    await move(owners, desk, "b")
    assert (await prune(desk)).deleted == 1


async def test_a_tenant_between_two_shards_keeps_no_sweep_waiting(desk: Desk, owners: dict[str, str]) -> None:
    beside = Desk(desk.store, resident("a", f"{desk.tenant}-beside"), desk.clock)
    for one in (desk, beside):
        await listen(one, "job.queued")
        await one.running(lease_seconds=5)
        await one.add(deadline=one.after(5), type="late")
        await waiting(one, job=await one.running(type="asks"), expires_in_seconds=5)
    desk.clock.advance(6)
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="gone")
    store = desk.store
    sweeps = (store.due_leases, store.due_deadlines, store.due_gates, store.outbox.due_channels)
    assert [{due.tenant for due in await sweep(1_000)} & {desk.tenant, beside.tenant} for sweep in sweeps] == [
        {beside.tenant}
    ] * 4
    await move(owners, desk, "b")
    for sweep in sweeps:
        assert {desk.tenant, beside.tenant} <= {due.tenant for due in await sweep(1_000)}


async def test_what_was_written_after_a_tenant_had_left_is_not_in_its_way_back(
    desk: Desk, owners: dict[str, str]
) -> None:
    await desk.store.note_workers(desk.tenant, [Sighting("w1", (ask(),))])
    await move(owners, desk, "b")
    old = await asyncpg.connect(owners["a"])
    try:
        await old.execute("select interlock.note_workers($1, '{w1}', '{[]}')", desk.tenant)
    finally:
        await old.close()
    await move(owners, desk, "a")
    assert [worker.name for worker in await desk.store.workers(desk.tenant, limit=10)] == ["w1"]


async def test_a_tenant_that_lives_in_two_databases_is_not_moved_until_somebody_says_which_counts(
    desk: Desk, owners: dict[str, str]
) -> None:
    id = await desk.add()
    await move(owners, desk, "b")
    old, new = await asyncpg.connect(owners["a"]), await asyncpg.connect(owners["b"])
    try:
        # As when the first database is of a backup from before the move.
        await old.execute("update interlock.tenant set state = 'here' where tenant = $1", desk.tenant)
        await old.execute("update interlock.placement set shard = 'a' where tenant = $1", desk.tenant)
        with pytest.raises(Conflict, match="lives in both databases"):
            await move(owners, desk, "b")
        assert await new.fetchval("select count(*) from interlock.job where tenant = $1", desk.tenant) == 1
        await old.execute("update interlock.tenant set state = 'gone' where tenant = $1", desk.tenant)
        await old.execute(
            "update interlock.placement set shard = 'b', other = 'a', phase = 'clearing' where tenant = $1", desk.tenant
        )
        await move(owners, desk, "b")
    finally:
        await old.close()
        await new.close()
    assert await desk.job(id)
    await move(owners, desk, "a")
    assert await desk.claimed() == [id]


async def test_tenants_that_pass_each_other_both_arrive(desk: Desk, owners: dict[str, str]) -> None:
    other = Desk(desk.store, resident("b", f"{desk.tenant}-other"), desk.clock)
    for one in (desk, other):
        await one.add()
    passed: list[Moved] = []

    class Meets(Mover):
        async def _lift_epoch(self, old: Owner, new: Owner) -> None:
            await super()._lift_epoch(old, new)
            if not passed:
                passed.append(await move(owners, other, "a"))

    assert (await Meets(owners, stale_seconds=0.02).move(desk.tenant, "b")).jobs == 1
    assert (await home_of(desk), await home_of(other)) == ("b", "a")


async def test_a_history_that_does_not_verify_is_not_moved(desk: Desk, owners: dict[str, str]) -> None:
    ended = await desk.running()
    await desk.do(complete(ended))
    connection = await asyncpg.connect(owners["a"])
    try:
        await connection.execute("set session_replication_role = replica")
        await connection.execute(
            "update interlock.job_history set actor = 'user:mallory' where tenant = $1 and version = 2", desk.tenant
        )
    finally:
        await connection.close()
    with pytest.raises(CopyDiffers, match="the hash does not fit"):
        await move(owners, desk, "b")
    assert await home_of(desk) == "a"
    assert await desk.job(ended.id)


async def test_limits_that_a_server_sets_for_everybody_do_not_end_a_move(
    desk: Desk, owners: dict[str, str], shards: dict[str, str]
) -> None:
    await desk.add()
    admin = await asyncpg.connect(owners["a"])
    try:
        for database in shards.values():
            await admin.execute(f"alter database {database} set idle_in_transaction_session_timeout = '1ms'")
        assert (await move(owners, desk, "b")).jobs == 1
    finally:
        for database in shards.values():
            await admin.execute(f"alter database {database} reset idle_in_transaction_session_timeout")
        await admin.close()


async def test_a_move_that_cannot_begin_leaves_nothing_to_be_finished(desk: Desk, owners: dict[str, str]) -> None:
    await desk.add()
    with pytest.raises(Unavailable, match="shard b cannot be reached"):
        await move({**owners, "b": "postgresql://postgres@127.0.0.1:1/nowhere"}, desk, "b")
    assert isinstance(desk.store, Router)
    (home,) = await desk.store.homes(desk.tenant)
    assert desk.tenant not in await home.run(lambda store: store.moves())


async def test_who_may_move_whom_where(desk: Desk, owners: dict[str, str], addresses: dict[str, str]) -> None:
    await desk.add()
    with pytest.raises(Forbidden, match="superuser"):
        await Mover(addresses).move(desk.tenant, "b")
    with pytest.raises(Invalid, match="no shard 'z'"):
        await move(owners, desk, "z")
    with pytest.raises(NotFound):
        await Mover(owners).move("nobody was ever called so", "b")
    with pytest.raises(Stop):
        await move(owners, desk, "b", until="noted")
    with pytest.raises(Conflict, match="on its way to shard 'b'"):
        await Mover({**owners, "c": owners["b"]}).move(desk.tenant, "c")
    await move(owners, desk, "b")


async def test_one_tenant_is_moved_by_one_mover_at_a_time(desk: Desk, owners: dict[str, str]) -> None:
    await desk.add()
    outcomes = await asyncio.gather(*(move(owners, desk, "b") for _ in range(3)), return_exceptions=True)
    assert [isinstance(one, Moved) for one in outcomes].count(True) >= 1
    assert all(isinstance(one, (Moved, Conflict)) for one in outcomes), outcomes
    assert await home_of(desk) == "b"


async def _fed(desk: Desk, after: Place, messages: list[str]) -> bool:
    return [fed.event.message for fed in await desk.store.feed(desk.tenant, after, limit=10)] == messages
