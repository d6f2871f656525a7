"""The jobs that are measured: nothing to do, about 100 bytes of payload, five types, a quarter for serial agents."""

from __future__ import annotations

import msgspec

from interlock import wire
from interlock.domain import principal
from interlock.domain.job import NewJob
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from interlock.wire import AgentName, JobRequest

TYPES = ("email", "invoice", "report", "resize", "sync")
TENANT = "bench"
WHO = principal.local(TENANT)
LOAD_BATCH_SIZE = 1000
SERIAL_AGENTS = 100
_TEXT = "x" * 71


def type_of(number: int) -> str:
    return TYPES[number % len(TYPES)]


def payload(number: int) -> str:
    """JSON text of 100 bytes."""
    return f'{{"number":{10_000_000 + number},"text":"{_TEXT}"}}'


def agent_of(number: int) -> AgentName | None:
    """Every fourth job is for one of the serial agents."""
    return AgentName("serial", str(number // 4 % SERIAL_AGENTS)) if number % 4 == 0 else None


async def register_agents(store: Store) -> None:
    for i in range(SERIAL_AGENTS):
        await store.registry.set_agent(TENANT, Agent("serial", str(i), max_concurrency=1))


def requests(count: int) -> list[JobRequest]:
    """Jobs as a producer asks for them."""
    return [
        JobRequest(type=type_of(i), payload=msgspec.Raw(payload(i).encode()), agent=agent_of(i)) for i in range(count)
    ]


def new_jobs(count: int) -> list[NewJob]:
    """The same jobs, checked and complete, each with an id of its own."""
    return [wire.new_job(request, created_by=WHO.actor, now=0) for request in requests(count)]
