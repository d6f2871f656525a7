"""A database is migrated while work goes on, and a migrator that is killed half-way leaves nothing behind (G26).

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
from tests.process.conftest import Judge
from tests.process.toil import Book, toil
from tests.support.workers import Member, members, until

SCHEMA = {"sqlite": "", "postgres": "interlock."}
ENOUGH = 30  # answers, on either side of a migration


class Stuck(NamedTuple):
    """A migration that tells when it is its turn, and then waits for ever."""

    number: int
    name: str
    pipe: Connection
    checksum: str = ""

    @property
    def text(self) -> str:
        self.pipe.send("half-way")
        self.pipe.recv()
        raise AssertionError("nobody was to answer")


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


def url(judge: Judge) -> str:
    return judge.admin_dsn or f"{assemble.SQLITE}{judge.place.address}"


def migrator(judge: Judge, *, stuck: bool = False) -> Member:
    return Member(climb, judge.place.engine, url(judge), stuck)


@contextlib.asynccontextmanager
async def at_work(judge: Judge, book: Book) -> AsyncIterator[None]:
    """Three workers that opened the database before, and go on until the block ends."""
    stores = [await judge.place.open(size=1) for _ in range(3)]
    stop = asyncio.Event()
    work = [
        asyncio.create_task(toil(store, n, book.writer(n), insist=True, stop=stop)) for n, store in enumerate(stores, 1)
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

    await until(enough, "work goes on")


async def rungs(judge: Judge) -> list[str]:
    """The names of the migrations that the database has, the verbs aside, as a tool of anybody's would read them."""
    query = f"SELECT name FROM {SCHEMA[judge.place.engine]}schema_migration WHERE number > 0 ORDER BY number"
    if judge.admin_dsn is None:
        with contextlib.closing(apsw.Connection(judge.place.address)) as db:
            return [str(name) for (name,) in db.execute(query)]
    admin = await asyncpg.connect(judge.admin_dsn)
    try:
        return [str(row[0]) for row in await admin.fetch(query)]
    finally:
        await admin.close()


async def test_a_migration_under_load_loses_nothing_and_stops_nobody(judge: Judge) -> None:
    book = Book()
    rung = tomorrow(judge.place.engine)
    async with at_work(judge, book):
        member = migrator(judge)
        with members(member):
            assert await asyncio.to_thread(member.receive) == [rung.name]
    assert (await rungs(judge))[-1] == rung.name
    with pytest.raises(SchemaMismatch, match="does not know; use a newer one"):
        await judge.place.open()
    await book.compare(judge)
    await book.finish_what_is_left(judge)


async def test_a_migrator_killed_half_way_leaves_what_was_there_and_the_next_one_completes_it(judge: Judge) -> None:
    book = Book()
    before = await rungs(judge)
    async with at_work(judge, book):
        first = migrator(judge, stuck=True)
        with members(first):
            assert await asyncio.to_thread(first.receive) == "half-way"
            first.signal(signal.SIGKILL)
            first.wait()
        await more_answers(book)
        assert await rungs(judge) == before
        second = migrator(judge)
        with members(second):
            assert await asyncio.to_thread(second.receive) == [tomorrow(judge.place.engine).name]
    await book.compare(judge)
    await book.finish_what_is_left(judge)


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_migrator_that_cannot_get_a_lock_gives_way_to_everybody_else(judge: Judge) -> None:
    """Somebody has read a job and not ended their transaction: the migrator must not make all others wait behind it."""
    book = Book()
    idle = await asyncpg.connect(judge.admin_dsn)
    reading = idle.transaction()
    await reading.start()
    await idle.fetch("select from interlock.job limit 1")
    try:
        async with at_work(judge, book):
            member = migrator(judge)
            with members(member):
                await until(lambda: waits_for_a_lock(judge), "the migrator waits")
                await more_answers(book)  # while it tries, and gives way, and tries again
                assert not member.pipe.poll()
                await reading.rollback()
                assert await asyncio.to_thread(member.receive) == [tomorrow("postgres").name]
    finally:
        await idle.close()
    await book.compare(judge)


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_migrator_and_somebody_else_who_wait_for_each_other_both_get_through(judge: Judge) -> None:
    """They take two tables in another order. The other one is patient, so the database ends the migrator's try."""
    other = await asyncpg.connect(judge.admin_dsn)
    try:
        await other.execute("set deadlock_timeout = '10min'; begin; lock table interlock.queue in row share mode")
        member = migrator(judge)
        with members(member):
            await until(lambda: waits_for_a_lock(judge, "queue"), "the migrator has job and waits for queue")
            await other.execute("lock table interlock.job in row share mode; commit")
            assert await asyncio.to_thread(member.receive) == [tomorrow("postgres").name]
    finally:
        await other.close()


async def waits_for_a_lock(judge: Judge, table: str = "job") -> bool:
    admin = await asyncpg.connect(judge.admin_dsn)
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
