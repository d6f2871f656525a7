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
from tests.contract.builders import OPERATOR, Desk, cancel, complete, new_id
from tests.contract.connections import Door, open_door, refusal
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
async def owner(place: str, tenant: str, clock: ManualClock, postgres: Postgres) -> AsyncIterator[Door]:
    async with open_door("owner", place=place, tenant=tenant, clock=clock, postgres=postgres) as adapter:
        yield adapter


@pytest_asyncio.fixture(loop_scope="module")
async def app(place: str, tenant: str, clock: ManualClock, postgres: Postgres) -> AsyncIterator[Door]:
    async with open_door("app", place=place, tenant=tenant, clock=clock, postgres=postgres) as adapter:
        yield adapter


async def ended(remote: Desk, *, type: str = "work") -> str:
    """A job that was made now, and has ended."""
    job = await remote.running(id=id_of(remote.clock.now), type=type)
    await remote.do(complete(job))
    return job.id


async def parts(store: PostgresStore) -> dict[int | None, HistoryPart]:
    """The partitions by the day that each begins with, from the first day on."""
    return {
        None if part.first is None else (part.first - FIRST_DAY) // DAY: part
        for part in await store.history_parts()
        if part.before is not None
    }


async def rows(owner: Door) -> int:
    ((count,),) = await owner.run("select count(*) from job_history")
    return int(count)


async def test_history_is_partitioned_while_a_store_is_open_and_nothing_is_copied(
    postgres: Postgres, clock: ManualClock
) -> None:
    async with empty_database(postgres) as name, opened(postgres, name, clock) as store:
        remote = Desk(store, "t", clock)
        before = await ended(remote)
        waiting = await remote.running(id=id_of(clock.now), type="waits")
        reported = await remote.trace(before)
        head = await store.head()
        async with open_door("owner", place=name, tenant="t", clock=clock, postgres=postgres) as owner:
            file = "select pg_relation_filenode(tableoid::regclass) from job_history limit 1"
            ((where,),) = await owner.run(file)
            await partition_as_of(postgres, name, clock.now)
            assert await owner.run(file) == [(where,)]
        assert (await remote.trace(before), await store.head()) == (reported, head)
        await remote.do(complete(waiting))
        clock.advance(3 * 86_400)
        after = await ended(remote)
        assert [row.version for row in await remote.history(after)] == [1, 2, 3]
        assert await store.verify() == (3, 9, None)
        assert await partition(postgres.dsn(name, user=OWNER), 1) is False


async def test_partitions_are_made_ahead_and_only_once(store: PostgresStore, clock: ManualClock) -> None:
    assert sorted(day for day in await parts(store) if day is not None) == [0, 1]
    clock.advance(86_400)
    assert (await store.extend_history(), await store.extend_history()) == (1, 0)
    assert sorted(day for day in await parts(store) if day is not None) == [0, 1, 2]


async def test_what_comes_while_nobody_makes_partitions_has_a_place_and_those_to_come_are_made(
    remote: Desk, store: PostgresStore, owner: Door
) -> None:
    remote.clock.advance(40 * 86_400)
    id = await ended(remote)
    assert await owner.run("select distinct tableoid::regclass::text from job_history") == [("job_history_other",)]
    assert await store.extend_history() == 1
    assert max(day for day in await parts(store) if day is not None) == 41
    assert [row.version for row in await remote.history(id)] == [1, 2, 3]


async def test_the_width_of_those_to_come_can_be_changed(store: PostgresStore, place: str, postgres: Postgres) -> None:
    assert await partition(postgres.dsn(place, user=OWNER), 3) is False
    newest = max(await store.history_parts(), key=lambda part: part.before or 0)
    assert newest.before is not None
    assert newest.first is not None
    assert newest.before - newest.first == 3 * DAY


