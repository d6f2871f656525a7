"""The store interface for worker presence and job explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.explain import JobSnapshot
from interlock.domain.worker_presence import Presence, WorkerSeen


class WorkerStore(Protocol):
    """The part of a store that records worker presence, and reads the surroundings of a job."""

    async def note(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        """Record the last claim filters of workers and their time; delete workers that have stopped."""
        ...

    async def page(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        """List workers by name: those that polled (within some seconds), and those that hold a lease."""
        ...

    async def forget(self, older_than_seconds: float, limit: int) -> int:
        """Delete workers of all tenants that did not poll for that long and hold no lease."""
        ...

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        """Return a job and its surroundings from one snapshot; None if the job does not exist."""
        ...
