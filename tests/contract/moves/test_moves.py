"""A tenant on another shard is the same tenant: all its data is there, and its jobs continue."""

from __future__ import annotations

import asyncio
import hashlib
import json

import asyncpg
import msgspec
import pytest

from interlock.domain.approval import ApprovalFilter
from interlock.domain.budget import OnExceed, Per
from interlock.domain.effect import BeginEffect, EffectState, SettleEffect
from interlock.domain.job import Enqueued, Filter, HeartbeatReply
from interlock.domain.message import AwaitMessage, Publish, Published, SendMessage, Sent
from interlock.domain.principal import Principal
from interlock.domain.progress import SMALLEST_ID, FeedPosition
from interlock.domain.registry import Agent, JobType
from interlock.domain.stream import Append, NewChunk
from interlock.domain.token import NewToken
from interlock.domain.worker_presence import WorkerSeen
from interlock.engine.engine import Engine
from interlock.errors import Conflict, Forbidden, Invalid, NotFound, TenantMoved, Unavailable
from interlock.storage.contract import Terms
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.admin_connection import Owner
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.sharded_store import ShardedStore
from interlock.storage.shards.tenant_copy import CopyDiffers
from interlock.storage.shards.tenant_move import Moved, Mover
from interlock.wire import new_id
from interlock.wire.budgets import BudgetRequest
from interlock.wire.schedule import ScheduleRequest
from tests.contract.approvals import command, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import OPERATOR, TenantQueue, ask, complete, fail, heartbeat, new_job, release
from tests.contract.moves.moving import Stop, home_of, move
from tests.contract.progress import append_events, event, keep, report, step
from tests.contract.test_prune import prune
from tests.contract.webhooks import channel, heard, listen, take
from tests.support.eventually import eventually
from tests.support.shards import resident
from tests.support.stores import ManualClock

START = FeedPosition(0, 0, SMALLEST_ID, 0)


async def test_all_data_of_a_tenant_moves_and_its_jobs_continue(queue: TenantQueue, owners: dict[str, str]) -> None:
    store, tenant = queue.store, queue.tenant
    await store.registry.set_agent(tenant, Agent("planner", "one", max_concurrency=1))
    await store.registry.set_type(tenant, JobType("work", schema="{}"))
    terms = Terms(registry=(await store.registry.read(tenant)).version)
    jobs = [new_job(idempotency_key=f"k{i}", body_sha256=b"x", agent_kind="planner", agent_id="one") for i in range(3)]
    created = [answer.id for answer in await store.enqueue(tenant, jobs, terms=terms) if isinstance(answer, Enqueued)]
    (held,) = await queue.claim(limit=5, lease_seconds=600)
    await keep(queue, step(held))
    (kept,) = await show(queue, file(held))
    assert await append_events(queue, report(held, event("one"))) == (1,)
    await eventually(lambda: _fed(queue, START, ["one"]))
    position = (await store.feed(tenant, START, limit=10))[-1].position
    others = [new_job(type="other"), new_job(type="other")]
    await store.enqueue(tenant, others, terms=terms)
    asking, ended = await queue.claim(limit=2, types=frozenset({"other"}))
    _, approval = await waiting(queue, job=asking)
    await queue.do(complete(ended, result='"done"'))
    await listen(queue, "job.succeeded")
    hash = hashlib.sha256(tenant.encode()).digest()
    await store.tokens.create(tenant, [NewToken(new_id(), hash, ("read",), "user:ada")])
    before = {job.id: await queue.trace(job.id) for job in await store.find(tenant, Filter())}
    stats, head = await store.registry.stats(tenant), await store.audit.head()

    assert await home_of(queue) == "a"
    moved = await move(owners, queue, "b")
    assert moved == (tenant, "a", "b", 5, sum(job.version for job, _ in before.values()))
    assert await home_of(queue) == "b"

    assert {id: await queue.trace(id) for id in before} == before
    assert await store.registry.stats(tenant) == stats
    assert await store.audit.head() == head
    assert (await listed(queue, held), await store.artifacts.job_of(tenant, kept.id)) == ([kept], held.id)
    await queue.verify()
    again = await store.enqueue(tenant, [job._replace(id=new_id()) for job in jobs], terms=terms)
    assert [(a.id, a.replayed) for a in again if isinstance(a, Enqueued)] == [(id, True) for id in created]
    assert await store.tokens.find(hash) is not None
    assert (await queue.heartbeat(heartbeat(held)))[0].cancel_requested is False
    assert await queue.claim(types=frozenset({"work"})) == []  # the only place of the agent is taken
    assert await append_events(queue, report(held, event("two"))) == (2,)
    await eventually(lambda: _fed(queue, position, ["two"]))
    await decided(queue, command(approval))
    await queue.do(complete(held))
    assert await heard(queue) == ["job.succeeded"]
    (next_one,) = await queue.claim(types=frozenset({"work"}))
    assert next_one.id == created[1]
    (newest,) = await store.enqueue(tenant, [new_job()], terms=terms)
    assert isinstance(newest, Enqueued)
    assert newest.seq > max(job.seq for job, _ in before.values())
    await queue.verify()


