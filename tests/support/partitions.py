"""Databases whose history is partitioned: created once per process, and copied for each test that needs one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import asyncpg

from interlock.storage.postgres.partition_history import partition
from interlock.storage.postgres.store import PostgresStore
from tests.support.emptied import copy_database, lent_database
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import SECOND, TEMPLATE

DAY: Final = 86_400 * SECOND
PARTITIONED: Final = f"{TEMPLATE}_partitioned"

_made: set[str] = set()


@contextmanager
def partitioned_database(postgres: Postgres) -> Iterator[str]:
    """The name of a migrated database without a job, with partitions of a day before and after today."""
    if PARTITIONED not in _made:
        asyncio.run(_make(postgres))
        _made.add(PARTITIONED)
    with lent_database(postgres, PARTITIONED) as name:
        yield name


async def _make(postgres: Postgres) -> None:
    await copy_database(postgres, PARTITIONED, TEMPLATE)
    now = time.time_ns() // 1000
    await partition_as_of(postgres, PARTITIONED, now - 3 * DAY)
    store = await PostgresStore.open(postgres.dsn(PARTITIONED, user=OWNER), size=1)
    try:
        assert await store.extend_history()
    finally:
        await store.close()


async def partition_as_of(postgres: Postgres, database: str, now: int) -> None:
    """Partition history by the day, as if it were another time, which is given in microseconds."""
    time = datetime.fromtimestamp(now / SECOND, UTC).isoformat()
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await admin.execute(f"alter database {database} set interlock.clock = '{time}'")
        assert await partition(postgres.dsn(database, user=OWNER), 1)
    finally:
        await admin.execute(f"alter database {database} reset interlock.clock")
        await admin.close()
