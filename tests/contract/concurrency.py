"""An agent with a limit, its jobs, and where they stand."""

from __future__ import annotations

from typing import Any

from interlock.domain.job import Job
from interlock.domain.lifecycle import Location
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, new_job

BOT: dict[str, Any] = {"agent_kind": "bot", "agent_id": "1"}


async def limit(remote: Desk, n: int | None, *, strict: bool = True, id: str = "1") -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", id, n, strict))


async def ids_of(remote: Desk, count: int, **fields: Any) -> list[str]:
    return await remote.add_all([new_job(**BOT, **fields) for _ in range(count)])


async def location(remote: Desk, id: str) -> Location:
    return (await remote.job(id)).location(remote.clock.now)


async def only(remote: Desk, **fields: Any) -> Job:
    (job,) = await remote.claim(limit=100, **fields)
    return job
