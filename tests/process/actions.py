"""What processes of a test do; functions of a module, so that another process can find them by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.domain.decide import Command
from interlock.domain.job import Checkpoint, Heartbeat, Job, NewJob, Rejected
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Store

TENANT = "race"


def given(answers: Sequence[Any]) -> list[Any]:
    """Answers with refusals as their codes."""
    return [answer.error.code if isinstance(answer, Rejected) else answer for answer in answers]


async def enqueue(store: Store, jobs: Sequence[NewJob], whole: bool = False) -> list[Any]:
    return given(await store.enqueue(TENANT, jobs, whole=whole))


async def claim(store: Store, ask: ClaimFilter) -> list[Job]:
    return await store.claim(TENANT, ask)


async def claim_all(store: Store, ask: ClaimFilter) -> list[tuple[str, int]]:
    """Claim repeatedly until there is nothing left, three times in a row."""
    leased: list[tuple[str, int]] = []
    empty = 0
    while empty < 3:
        jobs = await store.claim(TENANT, ask)
        empty = 0 if jobs else empty + 1
        leased += [(job.id, job.fence) for job in jobs]
    return leased


async def carry_out(store: Store, orders: Sequence[Command]) -> list[Any]:
    return given(await store.carry_out(TENANT, orders))


async def heartbeat(store: Store, heartbeats: Sequence[Heartbeat]) -> list[Any]:
    return given(await store.heartbeat(TENANT, heartbeats))


async def checkpoint(store: Store, checkpoints: Sequence[Checkpoint]) -> list[Any]:
    return given(await store.checkpoint(TENANT, checkpoints))