async def test_the_app_role_reaches_no_partition_by_its_own_name_and_takes_none_out_of_history(
    remote: Desk, store: PostgresStore, app: Door
) -> None:
    await ended(remote)
    for part in await store.history_parts():
        for what in ("select * from {}", "delete from {}", "update {} set actor = 'x'", "truncate {}"):
            assert "permission denied" in await refusal(app, what.format(part.name))
        assert "must be owner" in await refusal(app, f"drop table {part.name}")
    name = (await parts(store))[0].name
    assert "must be owner" in await refusal(app, f"alter table job_history detach partition {name}")
    assert "permission denied" in await refusal(app, "delete from history_partition")
    assert await app.run("select detach_history($1, clock()), drop_history($1)", name) == [(False, False)]


async def test_not_even_the_owner_changes_history_by_way_of_a_partition(
    remote: Desk, store: PostgresStore, owner: Door
) -> None:
    await ended(remote)
    name = (await parts(store))[0].name
    for change in (f"update {name} set actor = 'x'", f"delete from {name}", f"truncate {name}"):
        assert "history is append-only" in await refusal(owner, change)


async def test_retention_leaves_history_to_its_partition_and_drops_it_when_the_last_job_has_gone(
    remote: Desk, store: PostgresStore, owner: Door
) -> None:
    retention = Retention(store, days=7)
    early = await ended(remote)
    remote.clock.advance(80_000)
    late = await ended(remote)
    ends = sorted([(remote.tenant, id, (await remote.history(id))[-1].hash) for id in (early, late)])

    remote.clock.advance(7 * 86_400 - 10_000)
    assert await retention.retain() == 1
    assert await store.get(remote.tenant, [early]) == [None]
    assert await rows(owner) == 6  # the day is not over yet
    assert (await parts(store))[0].state == "leaving"
    assert await store.verify(remote.tenant) == (1, 3, None)
    assert [(await store.verify_part(remote.tenant, jobs=1)).first_bad] == [None]

    remote.clock.advance(20_000)
    assert await retention.retain() == 1
    assert 0 not in await parts(store)
    assert await rows(owner) == 0
    assert await store.verify() == (0, 0, None)
    reported = await store.prunes(remote.tenant)
    assert [prune.hash.hex() for prune in reported] == [history_chain.head([end]) for end in reversed(ends)]
    assert await retention.retain() == 0


async def test_a_partition_stays_while_anybody_has_a_job_of_its_time(
    remote: Desk, neighbour: Desk, store: PostgresStore, owner: Door
) -> None:
    await ended(remote)
    theirs = await neighbour.add(id=id_of(remote.clock.now))
    name = (await parts(store))[0].name
    remote.clock.advance(8 * 86_400 + 60)
    assert await Retention(store, days=7).retain() == 1
    assert (await parts(store))[0].state == "leaving"
    assert await owner.run("select detach_history($1, clock())", name) == [(False,)]
    await neighbour.do(cancel(theirs))
    assert [row.version for row in await neighbour.history(theirs)] == [1, 2]
    await neighbour.verify()


async def test_where_a_job_stays_the_history_of_the_others_goes_a_day_later(
    remote: Desk, neighbour: Desk, store: PostgresStore, owner: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_partitions, "SWEEP_BATCH_SIZE", 2)
    retention = Retention(store, days=7)
    stays = await remote.add(id=id_of(remote.clock.now), type="stays", run_at=remote.after(99 * 86_400))
    for whose in (remote, neighbour):
        for _ in range(3):
            await ended(whose)
    remote.clock.advance(9 * 86_400 + 60)
    assert await retention.retain() == 6
    assert (await parts(store))[0].state == "kept"
    assert await rows(owner) == 1
    await remote.verify()

    await remote.do(cancel(stays))
    remote.clock.advance(7 * 86_400 + 60)
    assert await retention.retain() == 1
    assert 0 not in await parts(store)


async def test_an_audit_still_finds_history_whose_job_is_gone_where_none_was_left(
    remote: Desk, store: PostgresStore, place: str, postgres: Postgres
) -> None:
    await ended(remote)
    remote.clock.advance(8 * 86_400)
    gone = await ended(remote)
    await Retention(store, days=7).retain()
    async with open_door("superuser", place=place, tenant="", clock=remote.clock, postgres=postgres) as superuser:
        await superuser.without_rules()
        await superuser.run("delete from job where id = $1", gone)
    assert "the job is gone" in str((await store.verify(remote.tenant)).first_bad)


