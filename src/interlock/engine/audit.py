"""Auditors: all of history, verified or handed out in bounded pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from interlock import wire
from interlock.domain.audit import Chronicle, VerifiedPart
from interlock.storage.contract import Store

MOST_AT_ONCE: Final = 10_000
EXPORT_AT_ONCE: Final = 200


class Audit:
    """What proves what happened, read piece by piece so that it may be of any size."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int = MOST_AT_ONCE) -> VerifiedPart:
        """Recompute the chains of so many jobs, from where the part before has ended."""
        return await self._store.verify_part(tenant, after=after, jobs=wire.whole(jobs, "jobs", 1, MOST_AT_ONCE))

    async def export(self, tenant: str, *, after: int = 0) -> AsyncIterator[list[Chronicle]]:
        """Every history of a tenant in the order of arrival, some jobs at a time."""
        while page := await self._store.histories(tenant, after=after, jobs=EXPORT_AT_ONCE):
            yield page
            after = page[-1].seq
