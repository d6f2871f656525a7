"""Stores of the campaign: several independent ones on one file or database, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock, fresh_database, migrated_file, opened

MEMORY_DISK = Path("/dev/shm")


def scratch_parent() -> Path | None:
    """Where short-lived files go if their disk is not what is tried."""
    return MEMORY_DISK if MEMORY_DISK.is_dir() else None


@asynccontextmanager
async def several_stores(engine: str, count: int, postgres: Postgres, clock: ManualClock) -> AsyncIterator[list[Store]]:
    """Each has its own connections, as if each were another process."""
    async with AsyncExitStack() as stack:
        stores: list[Store] = []
        if engine == "sqlite":
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=scratch_parent()))
            path = await asyncio.to_thread(migrated_file, Path(directory) / "interlock.db")
            for _ in range(count):
                stores.append(await stack.enter_async_context(opened(SQLiteStore.open(path, clock=clock))))
        else:
            name = await stack.enter_async_context(fresh_database(postgres))
            dsn = postgres.dsn(name, user=APP_LOGIN)
            for _ in range(count):
                stores.append(await stack.enter_async_context(opened(PostgresStore.open(dsn, size=4, clock=clock))))
        yield stores