async def test_messages_topics_streams_and_effects_move_with_their_jobs(
    queue: TenantQueue, owners: dict[str, str]
) -> None:
    store, tenant = queue.store, queue.tenant
    listener, watcher, writer = [await queue.running() for _ in range(3)]
    send = SendMessage(listener.id, "m1", OPERATOR, "note", "1")
    await store.messages.send(tenant, send)
    await store.messages.publish(tenant, Publish("old", "t1", OPERATOR, "1", retain_seconds=600))
    await queue.do(release(listener, message=AwaitMessage("note", 1)))
    await queue.do(release(watcher, message=AwaitMessage(None, topic="news")))
    lease = (writer.id, writer.fence, writer.worker or "")
    words = Append(*lease, "words", 0, (NewChunk(b"one", True), NewChunk(b"\xff", False)))
    assert await store.streams.append(tenant, words, limit=1000) == 2
    for name in ("done", "unknown"):
        await store.effects.begin(tenant, BeginEffect(*lease, name, 1, "k"))
    await store.effects.settle(tenant, SettleEffect(*lease, "done", 1, EffectState.DONE, "7"))
    chunks = await store.streams.chunks(tenant, writer.id, "words", after=-1, limit=10)
    effects = await store.effects.of_job(tenant, writer.id, limit=10)

    await move(owners, queue, "b")

    assert await store.streams.chunks(tenant, writer.id, "words", after=-1, limit=10) == chunks
    assert await store.effects.of_job(tenant, writer.id, limit=10) == effects
    assert await store.streams.append(tenant, words, limit=1000) == 2
    assert await store.streams.append(tenant, words._replace(offset=2), limit=1000) == 4
    again = await store.messages.send(tenant, send)
    assert isinstance(again, Sent)
    assert (again.is_new, again.message.payload) == (False, "1")
    assert await queue.claim() == []
    await store.messages.send(tenant, send._replace(message_id="m2"))
    published = Publish("news", "t2", OPERATOR)
    assert await store.messages.publish(tenant, published) == Published("t2", 1)
    assert await store.messages.publish(tenant, published) == Published("t2", 1, is_new=False)
    assert sorted(await queue.claimed(limit=5)) == sorted([listener.id, watcher.id])
    late = await queue.running()
    await queue.do(release(late, message=AwaitMessage(None, topic="old")))
    assert await queue.claimed() == [late.id]  # the message to the topic was retained
    await queue.do(complete(writer))
    await queue.verify()


async def test_notification_channels_move_with_their_tenant(queue: TenantQueue, owners: dict[str, str]) -> None:
    channels, tenant = queue.store.channels, queue.tenant
    new = channel(tags=("x",), min_interval_seconds=0.0)
    made = await channels.set(tenant, new)
    await move(owners, queue, "b")
    assert await channels.get(tenant, "ops") == made
    assert await channels.page(tenant) == [made]
    assert await channels.target(tenant, "ops") == (new.kind, new.address, new.credentials)
    for tags in ((), ("x",)):
        await queue.do(fail(await queue.running(tags=tags), retryable=False))
    assert [(one.url, one.tags) for one in await take(queue)] == [("channel:ops", ("x",))]
    assert await channels.delete(tenant, "ops", actor=OPERATOR)
    assert await channels.page(tenant) == []


