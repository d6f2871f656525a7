"""The store interface for types, agents, pauses and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.registry import Agent, JobType, Minute, QueueStats, Registry


class RegistryStore(Protocol):
    """The part of a store for types and agents, and for the counts of jobs."""

    async def pause(
        self, tenant: str, type: str, *, actor: str | None, reason: str | None, resumed_by: str | None = None
    ) -> None:
        """Stop leasing jobs of a type; actor None resumes it."""
        ...

    async def read(self, tenant: str) -> Registry:
        """Return the types of a tenant, and the version that an enqueue passes back."""
        ...

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        """Register a type; with an actor, here and below, the action is recorded in the audit log."""
        ...

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool: ...

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        """Register or update an agent; a lower limit takes effect as jobs finish."""
        ...

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        """List agents by kind and ID, starting after `after`."""
        ...

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        """List strict agents whose slots are all held by waiting jobs, by kind and ID."""
        ...

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]: ...

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        """Delete an agent that has no unfinished jobs; raise AgentInUse if it has."""
        ...

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        """Count the jobs of each type by location, as of one moment."""
        ...

    async def fill_slots(self, limit: int) -> int:
        """Give free concurrency slots to due jobs of limited agents, for up to `limit` tenants."""
        ...

    async def fold_counters(self, rows: int, limit: int) -> int:
        """Fold the counter deltas of tenants that have at least `rows` of them."""
        ...

    async def minutes(self, tenant: str) -> list[Minute]:
        """Count transitions of the last 60 minutes and the current one, by type and time; at most 61 rows per type."""
        ...
