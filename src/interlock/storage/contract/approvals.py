"""The store interface for approvals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.approval import Approval, ApprovalFilter, CastVote, CreateApprovalLink
from interlock.domain.job import Rejected
from interlock.storage.contract.due import Due


class ApprovalStore(Protocol):
    """The part of a store for approvals; a command requests one, and it closes when the job stops waiting for it."""

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        """Count each vote under the lock of its job; the deciding vote resumes the job or ends it."""
        ...

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        """Store the hash of a new link token, replacing the previous one."""
        ...

    async def get(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]: ...

    async def find(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        """List approvals, newest first."""
        ...

    async def of_token(self, sha256: bytes) -> tuple[str, str] | None:
        """Return tenant and ID of the approval whose link token has this hash, across all tenants."""
        ...

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        """Return the decided approvals of each job that has requested any, oldest first."""
        ...

    async def due(self, limit: int) -> list[Due]:
        """List jobs whose approvals have expired."""
        ...
