"""The store interface for audit, and for the epoch after a restore."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.operator_log import LogRow


class AuditStore(Protocol):
    """The part of a store that reads history in bounded parts, and raises the epoch after a restore."""

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        """Return the histories of up to `jobs` jobs in order of arrival, after a position."""
        ...

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        """Verify the chains of up to `jobs` jobs against the jobs; the last part includes the audit log."""
        ...

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        """List operator actions after a row number, oldest first."""
        ...

    async def raise_epoch(self, above: int) -> int:
        """Raise the epoch above `above`, so that future fences exceed all issued so far; return the new epoch.

        Only the owner of a database may do this. No claim in progress keeps the old epoch.
        """
        ...
