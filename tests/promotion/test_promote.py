"""A promoted database is the same database on another engine: all rows are there, and its jobs continue."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from interlock.domain.job import Filter, Job
from interlock.domain.progress import SMALLEST_ID, FeedPosition
from interlock.domain.registry import Agent
from interlock.errors import Conflict, DatabasePromoted, SchemaMismatch
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.promotion.promoter import Promoted, Promoter, without_password
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import TenantQueue, complete, heartbeat, new_job
from tests.contract.progress import append_events, event, report
from tests.contract.test_keyed_limits import of
from tests.contract.test_limits import add, set_limit
from tests.contract.test_rights import furnish
from tests.support.invariants import check_postgres
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import ManualClock, empty_database, migrated_file, opened

START = FeedPosition(0, 0, SMALLEST_ID, 0)
TENANTS = ("one", "two")


class Stop(Exception):
    """Ends a promotion at a point, as if the process had died there."""


@pytest.fixture
async def dsn(postgres: Postgres) -> AsyncIterator[str]:
    async with empty_database(postgres) as name:
        yield postgres.dsn(name, user=OWNER)


@pytest.fixture
async def file(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SQLiteStore]:
    async with opened(
        SQLiteStore.open(await asyncio.to_thread(migrated_file, tmp_path / "a.db"), clock=clock)
    ) as store:
        yield store


async def promote(
    file: SQLiteStore, dsn: str, *, until: str | None = None, points: list[str] | None = None
) -> Promoted:
    def at(point: str) -> None:
        if points is not None:
            points.append(point)
        if point == until:
            raise Stop

    return await Promoter(file.path, dsn, step=7, at=at).promote()


async def rows(dsn: str) -> dict[str, int]:
    """The number of rows of every table that a promotion fills, as a superuser sees them."""
    connection = await asyncpg.connect(dsn.replace(f"{OWNER}@", "postgres@"))
    try:
        names = await connection.fetch(
            "select relname from pg_class where relnamespace = 'interlock'::regnamespace and relkind = 'r'"
        )
        return {name: await connection.fetchval(f"select count(*) from interlock.{name}") for (name,) in names}
    finally:
        await connection.close()


async def traced(queue: TenantQueue, job: Job) -> tuple[object, object]:
    """A job and its history; one engine reads lists, the other tuples."""
    read, history = await queue.trace(job.id)
    return [tuple(value) if isinstance(value, list) else value for value in read], history


async def seen(store: Any, tenant: str) -> dict[str, Any]:
    """What a user sees of a tenant."""
    queue = TenantQueue(store, tenant, ManualClock())
    jobs = await store.find(tenant, Filter(limit=200))
    return {
        "stats": await store.registry.stats(tenant),
        "jobs": {job.id: await traced(queue, job) for job in jobs},
        "steps": {job.id: await store.steps(tenant, [job.id], limit=100) for job in jobs},
        "events": {job.id: await store.events(tenant, job.id, limit=100) for job in jobs},
        "log": await store.audit.log(tenant, limit=100),
        "schedule": await store.schedules.get(tenant, "nightly"),
        "channels": await store.channels.page(tenant),
        "limit": await store.limits.get(tenant, "llm"),
        "tokens": await store.tokens.find(hashlib.sha256(tenant.encode()).digest()),
    }


async def test_every_table_of_all_tenants_is_promoted(
    file: SQLiteStore, dsn: str, clock: ManualClock, postgres: Postgres
) -> None:
    for tenant in TENANTS:
        await furnish(TenantQueue(file, tenant, clock))
    before = {tenant: await seen(file, tenant) for tenant in TENANTS}
    head, verdict = await file.audit.head(), await file.audit.verify()

    done = await promote(file, dsn)
    assert done.state == "promoted"
    assert done.head == head
    assert [name for name, count in done.rows.items() if count == 0] == [], "furnish() has no row for these tables"
    found = await rows(dsn)
    assert {name: found[name] for name in done.rows} == done.rows

    async with opened(PostgresStore.open(dsn, clock=clock)) as store:
        assert await store.audit.head() == head
        assert await store.audit.verify() == verdict
        for tenant in TENANTS:
            assert await seen(store, tenant) == before[tenant]
            assert await store.faults(tenant, 10) == []
    connection = await asyncpg.connect(dsn.replace(f"{OWNER}@", "postgres@"))
    try:
        for tenant in TENANTS:
            await check_postgres(connection, tenant)
    finally:
        await connection.close()


async def test_running_jobs_continue_and_numbers_go_on(file: SQLiteStore, dsn: str, clock: ManualClock) -> None:
    queue = TenantQueue(file, "one", clock)
    await file.registry.set_agent("one", Agent("planner", "one", max_concurrency=1))
    mine = {"agent_kind": "planner", "agent_id": "one"}
    ids = [await queue.add(idempotency_key=f"k{i}", body_sha256=b"x", **mine) for i in range(3)]
    (held,) = await queue.claim(limit=5, lease_seconds=600, claim_id="mine")
    assert await append_events(queue, report(held, event("one"))) == (1,)
    fed = await file.feed("one", START, limit=10)
    await promote(file, dsn)
    async with opened(PostgresStore.open(dsn, clock=clock)) as store:
        there = TenantQueue(store, "one", clock)
        assert [job.id for job in await there.claim(limit=5, lease_seconds=600, claim_id="mine")] == [held.id]
        (reply,) = await there.heartbeat(heartbeat(held))
        assert reply.cancel_requested is False
        assert await append_events(there, report(held, event("two"))) == (2,)
        assert [e.event.message for e in await store.feed("one", fed[-1].position, limit=10)] == ["two"]
        assert await there.claim() == []  # the only slot of the agent is taken
        await there.do(complete(held))
        (job,) = await there.claim(lease_seconds=30)
        assert job.id == ids[1]
        clock.advance(31)
        (last,) = await there.claim()
        assert last.id == ids[2]
        await there.do(complete(last))
        (again,) = await there.claim()
        assert (again.id, again.attempt) == (ids[1], 2)
        (answer,) = await store.enqueue("one", [new_job(idempotency_key="k2", body_sha256=b"x", **mine)])
        assert getattr(answer, "id", None) == ids[2]
        (new,) = await store.enqueue("one", [new_job(affinity_key="new", **mine)])
        assert getattr(new, "seq", 0) > 3
        await there.verify()


async def test_a_promoted_file_refuses_writes_and_names_the_new_place(
    file: SQLiteStore, dsn: str, clock: ManualClock
) -> None:
    queue = TenantQueue(file, "one", clock)
    unfinished = await queue.add()
    ended = await queue.running(type="ended")
    await queue.do(complete(ended))
    with_password = dsn.replace("@", ":hush@")
    await promote(file, with_password)
    place = without_password(with_password)
    assert "hush" not in place
    for call in (
        lambda: queue.add(),
        lambda: queue.claim(types=frozenset({"nothing"})),
        lambda: file.get("one", [unfinished]),
        lambda: file.fitness(),
    ):
        with pytest.raises(DatabasePromoted) as refused:
            await call()
        assert place in str(refused.value)
        assert "hush" not in str(refused.value)
    assert (await file.get("one", [ended.id]))[0] is not None
    tool = apsw.Connection(file.path)
    for statement in ("UPDATE epoch SET value = 9", "INSERT INTO queue VALUES ('a', 'b', NULL, NULL, NULL)"):
        with pytest.raises(apsw.Error, match="was promoted to postgresql://"):
            tool.execute(statement)
    tool.close()
    async with opened(SQLiteStore.open(file.path, clock=clock)) as later:
        assert await later.audit.verify("one") == (2, 4, None)
        with pytest.raises(DatabasePromoted):
            await later.enqueue("one", [new_job()])


async def test_a_target_that_has_rows_is_refused(file: SQLiteStore, dsn: str, clock: ManualClock) -> None:
    async with opened(PostgresStore.open(dsn, clock=clock)) as store:
        await TenantQueue(store, "someone", clock).add()
    with pytest.raises(Conflict, match=r"not empty: it has rows already \(.*1 in job,"):
        await promote(file, dsn)
    await TenantQueue(file, "one", clock).add()


async def test_nobody_opens_the_target_before_the_switch(file: SQLiteStore, dsn: str, clock: ManualClock) -> None:
    await TenantQueue(file, "one", clock).add()
    with pytest.raises(Stop):
        await promote(file, dsn, until="verified")
    with pytest.raises(SchemaMismatch, match="is being filled by the promotion of"):
        await PostgresStore.open(dsn)
    await TenantQueue(file, "one", clock).add()
    assert (await promote(file, dsn)).rows["job"] == 2
    assert (await promote(file, dsn)).state == "already_promoted"


async def test_a_changed_history_is_not_promoted(file: SQLiteStore, dsn: str, clock: ManualClock) -> None:
    await TenantQueue(file, "one", clock).add(payload='{"a":1}')
    tool = apsw.Connection(file.path)
    tool.execute("DROP TRIGGER body_never_changes; UPDATE job_body SET payload = '{}'")
    tool.close()
    with pytest.raises(Conflict, match=r"a history does not verify: .* the digest of payload"):
        await promote(file, dsn)
    await TenantQueue(file, "one", clock).add()


async def test_a_dry_run_changes_nothing(file: SQLiteStore, dsn: str, clock: ManualClock) -> None:
    await TenantQueue(file, "one", clock).add()
    checked = await Promoter(file.path, dsn).check()
    assert (checked.state, checked.rows["job"], checked.head) == ("checked", 1, await file.audit.head())
    assert (await rows(dsn))["promotion"] == 0
    await promote(file, dsn)
    assert (await Promoter(file.path, dsn).check()).state == "already_promoted"


async def test_a_promotion_can_be_resumed_after_every_point(file: SQLiteStore, dsn: str, clock: ManualClock) -> None:
    queue = TenantQueue(file, "one", clock)
    for _ in range(20):
        await queue.add()
    points: list[str] = []
    with pytest.raises(Stop):
        await promote(file, dsn, until="verified", points=points)
    await Promoter(file.path, dsn).back_out()
    for point in (*dict.fromkeys(points), "frozen", "ready to switch", "switched"):
        if point == "copied again":
            continue
        with pytest.raises(Stop):
            await promote(file, dsn, until=point)
        if point != "switched":
            (job,) = await queue.claim(lease_seconds=600)
            if int(job.id[-1], 16) % 2:
                await queue.do(complete(job))
            await queue.add(priority=5)
    done = await promote(file, dsn)
    assert done.state == "promoted"
    async with opened(PostgresStore.open(dsn, clock=clock)) as store:
        assert await store.audit.head() == await file.audit.head()
        assert await store.faults("one", 10) == []


async def test_a_promotion_can_be_backed_out_at_every_point_before_the_switch(
    file: SQLiteStore, dsn: str, clock: ManualClock
) -> None:
    queue = TenantQueue(file, "one", clock)
    await furnish(queue)
    other = TenantQueue(file, "two", clock)
    clean = await rows(dsn)
    schema = apsw.Connection(file.path).execute("SELECT name, sql FROM sqlite_schema").fetchall()
    points: list[str] = []
    with pytest.raises(Stop):
        await promote(file, dsn, until="ready to switch", points=points)
    assert points[-1] == "ready to switch"
    for point in (*dict.fromkeys(points), None):
        if point == "copied again":
            continue
        assert (await Promoter(file.path, dsn).back_out()).state == "backed_out"
        assert await rows(dsn) == clean
        assert apsw.Connection(file.path).execute("SELECT name, sql FROM sqlite_schema").fetchall() == schema
        await other.add()
        await (await PostgresStore.open(dsn)).close()
        if point is not None:
            with pytest.raises(Stop):
                await promote(file, dsn, until=point)
    assert (await promote(file, dsn)).state == "promoted"
    with pytest.raises(Conflict, match="irreversible"):
        await Promoter(file.path, dsn).back_out()


async def test_a_file_is_promoted_to_one_place_only(
    file: SQLiteStore, dsn: str, clock: ManualClock, postgres: Postgres
) -> None:
    await TenantQueue(file, "one", clock).add()
    with pytest.raises(Stop):
        await promote(file, dsn, until="begun")
    async with empty_database(postgres) as other:
        elsewhere = postgres.dsn(other, user=OWNER)
        for act in (Promoter(file.path, elsewhere).promote, Promoter(file.path, elsewhere).check):
            with pytest.raises(Conflict, match="is being promoted to"):
                await act()


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ada:secret@db:5432/jobs", "postgresql://ada@db:5432/jobs"),
        ("postgresql://db/jobs?password=secret&sslmode=require", "postgresql://db/jobs?sslmode=require"),
        ("postgresql:///jobs", "postgresql:///jobs"),
        ("postgresql://ada:se%40cret@a,b/jobs", "postgresql://ada@a,b/jobs"),
    ],
)
def test_a_password_is_never_shown(dsn: str, shown: str) -> None:
    assert without_password(dsn) == shown


async def test_jobs_that_wait_for_a_limit_keep_waiting_in_order(
    file: SQLiteStore, dsn: str, clock: ManualClock
) -> None:
    queue = TenantQueue(file, "one", clock)
    await set_limit(queue, concurrency=1, keyed=True)
    bound = {"limits": of("a"), "repository": "git", "affinity_key": "gpu"}
    ids = []
    for i in range(6):
        ids += await add(queue, 1, **(bound if i % 2 else {"limits": of("a")}))
    anything = {"repositories": None, "affinity_keys": None}
    (held,) = await queue.claim(limit=5, **anything)
    assert await queue.claim(limit=5, **anything) == []  # parks the others
    assert apsw.Connection(file.path).execute("SELECT count(*) FROM job WHERE parked").fetchall() != [(0,)]
    await promote(file, dsn)
    async with opened(PostgresStore.open(dsn, clock=clock)) as store:
        there = TenantQueue(store, "one", clock)
        assert await store.faults("one", 10) == []
        assert await there.claim(limit=5, **anything) == []
        assert await there.claim(limit=5, repositories=frozenset({"git"}), affinity_keys=frozenset({"gpu"})) == []
        order, running = [held.id], [held]
        while running:
            await there.do(complete(running[0]))
            running = await there.claim(limit=5, **anything)
            order += [job.id for job in running]
        assert order == ids
        assert await store.faults("one", 10) == []
        await there.verify()