async def test_a_tenant_can_move_back(queue: TenantQueue, owners: dict[str, str]) -> None:
    ids = [await queue.add() for _ in range(5)]
    for target in ("b", "a", "b"):
        await move(owners, queue, target)
        ids.append(await queue.add(affinity_key=target))
        (job,) = await queue.claim()
        await queue.do(complete(job))
    assert sorted(job.id for job in await queue.store.find(queue.tenant, Filter())) == sorted(ids)
    await queue.verify()
    assert (await move(owners, queue, "b")).jobs == 0


async def test_a_store_with_a_stale_directory_is_rejected_and_reloads_it(
    queue: TenantQueue, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    stale = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=1e9)
    try:
        beside = TenantQueue(stale, queue.tenant, clock)
        first = await beside.add(idempotency_key="k")
        await move(owners, queue, "b")
        (again,) = await stale.enqueue(queue.tenant, [new_job(idempotency_key="k")])
        assert isinstance(again, Enqueued)
        assert (again.id, again.replayed) == (first, True)
        assert [job.id for job in await beside.claim(limit=2)] == [first]
        assert await home_of(beside) == "b"
    finally:
        await stale.close()


async def test_a_transaction_with_an_old_snapshot_cannot_add_a_job_on_the_old_shard(
    queue: TenantQueue, owners: dict[str, str], addresses: dict[str, str]
) -> None:
    await queue.add()
    connection = await asyncpg.connect(addresses["a"])
    alone = await PostgresStore.open(addresses["a"], size=1)
    try:
        await connection.execute("begin isolation level repeatable read")
        assert await connection.fetchval("select 1 from pg_class limit 1") == 1  # the past begins here
        await move(owners, queue, "b")
        with pytest.raises((asyncpg.SerializationError, TenantMoved)):
            await alone.enqueue_within(connection, queue.tenant, [new_job()])
    finally:
        await alone.close()
        await connection.close()


async def test_a_tenant_without_data_can_be_moved(queue: TenantQueue, owners: dict[str, str]) -> None:
    assert await home_of(queue) == "a"
    assert (await move(owners, queue, "b")).jobs == 0
    id = await queue.add()
    assert (await move(owners, queue, "a")).jobs == 1
    assert await queue.job(id)


async def test_jobs_are_not_deleted_while_their_tenant_is_copied(
    queue: TenantQueue, owners: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.storage.shards.routing.MOVE_SECONDS", 0.0)
    await queue.do(complete(await queue.running()))
    queue.clock.advance(8 * 86_400)
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="leaving")
    with pytest.raises(TenantMoved):
        await prune(queue)
    await move(owners, queue, "b")
    assert (await prune(queue)).deleted == 1


async def test_a_moving_tenant_does_not_block_a_sweep(queue: TenantQueue, owners: dict[str, str]) -> None:
    beside = TenantQueue(queue.store, resident("a", f"{queue.tenant}-beside"), queue.clock)
    for one in (queue, beside):
        await listen(one, "job.queued")
        await one.running(lease_seconds=5)
        await one.add(deadline=one.after(5), type="late")
        await waiting(one, job=await one.running(type="asks"), expires_in_seconds=5)
    queue.clock.advance(6)
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="gone")
    store = queue.store
    sweeps = (store.due_leases, store.due_deadlines, store.approvals.due, store.outbox.due_channels)
    assert [{due.tenant for due in await sweep(1_000)} & {queue.tenant, beside.tenant} for sweep in sweeps] == [
        {beside.tenant}
    ] * 4
    await move(owners, queue, "b")
    for sweep in sweeps:
        assert {queue.tenant, beside.tenant} <= {due.tenant for due in await sweep(1_000)}


async def test_rows_written_after_a_tenant_left_do_not_prevent_its_return(
    queue: TenantQueue, owners: dict[str, str]
) -> None:
    await queue.store.workers.note(queue.tenant, [WorkerSeen("w1", (ask(),))])
    await move(owners, queue, "b")
    old = await asyncpg.connect(owners["a"])
    try:
        await old.execute("select set_config('interlock.tenant', $1, false)", queue.tenant)
        await old.execute(
            "insert into interlock.worker (tenant, name, asks, first_seen_at, last_seen_at) "
            "values ($1, 'w1', '[]', now(), now())",
            queue.tenant,
        )
    finally:
        await old.close()
    await move(owners, queue, "a")
    assert [worker.name for worker in await queue.store.workers.page(queue.tenant, limit=10)] == ["w1"]


