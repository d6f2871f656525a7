"""An agent with a limit, its jobs, and where they stand."""

from __future__ import annotations

from typing import Any

from interlock.domain.job import Job
from interlock.domain.lifecycle import Location
from interlock.domain.registry import Agent
from tests.contract.builders import TenantQueue, new_job

BOT: dict[str, Any] = {"agent_kind": "bot", "agent_id": "1"}


async def limit(queue: TenantQueue, n: int | None, *, strict: bool = True, id: str = "1") -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", id, n, strict))


async def ids_of(queue: TenantQueue, count: int, **fields: Any) -> list[str]:
    return await queue.add_all([new_job(**BOT, **fields) for _ in range(count)])


async def location(queue: TenantQueue, id: str) -> Location:
    return (await queue.job(id)).location(queue.clock.now)


async def only(queue: TenantQueue, **fields: Any) -> Job:
    (job,) = await queue.claim(limit=100, **fields)
    return job
