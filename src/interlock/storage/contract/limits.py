"""The store interface for limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from interlock.domain.limits import BucketState, Limit, LimitState


class LimitStore(Protocol):
    """The part of a store for limits and their buckets."""

    async def set(self, tenant: str, limit: Limit, *, actor: str) -> LimitState:
        """Create or update a limit. What is available stays, up to the new burst."""
        ...

    async def get(self, tenant: str, name: str) -> LimitState | None: ...

    async def page(self, tenant: str, *, after: str = "", limit: int = 50, budgets: bool = False) -> list[LimitState]:
        """List limits, or budgets, by name, starting after `after`."""
        ...

    async def raise_budget(
        self, tenant: str, name: str, amount: Mapping[str, float], *, actor: str, job_id: str | None = None
    ) -> LimitState | None:
        """Add to the amount of a budget; with the job of an approval, only once."""
        ...

    async def acting_budgets(self) -> list[tuple[str, str]]:
        """List the budgets of all tenants that ask approvers or fail jobs when they are spent."""
        ...

    async def watched_budgets(self) -> list[tuple[str, str]]:
        """List the budgets of all tenants that channels listen to and whose spending is not announced.

        Of trees, those whose budget a claim refused to a job.
        """
        ...

    async def announce_spent(self, tenant: str, name: str) -> bool:
        """Deliver `budget.spent` if the budget is spent, once until it changes or starts anew."""
        ...

    async def refused(self, tenant: str, name: str, limit: int) -> list[str]:
        """List due jobs that a budget refuses until it is raised or starts anew."""
        ...

    async def fail_refused(self, tenant: str, name: str, limit: int) -> int:
        """Fail these jobs; return how many."""
        ...

    async def due(self, tenant: str, name: str, limit: int, *, key: str | None = None) -> list[str]:
        """List due jobs that name a limit or budget and, with `key`, this key."""
        ...

    async def held(self, tenant: str, limit: int) -> list[tuple[str, BucketState]]:
        """List the held buckets of all limits, by limit and key; they carry no amounts."""
        ...

    async def spent_trees(self, tenant: str, limit: int) -> list[str]:
        """List the budgets of trees of jobs that refuse a job until they are raised."""
        ...

    async def tenants(self) -> list[str]:
        """List the tenants that have limits or budgets."""
        ...

    async def keys(self, tenant: str, name: str, *, after: str = "", limit: int = 50) -> list[BucketState]:
        """List the buckets of a limit by key, starting after `after`."""
        ...

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        """Delete a limit that no unfinished job names; raise LimitInUse if one does."""
        ...

    async def hold(
        self, tenant: str, name: str, *, key: str, until: int, actor: str, reason: str | None, worker: str | None = None
    ) -> LimitState | None:
        """Lease no job under a bucket until a time; the later time of two holds wins.

        With `worker`, raise Forbidden unless a running job of this worker names the bucket; empty means any worker.
        """
        ...

    async def release(self, tenant: str, name: str, *, key: str, actor: str) -> LimitState | None:
        """End the hold of a bucket."""
        ...

    async def forget_idle(self, limit: int) -> int:
        """Delete the buckets of keys that are as if they were never used, so many in a transaction."""
        ...
