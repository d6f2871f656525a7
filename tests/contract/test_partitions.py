"""PostgreSQL only: history in partitions goes whole when no job of its time is left, and is guarded like one table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
import pytest_asyncio

from interlock.domain.operations import PruneCommand
from interlock.engine.retention import Retention
from interlock.errors import Conflict, Forbidden
from interlock.storage import history_chain
from interlock.storage.postgres import history_partitions
from interlock.storage.postgres.history_partitions import HistoryPart
from interlock.storage.postgres.partition_history import partition
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.tenant_move import Mover
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, new_id
from tests.contract.connections import SqlConnection, open_connection, rejection
from tests.support.emptied import emptied_database
from tests.support.eventually import eventually
from tests.support.partitions import DAY, partition_as_of
from tests.support.postgres import OWNER, Postgres
from tests.support.shards import resident
from tests.support.stores import APP_LOGIN, START, ManualClock, empty_database, fresh_database

FIRST_DAY = START - START % DAY + DAY  # the partitions of days begin at midnight


def id_of(time: int) -> str:
    """An id of a job that was made at a time."""
    stamp = f"{time // 1000:012x}"
    return f"{stamp[:8]}-{stamp[8:]}{new_id()[13:]}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(FIRST_DAY)


@asynccontextmanager
async def opened(postgres: Postgres, name: str, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=2, clock=clock)
    try:
        yield store
    finally:
        await store.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def template(postgres: Postgres) -> AsyncIterator[str]:
    """A database whose history is partitioned by the day, the first one beginning when the clock does."""
    async with fresh_database(postgres) as name:
        await partition_as_of(postgres, name, FIRST_DAY - DAY)
        async with opened(postgres, name, ManualClock(FIRST_DAY)) as store:
            await store.extend_history()
        yield name


@pytest_asyncio.fixture(loop_scope="module")
async def place(postgres: Postgres, template: str) -> AsyncIterator[str]:
    async with emptied_database(postgres, template) as name:
        yield name


@pytest_asyncio.fixture(loop_scope="module")
async def store(place: str, postgres: Postgres, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with opened(postgres, place, clock) as store:
        yield store


@pytest_asyncio.fixture(loop_scope="module")
async def owner(place: str, tenant: str, clock: ManualClock, postgres: Postgres) -> AsyncIterator[SqlConnection]:
    async with open_connection("owner", place=place, tenant=tenant, clock=clock, postgres=postgres) as sql:
        yield sql


@pytest_asyncio.fixture(loop_scope="module")
async def app(place: str, tenant: str, clock: ManualClock, postgres: Postgres) -> AsyncIterator[SqlConnection]:
    async with open_connection("app", place=place, tenant=tenant, clock=clock, postgres=postgres) as sql:
        yield sql


async def ended(queue: TenantQueue, *, type: str = "work") -> str:
    """A job that was made now, and has ended."""
    job = await queue.running(id=id_of(queue.clock.now), type=type)
    await queue.do(complete(job))
    return job.id


async def parts(store: PostgresStore) -> dict[int | None, HistoryPart]:
    """The partitions by the day that each begins with, from the first day on."""
    return {
        None if part.first is None else (part.first - FIRST_DAY) // DAY: part
        for part in await store.history_parts()
        if part.before is not None
    }


async def rows(owner: SqlConnection) -> int:
    ((count,),) = await owner.run("select count(*) from job_history")
    return int(count)


async def test_history_is_partitioned_while_a_store_is_open_and_nothing_is_copied(
    postgres: Postgres, clock: ManualClock
) -> None:
    async with empty_database(postgres) as name, opened(postgres, name, clock) as store:
        queue = TenantQueue(store, "t", clock)
        before = await ended(queue)
        waiting = await queue.running(id=id_of(clock.now), type="waits")
        reported = await queue.trace(before)
        head = await store.audit.head()
        async with open_connection("owner", place=name, tenant="t", clock=clock, postgres=postgres) as owner:
            file = "select pg_relation_filenode(tableoid::regclass) from job_history limit 1"
            ((where,),) = await owner.run(file)
            await partition_as_of(postgres, name, clock.now)
            assert await owner.run(file) == [(where,)]
        assert (await queue.trace(before), await store.audit.head()) == (reported, head)
        await queue.do(complete(waiting))
        clock.advance(3 * 86_400)
        after = await ended(queue)
        assert [row.version for row in await queue.history(after)] == [1, 2, 3]
        assert await store.audit.verify() == (3, 9, None)
        assert await partition(postgres.dsn(name, user=OWNER), 1) is False


async def test_partitions_are_created_ahead_and_only_once(store: PostgresStore, clock: ManualClock) -> None:
    assert sorted(day for day in await parts(store) if day is not None) == [0, 1]
    clock.advance(86_400)
    assert (await store.extend_history(), await store.extend_history()) == (1, 0)
    assert sorted(day for day in await parts(store) if day is not None) == [0, 1, 2]


async def test_rows_without_a_partition_go_to_the_default_and_later_partitions_are_created(
    queue: TenantQueue, store: PostgresStore, owner: SqlConnection
) -> None:
    queue.clock.advance(40 * 86_400)
    id = await ended(queue)
    assert await owner.run("select distinct tableoid::regclass::text from job_history") == [("job_history_other",)]
    assert await store.extend_history() == 1
    assert max(day for day in await parts(store) if day is not None) == 41
    assert [row.version for row in await queue.history(id)] == [1, 2, 3]


async def test_the_width_of_later_partitions_can_be_changed(
    store: PostgresStore, place: str, postgres: Postgres
) -> None:
    assert await partition(postgres.dsn(place, user=OWNER), 3) is False
    newest = max(await store.history_parts(), key=lambda part: part.before or 0)
    assert newest.before is not None
    assert newest.first is not None
    assert newest.before - newest.first == 3 * DAY


async def test_the_app_role_can_neither_access_a_partition_directly_nor_detach_it(
    queue: TenantQueue, store: PostgresStore, app: SqlConnection
) -> None:
    await ended(queue)
    for part in await store.history_parts():
        for what in ("select * from {}", "delete from {}", "update {} set actor = 'x'", "truncate {}"):
            assert "permission denied" in await rejection(app, what.format(part.name))
        assert "must be owner" in await rejection(app, f"drop table {part.name}")
    name = (await parts(store))[0].name
    assert "must be owner" in await rejection(app, f"alter table job_history detach partition {name}")
    assert "permission denied" in await rejection(app, "delete from history_partition")
    assert await app.run("select detach_history($1, clock()), drop_history($1)", name) == [(False, False)]


async def test_even_the_owner_cannot_change_history_through_a_partition(
    queue: TenantQueue, store: PostgresStore, owner: SqlConnection
) -> None:
    await ended(queue)
    name = (await parts(store))[0].name
    for change in (f"update {name} set actor = 'x'", f"delete from {name}", f"truncate {name}"):
        assert "history is append-only" in await rejection(owner, change)


async def test_retention_leaves_history_to_its_partition_and_drops_it_after_its_last_job(
    queue: TenantQueue, store: PostgresStore, owner: SqlConnection
) -> None:
    retention = Retention(store, days=7)
    early = await ended(queue)
    queue.clock.advance(80_000)
    late = await ended(queue)
    ends = sorted([(queue.tenant, id, (await queue.history(id))[-1].hash) for id in (early, late)])

    queue.clock.advance(7 * 86_400 - 10_000)
    assert await retention.retain() == 1
    assert await store.get(queue.tenant, [early]) == [None]
    assert await rows(owner) == 6  # the day is not over yet
    assert (await parts(store))[0].state == "leaving"
    assert await store.audit.verify(queue.tenant) == (1, 3, None)
    assert [(await store.audit.verify_part(queue.tenant, jobs=1)).first_bad] == [None]

    queue.clock.advance(20_000)
    assert await retention.retain() == 1
    assert 0 not in await parts(store)
    assert await rows(owner) == 0
    assert await store.audit.verify() == (0, 0, None)
    reported = await store.prunes(queue.tenant)
    assert [prune.hash.hex() for prune in reported] == [history_chain.head([end]) for end in reversed(ends)]
    assert await retention.retain() == 0


async def test_a_partition_stays_while_any_tenant_has_a_job_of_its_time(
    queue: TenantQueue, neighbour: TenantQueue, store: PostgresStore, owner: SqlConnection
) -> None:
    await ended(queue)
    theirs = await neighbour.add(id=id_of(queue.clock.now))
    name = (await parts(store))[0].name
    queue.clock.advance(8 * 86_400 + 60)
    assert await Retention(store, days=7).retain() == 1
    assert (await parts(store))[0].state == "leaving"
    assert await owner.run("select detach_history($1, clock())", name) == [(False,)]
    await neighbour.do(cancel(theirs))
    assert [row.version for row in await neighbour.history(theirs)] == [1, 2]
    await neighbour.verify()


async def test_history_beside_a_kept_job_is_deleted_a_day_later(
    queue: TenantQueue,
    neighbour: TenantQueue,
    store: PostgresStore,
    owner: SqlConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_partitions, "SWEEP_BATCH_SIZE", 2)
    retention = Retention(store, days=7)
    stays = await queue.add(id=id_of(queue.clock.now), type="stays", run_at=queue.after(99 * 86_400))
    for whose in (queue, neighbour):
        for _ in range(3):
            await ended(whose)
    queue.clock.advance(9 * 86_400 + 60)
    assert await retention.retain() == 6
    assert (await parts(store))[0].state == "kept"
    assert await rows(owner) == 1
    await queue.verify()

    await queue.do(cancel(stays))
    queue.clock.advance(7 * 86_400 + 60)
    assert await retention.retain() == 1
    assert 0 not in await parts(store)


async def test_an_audit_finds_history_without_its_job_in_partitions(
    queue: TenantQueue, store: PostgresStore, place: str, postgres: Postgres
) -> None:
    await ended(queue)
    queue.clock.advance(8 * 86_400)
    gone = await ended(queue)
    await Retention(store, days=7).retain()
    async with open_connection("superuser", place=place, tenant="", clock=queue.clock, postgres=postgres) as superuser:
        await superuser.without_rules()
        await superuser.run("delete from job where id = $1", gone)
    assert "the job is gone" in str((await store.audit.verify(queue.tenant)).first_bad)


async def test_a_prune_on_demand_deletes_history_with_its_job(
    queue: TenantQueue, store: PostgresStore, owner: SqlConnection
) -> None:
    await ended(queue)
    queue.clock.advance(86_400)
    assert (await store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 100))).deleted == 1
    assert await rows(owner) == 0


async def test_a_partition_that_is_being_read_is_dropped_later(
    queue: TenantQueue, store: PostgresStore, place: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_partitions, "TRY_AGAIN_SECONDS", 0.0)
    await ended(queue)
    queue.clock.advance(8 * 86_400 + 60)
    reader = await asyncpg.connect(postgres.dsn(place, user=OWNER))
    try:
        async with reader.transaction():
            await reader.fetch("select count(*) from interlock.job_history")
            assert await Retention(store, days=7).retain() == 1
            assert (await parts(store))[0].state == "leaving"

        async def has_gone() -> bool:
            await store.drop_history(queue.clock.now - 7 * DAY)
            return 0 not in await parts(store)

        await eventually(has_gone)
    finally:
        await reader.close()


async def test_only_the_owner_partitions_history(place: str, postgres: Postgres) -> None:
    async with empty_database(postgres) as name:
        with pytest.raises(Forbidden, match="connect with the owner's database URL"):
            await partition(postgres.dsn(name, user=APP_LOGIN), 7)


async def test_ids_of_the_future_are_rejected_before_anything_changes(postgres: Postgres, clock: ManualClock) -> None:
    async with empty_database(postgres) as name, opened(postgres, name, clock) as store:
        queue = TenantQueue(store, "t", clock)
        await queue.add(id=id_of(clock.now + 3650 * DAY))
        with pytest.raises(Conflict, match="with a wrong clock; nothing was changed"):
            await partition_as_of(postgres, name, clock.now)
        assert [part.name for part in await store.history_parts()] == ["job_history"]
        await queue.add(id=id_of(clock.now + 3650 * DAY))


async def test_an_interrupted_partitioning_is_cleaned_up_in_time(postgres: Postgres, clock: ManualClock) -> None:
    async with empty_database(postgres) as name, opened(postgres, name, clock) as store:
        queue = TenantQueue(store, "t", clock)
        async with open_connection("owner", place=name, tenant="t", clock=clock, postgres=postgres) as owner:
            await owner.run(
                f"alter table job_history add constraint made_before check (job_id < '{id_of(clock.now + DAY)}') not valid"
            )
            await store.extend_history()
            assert "made_before" in await rejection(
                owner, "alter table job_history add constraint made_before check (true)"
            )
        clock.advance(19 * 3600)
        await store.extend_history()
        clock.advance(86_400)
        await queue.add(id=id_of(clock.now))


async def test_a_tenant_moves_from_partitions_to_one_table_and_back(
    shards: dict[str, str], postgres: Postgres, clock: ManualClock
) -> None:
    superusers = {shard: postgres.dsn(name) for shard, name in shards.items()}
    await partition_as_of(postgres, shards["a"], FIRST_DAY - DAY)
    addresses = {shard: postgres.dsn(name, user=APP_LOGIN) for shard, name in shards.items()}
    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        await router.extend_history()
        queue = TenantQueue(router, resident("a", "mover"), clock)
        await ended(queue)
        clock.advance(80_000)
        stays = await ended(queue)
        clock.advance(7 * 86_400 - 10_000)
        assert await Retention(router, days=7).retain() == 1
        reported = await queue.history(stays)
        for target in ("b", "a"):
            moved = await Mover(superusers, stale_seconds=0.02).move(queue.tenant, target)
            assert (moved.target, moved.jobs, moved.rows) == (target, 1, 3)
            assert await queue.history(stays) == reported
            await queue.verify()
    finally:
        await router.close()
