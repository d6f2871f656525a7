"""Audit: verify and export history in bounded parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from interlock import wire
from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.operator_log import LogRow
from interlock.storage.contract import Store

BATCH_SIZE: Final = 10_000
EXPORT_BATCH_SIZE: Final = 200
MAX_LOG_ROWS: Final = 1_000


class Audit:
    """Verification and export of history, read in parts so that its size does not matter."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int | None = None) -> VerifiedPart:
        """Verify the chains of up to `jobs` jobs, starting after the previous part."""
        most = BATCH_SIZE if jobs is None else wire.whole(jobs, "jobs", 1, BATCH_SIZE)
        return await self._store.audit.verify_part(tenant, after=after, jobs=most)

    async def log(self, tenant: str, *, after: int = 0, limit: int = 50) -> list[LogRow]:
        """List operator actions after a row number, oldest first."""
        return await self._store.audit.log(tenant, after=after, limit=wire.whole(limit, "limit", 1, MAX_LOG_ROWS))

    async def export(self, tenant: str, *, after: int = 0) -> AsyncIterator[list[HistoryExport]]:
        """Yield every history of a tenant in order of arrival, a few jobs at a time."""
        while page := await self._store.audit.histories(tenant, after=after, jobs=EXPORT_BATCH_SIZE):
            yield page
            after = page[-1].seq
