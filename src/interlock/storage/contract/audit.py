"""What every engine offers to auditors, and after a restore: a part of the contract of a store."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.operator_log import LogRow


class AuditStore(Protocol):
    """The part of a store that hands out history in bounded pieces, and draws the line under a restore."""

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        """Histories in the order of arrival, from a place on, of so many jobs."""
        ...

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        """Recompute the chains of so many jobs, and compare their ends with the jobs; the last part
        has the audit log with it."""
        ...

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        """What operators did, oldest first, from the row after a number on."""
        ...

    async def raise_epoch(self, above: int) -> int:
        """Lift every fence to come over all fences handed out so far; the new epoch, higher than `above`.

        Only the owner of a database may do this. No claim that is under way keeps the old epoch.
        """
        ...