async def test_a_tenant_in_two_databases_is_not_moved_until_one_is_chosen(
    queue: TenantQueue, owners: dict[str, str]
) -> None:
    id = await queue.add()
    await move(owners, queue, "b")
    old, new = await asyncpg.connect(owners["a"]), await asyncpg.connect(owners["b"])
    try:
        # As when the first database is of a backup from before the move.
        await old.execute("update interlock.tenant set state = 'here' where tenant = $1", queue.tenant)
        await old.execute("update interlock.placement set shard = 'a' where tenant = $1", queue.tenant)
        with pytest.raises(Conflict, match="exists in both databases"):
            await move(owners, queue, "b")
        assert await new.fetchval("select count(*) from interlock.job where tenant = $1", queue.tenant) == 1
        await old.execute("update interlock.tenant set state = 'gone' where tenant = $1", queue.tenant)
        await old.execute(
            "update interlock.placement set shard = 'b', other = 'a', phase = 'clearing' where tenant = $1",
            queue.tenant,
        )
        await move(owners, queue, "b")
    finally:
        await old.close()
        await new.close()
    assert await queue.job(id)
    await move(owners, queue, "a")
    assert await queue.claimed() == [id]


async def test_tenants_that_swap_shards_both_arrive(queue: TenantQueue, owners: dict[str, str]) -> None:
    other = TenantQueue(queue.store, resident("b", f"{queue.tenant}-other"), queue.clock)
    for one in (queue, other):
        await one.add()
    passed: list[Moved] = []

    class Meets(Mover):
        async def _lift_epoch(self, old: Owner, new: Owner) -> None:
            await super()._lift_epoch(old, new)
            if not passed:
                passed.append(await move(owners, other, "a"))

    assert (await Meets(owners, stale_seconds=0.02).move(queue.tenant, "b")).jobs == 1
    assert (await home_of(queue), await home_of(other)) == ("b", "a")


async def test_an_invalid_history_is_not_moved(queue: TenantQueue, owners: dict[str, str]) -> None:
    ended = await queue.running()
    await queue.do(complete(ended))
    connection = await asyncpg.connect(owners["a"])
    try:
        await connection.execute("set session_replication_role = replica")
        await connection.execute(
            "update interlock.job_history set actor = 'user:mallory' where tenant = $1 and version = 2", queue.tenant
        )
    finally:
        await connection.close()
    with pytest.raises(CopyDiffers, match="the hash does not match"):
        await move(owners, queue, "b")
    assert await home_of(queue) == "a"
    assert await queue.job(ended.id)


async def test_server_wide_timeouts_do_not_end_a_move(
    queue: TenantQueue, owners: dict[str, str], shards: dict[str, str]
) -> None:
    await queue.add()
    admin = await asyncpg.connect(owners["a"])
    try:
        for database in shards.values():
            await admin.execute(f"alter database {database} set idle_in_transaction_session_timeout = '1ms'")
        assert (await move(owners, queue, "b")).jobs == 1
    finally:
        for database in shards.values():
            await admin.execute(f"alter database {database} reset idle_in_transaction_session_timeout")
        await admin.close()


async def test_a_move_that_cannot_begin_leaves_no_state(queue: TenantQueue, owners: dict[str, str]) -> None:
    await queue.add()
    with pytest.raises(Unavailable, match="shard b cannot be reached"):
        await move({**owners, "b": "postgresql://postgres@127.0.0.1:1/nowhere"}, queue, "b")
    assert isinstance(queue.store, ShardedStore)
    (home,) = await queue.store.homes(queue.tenant)
    assert queue.tenant not in await home.run(lambda store: store.moves())


