"""An agent with a limit, its jobs, and where they stand."""

from __future__ import annotations

from typing import Any

from interlock.domain.job import Job
from interlock.domain.lifecycle import Location
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, new_job

BOT: dict[str, Any] = {"agent_kind": "bot", "agent_id": "1"}


async def limit(desk: Desk, n: int | None, *, strict: bool = True, id: str = "1") -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", id, n, strict))


async def ids_of(desk: Desk, count: int, **fields: Any) -> list[str]:
    return await desk.add_all([new_job(**BOT, **fields) for _ in range(count)])


async def location(desk: Desk, id: str) -> Location:
    return (await desk.job(id)).location(desk.clock.now)


async def only(desk: Desk, **fields: Any) -> Job:
    (job,) = await desk.claim(limit=100, **fields)
    return job
