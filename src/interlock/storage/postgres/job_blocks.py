"""Index of job blocks on PostgreSQL, so that lists with a rare filter need not scan all jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncpg

BATCH_SIZE: Final = 16


class PostgresJobBlocks(ABC):
    """The store methods that maintain job blocks."""

    _given_when_all_was_noted = 0

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    async def index_job_blocks(self, jobs: int, limit: int) -> int:
        ((given,),) = await self._fetch("select interlock.last_job_seq()")
        if 0 <= given - self._given_when_all_was_noted < jobs:
            return 0
        await self._fetch("select interlock.look_at_new_tables()")
        noted = 0
        tails = await self._fetch("select * from interlock.long_tails($1, $2)", jobs, limit)
        for (tenant,) in tails:
            ((some,),) = await self._fetch("select interlock.index_job_blocks($1, $2, $3)", tenant, jobs, BATCH_SIZE)
            noted += some
        if not tails:
            self._given_when_all_was_noted = given
        return noted
