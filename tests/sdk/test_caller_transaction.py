"""On PostgreSQL a job can be part of the caller's own transaction, with any of the usual drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import interlock
from interlock.assemble import App
from interlock.errors import Forbidden, Invalid
from interlock.sdk.tasks import Task
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, empty_database

ODD = 'it\'s "quoted" \\ {braced}, \x00 ü'


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[str]:
    async with empty_database(postgres) as name:
        yield name


@pytest.fixture
async def dsn(database: str, postgres: Postgres) -> str:
    """As the app role: the caller has no other rights on our schema."""
    return postgres.dsn(database, user=APP_LOGIN)


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    async with interlock.App(dsn) as made:
        yield made


@pytest.fixture
def note(app: App) -> Task[..., Any]:
    @app.task(agent=("planner", "ada"), tags=["a b", 'c"d'], idempotency_key="k1")
    async def note(text: str, more: dict[str, Any] | None = None) -> str:
        return text

    return note


async def exists(app: App, id: str) -> bool:
    try:
        await app.job(id).refresh()
    except interlock.Error:
        return False
    return True


class Rollback(Exception):
    pass


async def with_asyncpg(dsn: str, note: Task[..., Any], commit: bool) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            handle = await note.within(connection).enqueue(text=ODD)
            if not commit:
                raise Rollback(handle.id)
            return handle.id
    finally:
        await connection.close()


async def with_psycopg(dsn: str, note: Task[..., Any], commit: bool) -> str:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        handle = await note.within(connection).enqueue(text=ODD)
        if not commit:
            raise Rollback(handle.id)
        return handle.id


async def with_blocking_psycopg(dsn: str, note: Task[..., Any], commit: bool) -> str:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        handle = await note.within(connection).enqueue(text=ODD)
        if not commit:
            raise Rollback(handle.id)
        return handle.id


async def with_sqlalchemy(dsn: str, note: Task[..., Any], commit: bool) -> str:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            handle = await note.within(connection).enqueue(text=ODD)
            if not commit:
                raise Rollback(handle.id)
            return handle.id
    finally:
        engine.dispose()


async def with_session(dsn: str, note: Task[..., Any], commit: bool) -> str:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session, session.begin():
            handle = await note.within(session).enqueue(text=ODD)
            if not commit:
                raise Rollback(handle.id)
            return handle.id
    finally:
        engine.dispose()


async def with_async_session(dsn: str, note: Task[..., Any], commit: bool) -> str:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            handle = await note.within(session).enqueue(text=ODD)
            if not commit:
                raise Rollback(handle.id)
            return handle.id
    finally:
        await engine.dispose()


async def with_async_connection(dsn: str, note: Task[..., Any], commit: bool) -> str:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            handle = await note.within(connection).enqueue(text=ODD)
            if not commit:
                raise Rollback(handle.id)
            return handle.id
    finally:
        await engine.dispose()


WAYS = [
    with_asyncpg, with_psycopg, with_blocking_psycopg, with_sqlalchemy, with_session, with_async_session,
    with_async_connection,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_commits_or_rolls_back_with_the_transaction_of_the_caller(
    way: Any, dsn: str, app: App, note: Task[..., Any]
) -> None:
    with pytest.raises(Rollback) as rolled_back:
        await way(dsn, note, commit=False)
    assert not await exists(app, str(rolled_back.value))
    id = await way(dsn, note, commit=True)
    job = await app.job(id).refresh()
    assert (job.agent, sorted(job.tags)) == (("planner", "ada"), ["a b", 'c"d'])
    assert await interlock.Worker(app).run(drain=True) == 1
    assert await app.job(id).result(timeout=RETRY_SECONDS) == ODD


async def test_a_synchronous_caller_enqueues_in_its_own_transaction(dsn: str, note: Task[..., Any], app: App) -> None:
    import asyncio

    def block() -> tuple[str, str]:
        with psycopg.connect(dsn) as connection:
            kept = note.within(connection).options(idempotency_key="kept").enqueue_sync(text="kept")
        with psycopg.connect(dsn) as connection:
            gone = note.within(connection).options(idempotency_key="gone").enqueue_sync(text="gone")
            connection.rollback()
        app.close_sync()
        return kept.id, gone.id

    kept, gone = await asyncio.to_thread(block)
    assert (await exists(app, kept), await exists(app, gone)) == (True, False)


async def test_a_child_commits_or_rolls_back_with_the_transaction_of_its_parents_run(dsn: str, app: App) -> None:
    @app.task
    async def below() -> None: ...

    @app.task
    async def above(ctx: interlock.Context) -> list[str]:
        connection = await asyncpg.connect(dsn)
        try:
            gone = await roll_back(connection, ctx)
            async with connection.transaction():
                kept = await ctx.enqueue(below.within(connection))
            return [gone.id, kept.id]
        finally:
            await connection.close()

    async def roll_back(connection: Any, ctx: interlock.Context) -> interlock.Child[None]:
        transaction = connection.transaction()
        await transaction.start()
        child = await ctx.enqueue(below.within(connection))
        await transaction.rollback()
        return child

    job = await above.enqueue()
    await interlock.Worker(app).run(drain=True)
    gone, kept = await job.result(timeout=0)
    assert (await exists(app, gone), await exists(app, kept)) == (False, True)


async def test_a_rejection_leaves_the_transaction_of_the_caller_usable(
    dsn: str, note: Task[..., Any], app: App
) -> None:
    await note.enqueue(text="first")
    with psycopg.connect(dsn) as connection:
        with pytest.raises(interlock.Error, match="k1"):
            await note.within(connection).enqueue(text="another body")
        replayed = await note.within(connection).enqueue(text="first")
        assert connection.execute("select 1").fetchone() == (1,)
    assert replayed.replayed


async def test_a_concurrent_registration_leaves_the_transaction_of_the_caller_usable(dsn: str, app: App) -> None:
    @app.task
    async def plain(text: str) -> str:
        return text

    @app.task(agent=("planner", "ada"))
    async def planned() -> None: ...

    async def register_more(name: str) -> None:
        async with interlock.App(dsn) as other:
            other.task(name=name)(lambda: None)
            await other.register()

    await plain.enqueue(text="so that the registry is known here")
    for way in (with_asyncpg, with_psycopg, with_session):
        await register_more(way.__name__)
        assert await exists(app, await way(dsn, plain, commit=True))
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("create temporary table mine on commit drop as select 1 as n")
            await register_more("newer")
            kept = await planned.within(connection).enqueue()
            assert await connection.fetchval("select n from mine") == 1
    finally:
        await connection.close()
    assert await exists(app, kept.id)


async def test_a_connection_without_a_transaction_and_another_object_are_rejected(
    dsn: str, note: Task[..., Any], app: App
) -> None:
    @app.task
    async def plain() -> None: ...

    connection = await asyncpg.connect(dsn)
    try:
        with pytest.raises(Invalid, match="begin one"):
            await note.within(connection).enqueue(text="x")
        with pytest.raises(Invalid, match="begin one"):
            await plain.within(connection).enqueue()
    finally:
        await connection.close()
    with psycopg.connect(dsn, autocommit=True) as automatic:
        with pytest.raises(Invalid, match="begin one"):
            await plain.within(automatic).enqueue()
        with automatic.transaction():
            kept = await plain.within(automatic).enqueue()
    assert await exists(app, kept.id)
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    for wrong in ("a string", engine):
        with pytest.raises(Invalid, match="not a PostgreSQL connection"):
            await note.within(wrong).enqueue(text="x")
    with psycopg.connect(dsn) as below, pytest.raises(Invalid, match="Cursor is not a PostgreSQL connection"):
        await note.within(below.cursor()).enqueue(text="x")
    async with asyncpg.create_pool(dsn, min_size=0) as pool:
        with pytest.raises(Invalid, match="Pool is not a PostgreSQL connection"):
            await note.within(pool).enqueue(text="x")
    with pytest.raises(TypeError, match="got None"):
        note.within(None)


@pytest.mark.parametrize("way", [with_asyncpg, with_psycopg, with_blocking_psycopg, with_sqlalchemy])
async def test_a_role_without_the_grant_gets_it_named_with_the_statement_to_run(
    note: Task[..., Any], database: str, postgres: Postgres, way: Any
) -> None:
    admin = await asyncpg.connect(postgres.dsn(database))
    try:
        await admin.execute('create role "no rights" login')
        with pytest.raises(Forbidden, match='GRANT interlock_app TO "no rights"'):
            await way(postgres.dsn(database, user="no rights"), note, True)
        await admin.execute('grant interlock_app to "no rights"')
        assert await way(postgres.dsn(database, user="no rights"), note, True)
    finally:
        await admin.execute('drop role if exists "no rights"')
        await admin.close()


async def test_a_missing_grant_leaves_the_transaction_of_the_caller_unchanged(
    note: Task[..., Any], database: str, postgres: Postgres
) -> None:
    admin = await asyncpg.connect(postgres.dsn(database))
    try:
        await admin.execute("create role bare login")
        connection = await asyncpg.connect(postgres.dsn(database, user="bare"))
        try:
            async with connection.transaction():
                await connection.execute("create temp table mine (n int) on commit drop")
                with pytest.raises(Forbidden, match="GRANT interlock_app TO bare"):
                    await note.within(connection).enqueue(text="x")
                await connection.execute("insert into mine values (1)")
        finally:
            await connection.close()
    finally:
        await admin.execute("drop role bare")
        await admin.close()


async def test_a_database_without_the_schema_is_named(note: Task[..., Any], postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.dsn("postgres"))
    try:
        async with connection.transaction():
            with pytest.raises(Invalid, match="no schema interlock: connect to the database of the app"):
                await note.within(connection).enqueue(text="x")
    finally:
        await connection.close()


async def test_sqlite_reports_that_it_has_no_support(tmp_path: Path) -> None:
    async with interlock.App(f"sqlite:///{tmp_path}/x.db") as app:

        @app.task
        async def nothing() -> None: ...

        with pytest.raises(Invalid, match="PostgreSQL only"):
            await nothing.within(object()).enqueue()
