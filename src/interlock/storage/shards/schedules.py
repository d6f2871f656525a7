"""Sharded schedules: on the shard for new jobs of their tenant. Their jobs may go to another shard."""

from __future__ import annotations

from interlock.domain.schedule import Fired, Schedule
from interlock.storage.contract.schedules import DueSchedule
from interlock.storage.shards.routing import Routing


class ShardedSchedules:
    """Routes the calls of schedules."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def set(self, tenant: str, schedule: Schedule, *, actor: str) -> Schedule:
        return await self._routing.home(tenant, lambda store: store.schedules.set(tenant, schedule, actor=actor))

    async def get(self, tenant: str, name: str) -> Schedule | None:
        return await self._routing.home(tenant, lambda store: store.schedules.get(tenant, name))

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[Schedule]:
        return await self._routing.home(tenant, lambda store: store.schedules.page(tenant, after=after, limit=limit))

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        return await self._routing.home(tenant, lambda store: store.schedules.delete(tenant, name, actor=actor))

    async def pause(self, tenant: str, name: str, *, actor: str) -> Schedule | None:
        return await self._routing.home(tenant, lambda store: store.schedules.pause(tenant, name, actor=actor))

    async def resume(self, tenant: str, name: str, *, actor: str, next_at: int | None) -> Schedule | None:
        return await self._routing.home(
            tenant, lambda store: store.schedules.resume(tenant, name, actor=actor, next_at=next_at)
        )

    async def due(self, limit: int) -> list[DueSchedule]:
        return await self._routing.due("due_schedules", limit, lambda store: store.schedules.due(limit))

    async def advance(self, tenant: str, schedule: Schedule, fired: Fired) -> bool:
        return await self._routing.home(tenant, lambda store: store.schedules.advance(tenant, schedule, fired))

    async def log_run(self, tenant: str, name: str, *, actor: str, job_id: str) -> None:
        await self._routing.home(
            tenant, lambda store: store.schedules.log_run(tenant, name, actor=actor, job_id=job_id)
        )
