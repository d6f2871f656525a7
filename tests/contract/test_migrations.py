"""Migrations: the same names on both engines, applied once, whole or not at all, and never to a strange database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from interlock.domain.edit import EditJob
from interlock.domain.registry import Agent
from interlock.errors import SchemaMismatch
from interlock.storage.contract import Store
from interlock.storage.migrate import Migration, migrations, pending
from interlock.storage.postgres.store import PostgresStore, migrate
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, fail, heartbeat, release, save
from tests.contract.connections import MASTER, DatabaseError, SqlConnection, open_connection
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, ENGINES, ManualClock, fresh_database

PACKAGES = {engine: f"interlock.storage.{engine}" for engine in ("sqlite", "postgres")}


class Place:
    """A separate database, created and opened as a user would."""

    def __init__(self, engine: str, name: str, postgres: Postgres) -> None:
        self.engine = engine
        self.name = name
        self.postgres = postgres

    async def migrate(self) -> list[str]:
        """What was applied."""
        if self.engine == "postgres":
            return await migrate(self.postgres.dsn(self.name, user=OWNER))
        store = await SQLiteStore.open(self.name)
        try:
            return await store.migrate()
        finally:
            await store.close()

    async def open(self) -> Store:
        """Open it as it is."""
        if self.engine == "postgres":
            return await PostgresStore.open(self.postgres.dsn(self.name, user=APP_LOGIN), size=2)
        return await SQLiteStore.open(self.name, migrate=False)

    @asynccontextmanager
    async def sql(self) -> AsyncIterator[SqlConnection]:
        async with open_connection(
            MASTER[self.engine], place=self.name, tenant="t", clock=ManualClock(), postgres=self.postgres
        ) as sql:
            yield sql


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """A shard is migrated like any database of PostgreSQL."""
    return str(request.param)


@pytest.fixture
async def migrated(engine: str, tmp_path: Path, postgres: Postgres) -> AsyncIterator[Place]:
    if engine == "sqlite":
        place = Place(engine, str(tmp_path / "own.db"), postgres)
        await place.migrate()
        yield place
    else:
        async with fresh_database(postgres) as name:
            yield Place(engine, name, postgres)


@pytest.fixture
async def empty(engine: str, tmp_path: Path, postgres: Postgres) -> AsyncIterator[Place]:
    """An unused database."""
    if engine == "sqlite":
        yield Place(engine, str(tmp_path / "empty.db"), postgres)
    else:
        name = f"interlock_empty_{os.getpid()}"
        admin = await asyncpg.connect(postgres.dsn())
        try:
            await admin.execute(f"create database {name} template template0 owner {OWNER}")
            yield Place(engine, name, postgres)
        finally:
            await admin.execute(f"drop database if exists {name} with (force)")
            await admin.close()


async def test_a_database_that_cannot_store_every_text_is_rejected(postgres: Postgres) -> None:
    name = f"interlock_latin_{os.getpid()}"
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await admin.execute(f"create database {name} template template0 encoding 'LATIN1' locale 'C' owner {OWNER}")
        with pytest.raises(SchemaMismatch, match="keeps texts as LATIN1; create one with encoding 'UTF8'"):
            await Place("postgres", name, postgres).migrate()
    finally:
        await admin.execute(f"drop database if exists {name} with (force)")
        await admin.close()


@pytest.mark.parametrize("engine", PACKAGES)
def test_migrations_are_numbered_without_gaps(engine: str) -> None:
    found = migrations(PACKAGES[engine])
    assert [m.number for m in found] == list(range(1, len(found) + 1))


def test_the_schema_comes_first_and_later_migrations_follow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "grown_schema"
    for name, text in {
        "__init__.py": "",
        "schema/02_jobs.sql": "CREATE TABLE b (x);",
        "schema/01_tenants.sql": "CREATE TABLE a (x);",
        "migrations/0003_last.sql": "CREATE TABLE d (x);",
        "migrations/0002_more.sql": "CREATE TABLE c (x);",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    schema = Migration(1, "0001_schema", "CREATE TABLE a (x);\nCREATE TABLE b (x);")
    more, last = Migration(2, "0002_more", "CREATE TABLE c (x);"), Migration(3, "0003_last", "CREATE TABLE d (x);")
    assert migrations("grown_schema") == [schema, more, last]
    assert pending(migrations("grown_schema"), {1: schema.checksum}) == [more, last]


async def test_migrating_twice_does_nothing_the_second_time(migrated: Place) -> None:
    assert await migrated.migrate() == []
    async with migrated.sql() as sql:
        rows = await sql.run("SELECT name FROM schema_migration WHERE number > 0 ORDER BY number")
    assert [name for (name,) in rows] == [m.name for m in migrations(PACKAGES[migrated.engine])]


async def test_an_altered_migration_is_rejected(migrated: Place) -> None:
    async with migrated.sql() as sql:
        await sql.run("UPDATE schema_migration SET checksum = 'other' WHERE number = 1")
    first = migrations(PACKAGES[migrated.engine])[0].name
    for use in (migrated.open, migrated.migrate):
        with pytest.raises(SchemaMismatch, match=f"{first} differs from the one that made this database"):
            await use()


async def test_a_database_newer_than_the_program_is_rejected(migrated: Place) -> None:
    async with migrated.sql() as sql:
        await sql.run(
            "INSERT INTO schema_migration (number, name, checksum, applied_at) VALUES (9999, '9999_future', 'x', $1)", 1
        )
    for use in (migrated.open, migrated.migrate):
        with pytest.raises(SchemaMismatch, match=r"by a newer version of Interlock \(migration 9999\)"):
            await use()


async def test_a_database_that_lacks_a_migration_is_rejected_until_migrated(migrated: Place) -> None:
    last = migrations(PACKAGES[migrated.engine])[-1]
    async with migrated.sql() as sql:
        await sql.run("DELETE FROM schema_migration WHERE number = $1", last.number)
    with pytest.raises(SchemaMismatch, match=f"lacks migration {last.name}; run interlock migrate"):
        await migrated.open()


async def test_a_database_without_a_schema_is_rejected_until_migrated(empty: Place) -> None:
    with pytest.raises(SchemaMismatch, match="run interlock migrate"):
        await empty.open()
    await empty.migrate()
    store = await empty.open()
    await store.close()


async def test_a_migration_that_fails_halfway_leaves_nothing(empty: Place) -> None:
    """A table of the schema exists already: nothing of the schema must stay behind."""
    before, after = ("CREATE TABLE job_block (x INTEGER)", "DROP TABLE job_block")
    if empty.engine == "postgres":
        before, after = (
            f"create schema interlock authorization {OWNER}; create table interlock.job_block (x int)",
            "drop schema interlock cascade",
        )
    async with empty.sql() as sql:
        for statement in before.split(";"):
            await sql.run(statement)
    with pytest.raises(DatabaseError, match="already"):
        await empty.migrate()
    async with empty.sql() as sql:
        if empty.engine == "postgres":
            found = await sql.run("select relname from pg_class where relnamespace = 'interlock'::regnamespace")
        else:
            found = await sql.run("SELECT name FROM sqlite_schema")
        assert found == [("job_block",)]
        await sql.run(after)
    await empty.migrate()
    store = await empty.open()
    await store.close()


async def test_two_concurrent_migrators_do_the_work_once(empty: Place) -> None:
    await asyncio.gather(empty.migrate(), empty.migrate())
    assert await empty.migrate() == []
    store = await empty.open()
    await store.close()


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_functions_of_another_version_are_rejected_and_replaced(migrated: Place) -> None:
    async with migrated.sql() as sql:
        await sql.run("UPDATE schema_migration SET checksum = 'older' WHERE number = 0")
    with pytest.raises(SchemaMismatch, match="functions in the database are of another version"):
        await migrated.open()
    assert await migrated.migrate() == ["functions"]
    store = await migrated.open()
    await store.close()


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_the_app_role_may_not_migrate(migrated: Place) -> None:
    with pytest.raises(SchemaMismatch, match="may not migrate"):
        await migrate(migrated.postgres.dsn(migrated.name, user=APP_LOGIN))


@pytest.mark.parametrize("engine", ["postgres"])
@pytest.mark.parametrize("login", [OWNER, APP_LOGIN])
async def test_on_postgresql_the_owner_need_not_be_a_superuser(empty: Place, login: str) -> None:
    """FORCE row-level security holds for the owner too, also inside the triggers that run with its rights."""
    assert len(await empty.migrate()) == len(migrations(PACKAGES["postgres"])) + 1
    assert await empty.migrate() == []
    async with empty.sql() as sql:
        assert await sql.run(
            """select rolsuper or rolbypassrls from pg_roles where oid =
               (select nspowner from pg_namespace where nspname = 'interlock')"""
        ) == [(False,)]
    clock = ManualClock()
    store = await PostgresStore.open(empty.postgres.dsn(empty.name, user=login), size=2, clock=clock)
    try:
        await whole_life(TenantQueue(store, "t", clock))
        assert (await store.audit.verify()).first_bad is None
    finally:
        await store.close()


@pytest.mark.parametrize("engine", ["postgres"])
@pytest.mark.parametrize("may", ["createrole", "nocreaterole"])
async def test_on_postgresql_another_owner_of_the_same_server_gets_the_missing_roles_named(
    empty: Place, may: str
) -> None:
    """Roles belong to the whole server: a user that did not create them needs membership, and nothing more."""
    owner = f"interlock_test_other_{os.getpid()}"
    async with empty.sql() as sql:
        await sql.run(f"create role {owner} login {may}")
        try:
            await sql.run(f"alter database {empty.name} owner to {owner}")
            dsn = empty.postgres.dsn(empty.name, user=owner)
            older = (await sql.run("select current_setting('server_version_num')::integer < 160000"))[0][0]
            if not (older and may == "createrole"):  # before version 16 CREATEROLE includes granting roles
                with pytest.raises(
                    SchemaMismatch, match=f"run: grant interlock_app, interlock_sweep, interlock_verbs to {owner}"
                ):
                    await migrate(dsn)
                await sql.run(f"grant interlock_app, interlock_sweep, interlock_verbs to {owner}")
            assert len(await migrate(dsn)) == len(migrations(PACKAGES["postgres"])) + 1
            clock = ManualClock()
            store = await PostgresStore.open(dsn, size=1, clock=clock)
            try:
                await whole_life(TenantQueue(store, "t", clock))
            finally:
                await store.close()
        finally:
            await sql.run(f"alter database {empty.name} owner to {OWNER}")
            await sql.run(f"reassign owned by {owner} to {OWNER}")
            await sql.run(f"drop owned by {owner}")
            await sql.run(f"drop role {owner}")


async def whole_life(queue: TenantQueue) -> None:
    """A family, a lease that expires, and a limited agent whose waiting job is edited."""
    agent = Agent("bot", "1", max_concurrency=1)
    await queue.store.registry.set_agent(queue.tenant, agent)
    first, second = [await queue.add(type="bot", agent_kind="bot", agent_id="1") for _ in range(2)]
    await queue.do(EditJob(first, OPERATOR, priority=5, run_at=queue.after(5)))
    assert await queue.claimed(types=frozenset({"bot"}), limit=5) == [second]
    await queue.store.registry.set_agent(queue.tenant, agent._replace(max_concurrency=2))
    queue.clock.advance(5)
    assert await queue.claimed(types=frozenset({"bot"}), limit=5) == [first]
    for id in (first, second):
        await queue.do(cancel(id, force=True))
    parent = await queue.running(type="parent", lease_seconds=10.0)
    child = await queue.running(type="child", parent_id=parent.id, lease_seconds=10.0)
    await queue.do(release(parent, children=(child.id,)))
    await queue.heartbeat(heartbeat(child, checkpoint=save(child, 1)))
    await queue.do(fail(child, retry_after_seconds=1.0))
    queue.clock.advance(1)
    child = await queue.again(child, lease_seconds=10.0)
    queue.clock.advance(10)
    await queue.sweep()
    child = await queue.again(child)
    await queue.do(complete(child, result="1"))
    parent = await queue.again(parent)
    await queue.do(cancel(parent.id, force=True))


def test_nothing_is_pending_when_all_migrations_are_applied() -> None:
    known = [Migration(1, "0001_a", "a"), Migration(2, "0002_b", "b")]
    assert pending(known, {}) == known
    assert pending(known, {1: known[0].checksum}) == known[1:]
    assert pending(known, {m.number: m.checksum for m in known}) == []