async def test_a_prune_on_demand_takes_history_along_with_its_job(
    remote: Desk, store: PostgresStore, owner: Door
) -> None:
    await ended(remote)
    remote.clock.advance(86_400)
    assert (await store.prune(remote.tenant, PruneCommand(new_id(), OPERATOR, remote.clock.now, 0, 100))).deleted == 1
    assert await rows(owner) == 0


async def test_a_partition_goes_later_when_somebody_reads_history_just_now(
    remote: Desk, store: PostgresStore, place: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_partitions, "TRY_AGAIN_SECONDS", 0.0)
    await ended(remote)
    remote.clock.advance(8 * 86_400 + 60)
    reader = await asyncpg.connect(postgres.dsn(place, user=OWNER))
    try:
        async with reader.transaction():
            await reader.fetch("select count(*) from interlock.job_history")
            assert await Retention(store, days=7).retain() == 1
            assert (await parts(store))[0].state == "leaving"

        async def has_gone() -> bool:
            await store.drop_history(remote.clock.now - 7 * DAY)
            return 0 not in await parts(store)

        await eventually(has_gone)
    finally:
        await reader.close()


async def test_only_the_owner_partitions_history(place: str, postgres: Postgres) -> None:
    async with empty_database(postgres) as name:
        with pytest.raises(Forbidden, match="connect with the owner's database URL"):
            await partition(postgres.dsn(name, user=APP_LOGIN), 7)


async def test_ids_of_a_time_to_come_are_refused_before_anything_is_changed(
    postgres: Postgres, clock: ManualClock
) -> None:
    async with empty_database(postgres) as name, opened(postgres, name, clock) as store:
        remote = Desk(store, "t", clock)
        await remote.add(id=id_of(clock.now + 3650 * DAY))
        with pytest.raises(Conflict, match="with a wrong clock; nothing was changed"):
            await partition_as_of(postgres, name, clock.now)
        assert [part.name for part in await store.history_parts()] == ["job_history"]
        await remote.add(id=id_of(clock.now + 3650 * DAY))


async def test_a_partitioning_that_was_cut_short_is_forgotten_in_time(postgres: Postgres, clock: ManualClock) -> None:
    async with empty_database(postgres) as name, opened(postgres, name, clock) as store:
        remote = Desk(store, "t", clock)
        async with open_door("owner", place=name, tenant="t", clock=clock, postgres=postgres) as owner:
            await owner.run(
                f"alter table job_history add constraint made_before check (job_id < '{id_of(clock.now + DAY)}') not valid"
            )
            await store.extend_history()
            assert "made_before" in await refusal(
                owner, "alter table job_history add constraint made_before check (true)"
            )
        clock.advance(19 * 3600)
        await store.extend_history()
        clock.advance(86_400)
        await remote.add(id=id_of(clock.now))


async def test_a_tenant_moves_from_partitions_to_one_table_and_back(
    shards: dict[str, str], postgres: Postgres, clock: ManualClock
) -> None:
    superusers = {shard: postgres.dsn(name) for shard, name in shards.items()}
    await partition_as_of(postgres, shards["a"], FIRST_DAY - DAY)
    addresses = {shard: postgres.dsn(name, user=APP_LOGIN) for shard, name in shards.items()}
    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        await router.extend_history()
        remote = Desk(router, resident("a", "mover"), clock)
        await ended(remote)
        clock.advance(80_000)
        stays = await ended(remote)
        clock.advance(7 * 86_400 - 10_000)
        assert await Retention(router, days=7).retain() == 1
        reported = await remote.history(stays)
        for target in ("b", "a"):
            moved = await Mover(superusers, stale_seconds=0.02).move(remote.tenant, target)
            assert (moved.target, moved.jobs, moved.rows) == (target, 1, 3)
            assert await remote.history(stays) == reported
            await remote.verify()
    finally:
        await router.close()
