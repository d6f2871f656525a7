"""Index of job blocks on SQLite, so that lists with rare filters skip most jobs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "job_blocks.sql")
BATCH_SIZE: Final = 16  # bounds the transaction: other writes wait for it


class SQLiteJobBlocks(ABC):
    """Job block methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    async def index_job_blocks(self, jobs: int, limit: int) -> int:
        facts = {"jobs": jobs, "limit": limit}
        tenants = await self._read(lambda c: [tenant for (tenant,) in c.rows(_SQL["long_tails"], facts)])
        return sum([await self._write(partial(_note, tenant=tenant, jobs=jobs)) for tenant in tenants])


def _note(connection: Connection, tenant: str, jobs: int) -> int:
    for noted in range(BATCH_SIZE):
        facts = {"tenant": tenant, "after": noted_to(connection, tenant), "jobs": jobs}
        rows = connection.rows(_SQL["next_jobs"], facts)
        if len(rows) < jobs:
            return noted
        first, times = rows[0][0], [created_at for _, created_at, _, _ in rows]
        connection.db.execute(_SQL["insert_block"], (tenant, first, rows[-1][0], min(times), max(times)))
        words = {("type", type) for _, _, type, _ in rows}
        words |= {("tag", tag) for tags in {tags for _, _, _, tags in rows} for tag in json.loads(tags)}
        connection.db.executemany(_SQL["insert_term"], [(tenant, kind, word, first) for kind, word in sorted(words)])
    return BATCH_SIZE


def noted_to(connection: Connection, tenant: str) -> int:
    """Return the seq of the last job in a job block."""
    ((seq,),) = connection.rows(_SQL["noted_to"], {"tenant": tenant})
    return int(seq)


def between(
    connection: Connection, tenant: str, created_after: int | None, created_before: int | None
) -> tuple[int, int] | None:
    """Return the first and last seq of the job blocks that overlap a creation time range, or None."""
    facts = {"tenant": tenant, "created_after": created_after, "created_before": created_before}
    ((first, last),) = connection.rows(_SQL["between"], facts)
    return None if first is None else (first, last)


def drop_emptied(connection: Connection, tenant: str, first: int, last: int) -> None:
    """Delete job blocks without jobs that overlap a range of seqs."""
    connection.db.execute(_SQL["drop_emptied"], {"tenant": tenant, "first": first, "last": last})
