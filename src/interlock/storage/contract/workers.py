"""What every engine offers to say why a job does not run: a part of the contract of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.explain import JobSnapshot
from interlock.domain.worker_presence import Presence, WorkerSeen


class WorkerStore(Protocol):
    """The part of a store that keeps who was seen asking for work, and reads what is around a job."""

    async def note_workers(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        """Record what workers asked for last, and when; delete those that ask for nothing more."""
        ...

    async def workers(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        """List workers by name: those that polled (within some seconds), and those that hold a lease."""
        ...

    async def forget_workers(self, older_than_seconds: float, limit: int) -> int:
        """Forget workers that were not seen for that long and hold nothing, whoever's they are."""
        ...

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        """A job and what is around it, in one snapshot; None if there is no such job."""
        ...