async def test_moves_need_privileges_and_a_valid_target(
    queue: TenantQueue, owners: dict[str, str], addresses: dict[str, str]
) -> None:
    await queue.add()
    with pytest.raises(Forbidden, match="superuser"):
        await Mover(addresses).move(queue.tenant, "b")
    with pytest.raises(Invalid, match="no shard 'z'"):
        await move(owners, queue, "z")
    with pytest.raises(NotFound):
        await Mover(owners).move("nobody was ever called so", "b")
    with pytest.raises(Stop):
        await move(owners, queue, "b", until="noted")
    with pytest.raises(Conflict, match="being moved to shard 'b'"):
        await Mover({**owners, "c": owners["b"]}).move(queue.tenant, "c")
    await move(owners, queue, "b")


async def test_a_tenant_has_one_mover_at_a_time(queue: TenantQueue, owners: dict[str, str]) -> None:
    await queue.add()
    outcomes = await asyncio.gather(*(move(owners, queue, "b") for _ in range(3)), return_exceptions=True)
    assert [isinstance(one, Moved) for one in outcomes].count(True) >= 1
    assert all(isinstance(one, (Moved, Conflict)) for one in outcomes), outcomes
    assert await home_of(queue) == "b"


async def test_schedules_and_budgets_move_and_go_on(queue: TenantQueue, owners: dict[str, str]) -> None:
    store, tenant, who = (
        queue.store,
        queue.tenant,
        Principal(queue.tenant, "user:ada", frozenset({"produce", "operate"})),
    )
    engine = Engine(store)
    every = msgspec.convert({"job": {"type": "report"}, "every_seconds": 60, "catch_up": "all"}, ScheduleRequest)
    for name in ("runs", "paused"):
        await engine.schedules.set(who, name, every)
    await engine.schedules.pause(who, "paused")
    queue.clock.now = queue.after(60)
    assert await engine.schedules.fire_due() == 1
    await engine.budgets.set(who, "team", BudgetRequest(amount={"usd": 10.0}, per=Per.MONTH, on_exceed=OnExceed.ASK))
    named = json.dumps([{"name": "budget:team", "key": None, "cost": {"usd": 3.0}}])
    terms = Terms((await store.registry.read(tenant)).version)
    root, *jobs = [new_job(type="work", limits=named, budget='{"usd": 20}' if i == 0 else None) for i in range(4)]
    await store.enqueue(tenant, [root, *jobs], terms=terms)
    first, held = await queue.claim(limit=2, types=frozenset({"work"}), lease_seconds=600)
    await queue.do(complete(first, usage='{"usd": 8}'))
    await queue.heartbeat(heartbeat(held, usage='{"usd": 3.5}'))
    budget = await engine.budgets.get(tenant, "team")
    assert (budget.spent, budget.reserved, budget.waiting) == ({"usd": 8.5}, {"usd": 3.0}, 2)
    tree = await engine.budgets.of_job(tenant, root.id)
    schedules = await engine.schedules.page(tenant)
    queue.clock.now = queue.after(125)  # two ticks are due on the way
    await move(owners, queue, "b")

    assert await engine.schedules.page(tenant) == schedules
    assert await engine.budgets.of_job(tenant, root.id) == tree
    assert await engine.budgets.get(tenant, "team") == budget
    assert await engine.schedules.fire_due() == 2
    assert await engine.schedules.fire_due() == 0
    await engine.schedules.resume(who, "paused")
    assert await engine.schedules.fire_due() == 3
    reports = await store.find(tenant, Filter(type="report"))
    assert len(reports) == len({job.idempotency_key for job in reports}) == 6
    (reply,) = await queue.heartbeat(heartbeat(held, usage='{"usd": 3.75}'))
    assert isinstance(reply, HeartbeatReply)
    assert reply.budget_exceeded
    await queue.do(complete(held, usage='{"usd": 4}'))
    assert (await engine.budgets.get(tenant, "team")).spent == {"usd": 12.0}
    assert await queue.claim(types=frozenset({"work"})) == []
    await engine.spent_budgets.act()
    (asked,) = await store.approvals.find(tenant, ApprovalFilter())
    assert asked.opened_by == "system:budgets"
    await engine.budgets.raise_by(who, "team", {"usd": 5.0})
    assert len(await queue.claim(limit=5, types=frozenset({"work"}))) == 1


async def _fed(queue: TenantQueue, after: FeedPosition, messages: list[str]) -> bool:
    return [fed.event.message for fed in await queue.store.feed(queue.tenant, after, limit=10)] == messages
