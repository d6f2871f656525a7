"""The store interface for audit."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.operator_log import LogRow


class ChainVerification(NamedTuple):
    """The result of an audit: how much was read, and the first row that does not match, if any."""

    jobs: int
    rows: int
    first_bad: str | None


class AuditStore(Protocol):
    """The part of a store that reads and verifies history, in bounded parts."""

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        """Return the histories of up to `jobs` jobs in order of arrival, after a position."""
        ...

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        """Verify the chains of up to `jobs` jobs against the jobs; the last part includes the audit log."""
        ...

    async def verify(self, tenant: str | None = None) -> ChainVerification:
        """Recompute every chain of history, and compare its head with the job."""
        ...

    async def head(self, tenant: str | None = None) -> str:
        """Return one hash over the chain heads of a tenant, or of all tenants, to be stored elsewhere."""
        ...

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        """List operator actions after a row number, oldest first."""
        ...

    async def tenants(self) -> list[str]:
        """List all tenants that have a job or a history."""
        ...
