"""The only place that wires: from a database URL to an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from interlock.engine.engine import Engine
from interlock.errors import Invalid
from interlock.storage.contract import Store
from interlock.storage.merged import merged

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")
ADVICE: Final = "use sqlite:///PATH or postgresql://USER@HOST/NAME"


async def open_store(url: str) -> Store:
    """The store behind a URL. A SQLite file is made and brought up to date; PostgreSQL is migrated by its owner."""
    if url.startswith(SQLITE):
        from interlock.storage.sqlite.store import SQLiteStore

        return await SQLiteStore.open(_path(url))
    if url.startswith(POSTGRES):
        _need_asyncpg()
        from interlock.storage.postgres.store import PostgresStore

        return await PostgresStore.open(url)
    raise Invalid(f"{url.split('@')[-1]!r} is not a database; {ADVICE}", pointer="/database")


async def migrate(url: str) -> list[str]:
    """Bring the schema behind a URL up to date and name what was applied."""
    if url.startswith(SQLITE):
        from interlock.storage.sqlite.store import SQLiteStore

        store = SQLiteStore(_path(url))
        try:
            return await store.migrate()
        finally:
            await store.close()
    if url.startswith(POSTGRES):
        _need_asyncpg()
        from interlock.storage.postgres.store import migrate as migrate_postgres

        return await migrate_postgres(url)
    raise Invalid(f"{url.split('@')[-1]!r} is not a database; {ADVICE}", pointer="/database")


@asynccontextmanager
async def open_engine(url: str) -> AsyncIterator[Engine]:
    """An engine for as long as the block lasts; its background chores are up to the caller."""
    engine = Engine(merged(await open_store(url)))
    try:
        yield engine
    finally:
        await engine.close()


def _path(url: str) -> str:
    path = url.removeprefix(SQLITE)
    if not path or path.endswith("/"):
        raise Invalid(f"{url!r} names no file; {ADVICE}", pointer="/database")
    return path


def _need_asyncpg() -> None:
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        raise Invalid("PostgreSQL needs the extra: pip install 'interlock[postgres]'", pointer="/database") from None
