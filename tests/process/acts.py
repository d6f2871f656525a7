"""What members of a crew do; functions of a module, so that they can be named to another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.domain.decide import Order
from interlock.domain.job import Beat, Checkpoint, Job, NewJob, Refused
from interlock.domain.policy import ClaimAsk
from interlock.storage.contract import Store

TENANT = "race"


def said(answers: Sequence[Any]) -> list[Any]:
    """Answers with refusals as their codes."""
    return [answer.error.code if isinstance(answer, Refused) else answer for answer in answers]


async def enqueue(store: Store, jobs: Sequence[NewJob], whole: bool = False) -> list[Any]:
    return said(await store.enqueue(TENANT, jobs, whole=whole))


async def claim(store: Store, ask: ClaimAsk) -> list[Job]:
    return await store.claim(TENANT, ask)


async def claim_all(store: Store, ask: ClaimAsk) -> list[tuple[str, int]]:
    """Claim again and again until there is nothing left, three times in a row."""
    granted: list[tuple[str, int]] = []
    empty = 0
    while empty < 3:
        jobs = await store.claim(TENANT, ask)
        empty = 0 if jobs else empty + 1
        granted += [(job.id, job.fence) for job in jobs]
    return granted


async def carry_out(store: Store, orders: Sequence[Order]) -> list[Any]:
    return said(await store.carry_out(TENANT, orders))


async def heartbeat(store: Store, beats: Sequence[Beat]) -> list[Any]:
    return said(await store.heartbeat(TENANT, beats))


async def checkpoint(store: Store, checkpoints: Sequence[Checkpoint]) -> list[Any]:
    return said(await store.checkpoint(TENANT, checkpoints))
