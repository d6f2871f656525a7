"""Stores for tests: a file or a database without a job for each, with a clock that tests set."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import asyncpg

from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore, migrate
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.emptied import copy_database, drop_database, emptied_database
from tests.support.postgres import OWNER as OWNER
from tests.support.postgres import Postgres

S = TypeVar("S", bound=Store)

START: Final = 1_800_000_000_000_000  # some day in 2027
SECOND: Final = 1_000_000
APP_LOGIN: Final = "interlock_test_login"
TEMPLATE: Final = f"interlock_template_{os.getpid()}"
ENGINES: Final = ("sqlite", "postgres")

_numbers = itertools.count(1)


class ManualClock:
    """A clock that only a test moves; microseconds since 1970."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


async def make_template(postgres: Postgres) -> None:
    """A migrated database to copy, its owner (not a superuser), and a login with only the rights of the app role."""
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await _make_role(admin, f"{OWNER} login createrole")
        await admin.execute(f"create database {TEMPLATE} owner {OWNER}")
        await migrate(postgres.dsn(TEMPLATE, user=OWNER))
        await _make_role(admin, f"{APP_LOGIN} login in role interlock_app")
    finally:
        await admin.close()


async def _make_role(admin: asyncpg.Connection[asyncpg.Record], role: str) -> None:
    await admin.execute(
        f"do $$ begin create role {role}; exception when duplicate_object or unique_violation then null; end $$"
    )


@functools.cache
def _first_file() -> bytes:
    """A migrated file without a job: copying it costs a quarter of what climbing the ladder does."""
    with tempfile.TemporaryDirectory(prefix="interlock-first-") as directory:
        path = f"{directory}/interlock.db"
        asyncio.run(_make_file(path))
        return Path(path).read_bytes()


async def _make_file(path: str) -> None:
    await (await SQLiteStore.open(path)).close()


def migrated_file(path: Path) -> str:
    """Put a file without a job here, as one that was just made, and answer its path."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(_first_file())
    return str(path)


@asynccontextmanager
async def fresh_database(postgres: Postgres) -> AsyncIterator[str]:
    """The name of a new migrated database, dropped afterwards; if it only has to be empty, use an `empty_database`."""
    name = f"interlock_test_{os.getpid()}_{next(_numbers)}"
    try:
        await copy_database(postgres, name, TEMPLATE)
        yield name
    finally:
        await drop_database(postgres, name)


def empty_database(postgres: Postgres) -> AbstractAsyncContextManager[str]:
    """The name of a migrated database without a job, which others may have used before."""
    return emptied_database(postgres, TEMPLATE)


@asynccontextmanager
async def opened(opening: Awaitable[S]) -> AsyncIterator[S]:
    """A store, closed at the end."""
    store = await opening
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_store(
    engine: str, *, directory: Path, postgres: Postgres, clock: ManualClock | None
) -> AsyncIterator[Store]:
    """A store on a file or database without a job; on PostgreSQL as the app role."""
    if engine == "sqlite":
        path = await asyncio.to_thread(migrated_file, directory / f"interlock-{next(_numbers)}.db")
        async with opened(SQLiteStore.open(path, clock=clock) if clock else SQLiteStore.open(path)) as store:
            yield store
    else:
        async with (
            empty_database(postgres) as name,
            opened(PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=4, clock=clock)) as database,
        ):
            yield database
