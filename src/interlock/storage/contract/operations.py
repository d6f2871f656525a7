"""The store interface for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.job import Enqueued, Rejected
from interlock.domain.operations import Child, Prune, PruneCommand, PrunedStep, Redrive


class OperationStore(Protocol):
    """The part of a store that redrives jobs, walks job trees, prunes old jobs and counts transitions."""

    async def redrive(
        self, tenant: str, orders: Sequence[Redrive], *, registry: int = 0, implicit_agents: bool = True
    ) -> list[Enqueued | Rejected]:
        """Add a job for each terminal one, with its initial progress; each command names a different job."""
        ...

    async def redriven(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        """Return the IDs of those jobs that were redriven."""
        ...

    async def redrives(self, tenant: str, job_id: str, *, limit: int) -> list[str]:
        """Return the IDs of jobs that redrive this one, newest first."""
        ...

    async def parents(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        """Return the IDs of those jobs that have children."""
        ...

    async def retrying_after(self, tenant: str, text: str, *, limit: int) -> list[str]:
        """Return the IDs of jobs in status retry whose error contains this text, newest first."""
        ...

    async def children_after(
        self, tenant: str, parents: Sequence[str], after: tuple[str, int] | None, *, limit: int
    ) -> list[Child]:
        """List the children of several jobs by parent and arrival, after a parent and a position among its children."""
        ...

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        """Delete terminal jobs with all their data in one transaction, and record the prune."""
        ...

    async def prunes(self, tenant: str, *, limit: int = 50) -> list[Prune]:
        """List prunes, newest first."""
        ...

    async def extend_history(self) -> int:
        """Create future history partitions if history is partitioned; return their number."""
        ...

    async def leave_history(self, cutoff: int) -> int:
        """Make prune leave the history of jobs created before `cutoff` to their partitions; return how many.

        Without partitions, history is deleted with its job.
        """
        ...

    async def drop_history(self, cutoff: int) -> int:
        """Drop partitions older than `cutoff` that have no job left; return their number.

        If a job remains long after the others were due, delete the history of the others from its partition.
        """
        ...

    async def index_job_blocks(self, jobs: int, limit: int) -> int:
        """Index each complete block of `jobs` jobs, for lists with rare filters; return the number of blocks.

        Indexes up to `limit` tenants; skips blocks that open transactions may still add jobs to.
        """
        ...
