"""The store interface for usage totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.usage_totals import By, Sum


class UsageStore(Protocol):
    """The part of a store that sums the usage of jobs."""

    async def sums(self, tenant: str, by: By, since: int, until: int) -> list[Sum]:
        """Sum the usage of the jobs that finished from `since` until before `until`.

        By tree, the key of a child is its parent, and "child"; that of any other job is the job.
        """
        ...

    async def ancestors(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the ID of the topmost known ancestor of each job that is a child."""
        ...
