"""The store interface for schedules."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from interlock.domain.schedule import Fired, Schedule


class DueSchedule(NamedTuple):
    """A schedule whose next tick has come, found across tenants."""

    tenant: str
    name: str


class ScheduleStore(Protocol):
    """The part of a store for schedules."""

    async def set(self, tenant: str, schedule: Schedule, *, actor: str) -> Schedule:
        """Create or update a schedule; an update keeps its last tick."""
        ...

    async def get(self, tenant: str, name: str) -> Schedule | None: ...

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[Schedule]:
        """List schedules by name, starting after `after`."""
        ...

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool: ...

    async def pause(self, tenant: str, name: str, *, actor: str) -> Schedule | None: ...

    async def resume(self, tenant: str, name: str, *, actor: str, next_at: int | None) -> Schedule | None:
        """Resume a paused schedule at a tick; one that is not paused does not change."""
        ...

    async def due(self, limit: int) -> list[DueSchedule]: ...

    async def advance(self, tenant: str, schedule: Schedule, fired: Fired) -> bool:
        """Record the outcome of a tick, unless another process did or the schedule has changed since it was read."""
        ...

    async def log_run(self, tenant: str, name: str, *, actor: str, job_id: str) -> None:
        """Record in the audit log that an operator ran a schedule."""
        ...
