"""A database is migrated while jobs run, and a migrator that is killed half-way leaves nothing behind (G26).

The programs at work are of today; the migrator is of tomorrow and knows one rung of the ladder more.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import apsw
import asyncpg
import pytest

from interlock import assemble
from interlock.errors import SchemaMismatch
from interlock.storage.migrate import Migration, migrations
from interlock.storage.postgres import migrate
from interlock.storage.sqlite import store as sqlite
from tests.process.conftest import Checker
from tests.process.load import Book, run_load
from tests.support.workers import Member, members, until

SCHEMA = {"sqlite": "", "postgres": "interlock."}
ENOUGH = 30  # answers, on either side of a migration


class Stuck(NamedTuple):
    """A migration that reports when it starts, and then waits indefinitely."""

    number: int
    name: str
    pipe: Connection
    checksum: str = ""

    @property
    def text(self) -> str:
        self.pipe.send("half-way")
        self.pipe.recv()
        raise AssertionError("no response was expected")


def tomorrow(engine: str) -> Migration:
    """Tables that all verbs use are changed, and a new one is made."""
    schema = SCHEMA[engine]
    text = f"""
        ALTER TABLE {schema}job ADD COLUMN tomorrow TEXT;
        ALTER TABLE {schema}queue ADD COLUMN tomorrow TEXT;
        CREATE TABLE {schema}tomorrow (tenant TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tenant, id));
    """
    number = len(migrations(f"interlock.storage.{engine}")) + 1
    return Migration(number, f"{number:04}_tomorrow", text)


def climb(pipe: Connection, engine: str, url: str, stuck: bool) -> None:
    """Migrate as tomorrow's program would; stuck before the end if so wished."""
    rung: Any = tomorrow(engine)
    more = [rung, Stuck(rung.number + 1, "stuck", pipe)] if stuck else [rung]
    known: Any = lambda package: [*migrations(package), *more]  # noqa: E731
    migrate.migrations = sqlite.migrations = known  # type: ignore[attr-defined]
    pipe.send(asyncio.run(assemble.migrate(url)))


def url(checker: Checker) -> str:
    return checker.admin_dsn or f"{assemble.SQLITE}{checker.place.address}"


def migrator(checker: Checker, *, stuck: bool = False) -> Member:
    return Member(climb, checker.place.engine, url(checker), stuck)


@contextlib.asynccontextmanager
async def at_work(checker: Checker, book: Book) -> AsyncIterator[None]:
    """Three workers that opened the database before, and continue until the block ends."""
    stores = [await checker.place.open(size=1) for _ in range(3)]
    stop = asyncio.Event()
    work = [
        asyncio.create_task(run_load(store, n, book.writer(n), insist=True, stop=stop))
        for n, store in enumerate(stores, 1)
    ]
    try:
        await more_answers(book)
        yield
        await more_answers(book)
    finally:
        stop.set()
        ends = await asyncio.gather(*work, return_exceptions=True)
        for store in stores:
            await store.close()
    assert ends == [None] * len(work)


async def more_answers(book: Book) -> None:
    seen = book.answers

    async def enough() -> bool:
        return book.answers >= seen + ENOUGH

    await until(enough, "the workers continue")


async def rungs(checker: Checker) -> list[str]:
    """The names of the applied migrations, without the functions, as any tool would read them."""
    query = f"SELECT name FROM {SCHEMA[checker.place.engine]}schema_migration WHERE number > 0 ORDER BY number"
    if checker.admin_dsn is None:
        with contextlib.closing(apsw.Connection(checker.place.address)) as db:
            return [str(name) for (name,) in db.execute(query)]
    admin = await asyncpg.connect(checker.admin_dsn)
    try:
        return [str(row[0]) for row in await admin.fetch(query)]
    finally:
        await admin.close()


async def test_a_migration_under_load_loses_nothing_and_blocks_no_caller(checker: Checker) -> None:
    book = Book()
    rung = tomorrow(checker.place.engine)
    async with at_work(checker, book):
        member = migrator(checker)
        with members(member):
            assert await asyncio.to_thread(member.receive) == [rung.name]
    assert (await rungs(checker))[-1] == rung.name
    with pytest.raises(SchemaMismatch, match="was migrated by a newer version of Interlock"):
        await checker.place.open()
    await book.compare(checker)
    await book.finish_remaining(checker)


async def test_a_migrator_killed_halfway_leaves_the_old_schema_and_the_next_one_completes_it(checker: Checker) -> None:
    book = Book()
    before = await rungs(checker)
    async with at_work(checker, book):
        first = migrator(checker, stuck=True)
        with members(first):
            assert await asyncio.to_thread(first.receive) == "half-way"
            first.signal(signal.SIGKILL)
            first.wait()
        await more_answers(book)
        assert await rungs(checker) == before
        second = migrator(checker)
        with members(second):
            assert await asyncio.to_thread(second.receive) == [tomorrow(checker.place.engine).name]
    await book.compare(checker)
    await book.finish_remaining(checker)


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_migrator_that_cannot_get_a_lock_yields_to_others(checker: Checker) -> None:
    """A client has read a job in a transaction that is still open: the migrator must not make others wait behind it."""
    book = Book()
    idle = await asyncpg.connect(checker.admin_dsn)
    reading = idle.transaction()
    await reading.start()
    await idle.fetch("select from interlock.job limit 1")
    try:
        async with at_work(checker, book):
            member = migrator(checker)
            with members(member):
                await until(lambda: waits_for_a_lock(checker), "the migrator waits")
                await more_answers(book)  # while it tries, and gives way, and tries again
                assert not member.pipe.poll()
                await reading.rollback()
                assert await asyncio.to_thread(member.receive) == [tomorrow("postgres").name]
    finally:
        await idle.close()
    await book.compare(checker)


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_migrator_and_a_session_in_deadlock_both_succeed(checker: Checker) -> None:
    """They take two tables in another order. The other one is patient, so the database ends the migrator's try."""
    other = await asyncpg.connect(checker.admin_dsn)
    try:
        await other.execute("set deadlock_timeout = '10min'; begin; lock table interlock.queue in row share mode")
        member = migrator(checker)
        with members(member):
            await until(lambda: waits_for_a_lock(checker, "queue"), "the migrator has job and waits for queue")
            await other.execute("lock table interlock.job in row share mode; commit")
            assert await asyncio.to_thread(member.receive) == [tomorrow("postgres").name]
    finally:
        await other.close()


async def waits_for_a_lock(checker: Checker, table: str = "job") -> bool:
    admin = await asyncpg.connect(checker.admin_dsn)
    try:
        return bool(
            await admin.fetchval(
                "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock' "
                "and relation = $1::text::regclass",
                f"interlock.{table}",
            )
        )
    finally:
        await admin.close()
