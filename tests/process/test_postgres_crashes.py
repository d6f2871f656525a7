"""PostgreSQL killed, or its backends ended, under load: acknowledged work survives, and the stores recover."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from tests.process.conftest import FAST, Checker
from tests.process.load import Book, run_load
from tests.support.forms import chance
from tests.support.postgres import Postgres, PostgresServer
from tests.support.stores import APP_LOGIN, TEMPLATE, fresh_database, make_template
from tests.support.workers import Place, until

Property = Callable[[str, object], None]
WORKERS = 6
STORES = 2


@asynccontextmanager
async def under_load(dsn: str, book: Book) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Workers on several stores, who repeat what was not answered; yields a way to wait until all have got on."""
    stores: list[Store] = [await PostgresStore.open(dsn, size=3) for _ in range(STORES)]
    stop = asyncio.Event()
    answered = [0] * WORKERS

    def recorder_for(worker: int) -> Callable[[str, str, object], None]:
        note = book.writer(worker)

        def record(when: str, verb: str, facts: object) -> None:
            note(when, verb, facts)
            answered[worker] += when == "after"

        return record

    tasks = [
        asyncio.create_task(run_load(stores[i % STORES], i, recorder_for(i), insist=True, stop=stop))
        for i in range(WORKERS)
    ]

    async def all_get_on() -> None:
        before = list(answered)

        async def got_on() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return all(now >= then + 3 for now, then in zip(answered, before, strict=True))

        await until(got_on, "every worker gets answers again")

    try:
        yield all_get_on
        stop.set()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            await store.close()


async def test_acknowledged_work_survives_a_crash_of_postgresql(record_property: Property) -> None:
    kills = 4 if FAST else 10
    dice = chance()
    book = Book()
    with PostgresServer() as server:
        await make_template(server)
        dsn = server.dsn(TEMPLATE, user=APP_LOGIN)
        async with under_load(dsn, book) as all_get_on:
            for _ in range(kills):
                await all_get_on()
                await asyncio.sleep(dice.uniform(0, 0.05))  # a random moment, not a wait
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await all_get_on()
        await check_final_state(book, dsn, server.dsn(TEMPLATE))
    line = f"{kills} deaths of PostgreSQL: {book.answers} calls answered, {dict(book.unknown)} unknown and repeated"
    print(line)
    record_property("postgres_kills", line)


async def test_terminated_backends_are_replaced_without_a_loss(postgres: Postgres, record_property: Property) -> None:
    enough = 30 if FAST else 150
    dice = chance()
    book = Book()
    ended = 0
    async with fresh_database(postgres) as name:
        dsn = postgres.dsn(name, user=APP_LOGIN)
        admin = await asyncpg.connect(postgres.dsn(name))
        async with under_load(dsn, book) as all_get_on:
            for commit_seq in itertools.count(1):
                backends = await admin.fetch(
                    "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                )
                for row in dice.sample(backends, min(len(backends), dice.randrange(1, 4))):
                    ended += await admin.fetchval("select pg_terminate_backend($1)", row[0])
                if commit_seq % 10 == 0:
                    await all_get_on()
                    if ended >= enough:
                        break
                await asyncio.sleep(dice.uniform(0, 0.02))  # a random moment, not a wait
        await admin.close()
        await check_final_state(book, dsn, postgres.dsn(name))
    line = f"{ended} backends ended: {book.answers} calls answered, {dict(book.unknown)} unknown and repeated"
    print(line)
    record_property("backends_ended", line)


async def check_final_state(book: Book, dsn: str, admin_dsn: str) -> None:
    store = await PostgresStore.open(dsn)
    try:
        checker = Checker(Place("postgres", dsn), store, admin_dsn)
        await book.compare(checker)
        await book.finish_remaining(checker)
    finally:
        await store.close()
