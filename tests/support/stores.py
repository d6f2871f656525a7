"""Stores for tests: a fresh file or a fresh database for each, with a clock that tests set."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg

from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore, migrate
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.postgres import Postgres

START: Final = 1_800_000_000_000_000  # some day in 2027
SECOND: Final = 1_000_000
APP_LOGIN: Final = "interlock_test_login"
TEMPLATE: Final = f"interlock_template_{os.getpid()}"
ENGINES: Final = ("sqlite", "postgres")

_numbers = itertools.count(1)


class ManualClock:
    """Time that moves only when a test says so; microseconds since 1970."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


async def make_template(postgres: Postgres) -> None:
    """A migrated database to copy from, and a login that has the rights of the app role and no more."""
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await admin.execute(f"create database {TEMPLATE}")
        await migrate(postgres.dsn(TEMPLATE))
        await admin.execute(
            f"do $$ begin create role {APP_LOGIN} login in role interlock_app; "
            "exception when duplicate_object or unique_violation then null; end $$"
        )
    finally:
        await admin.close()


@asynccontextmanager
async def fresh_database(postgres: Postgres) -> AsyncIterator[str]:
    """The name of a new migrated database, dropped afterwards."""
    name = f"interlock_test_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await admin.execute(f"create database {name} template {TEMPLATE}")
        yield name
    finally:
        await admin.execute(f"drop database if exists {name} with (force)")
        await admin.close()


@asynccontextmanager
async def open_store(
    engine: str, *, directory: Path, postgres: Postgres, clock: ManualClock | None
) -> AsyncIterator[Store]:
    """A store on a fresh file or database; on PostgreSQL as the app role."""
    store: Store
    if engine == "sqlite":
        path = str(directory / f"interlock-{next(_numbers)}.db")
        store = await (SQLiteStore.open(path, clock=clock) if clock else SQLiteStore.open(path))
        try:
            yield store
        finally:
            await store.close()
    else:
        async with fresh_database(postgres) as name:
            store = await PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=4, clock=clock)
            try:
                yield store
            finally:
                await store.close()
