"""What every engine offers to operators: a part of the contract of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.job import Enqueued, Rejected
from interlock.domain.operations import Child, Prune, PruneCommand, PrunedStep, Redrive
from interlock.domain.registry import Minute


class OperationStore(Protocol):
    """The part of a store that redoes ended jobs, walks trees of jobs, deletes what is old, and tells what moved."""

    async def redrive(
        self, tenant: str, orders: Sequence[Redrive], *, registry: int = 0, implicit_agents: bool = True
    ) -> list[Enqueued | Rejected]:
        """Add a job for each ended one, with the progress it is to begin with; each order names another job."""
        ...

    async def redriven(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        """Those jobs that have been redriven."""
        ...

    async def dead_letters(self, tenant: str, *, limit: int) -> list[str]:
        """Return the ids of dead letters that were not redriven, newest first."""
        ...

    async def children_after(
        self, tenant: str, parents: Sequence[str], after: tuple[str, int] | None, *, limit: int
    ) -> list[Child]:
        """The children of several jobs by parent and arrival, from a parent and a place among its children on."""
        ...

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        """Delete ended jobs with all they own, in one transaction, and keep a row that tells of it."""
        ...

    async def prunes(self, tenant: str, *, limit: int = 50) -> list[Prune]:
        """What was deleted, newest first."""
        ...

    async def extend_history(self) -> int:
        """Where history is kept in partitions, make those of the time to come; how many."""
        ...

    async def leave_history(self, cutoff: int) -> int:
        """From now on, let prune leave the history of jobs made before a time to its partition; how many it leaves to.

        Where there are none, history goes with its job.
        """
        ...

    async def drop_history(self, cutoff: int) -> int:
        """Drop the partitions that are older than a time and have no job left; how many.

        Where a job stays, long after the rest was to go, what was left of the others is deleted.
        """
        ...

    async def tenants(self) -> list[str]:
        """Everybody who has a job."""
        ...

    async def minutes(self, tenant: str) -> list[Minute]:
        """What moved within the last 60 minutes, this one too, by type and time; at most 61 rows for each type."""
        ...

    async def index_job_blocks(self, jobs: int, limit: int) -> int:
        """Note what is found in every so many jobs, for lists of what is rare; how many stretches were noted.

        For up to `limit` tenants; only what nobody is still adding to is noted.
        """
        ...
