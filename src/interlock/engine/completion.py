"""Waiting for jobs to reach a terminal status: one reader serves all waiters."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from interlock import wire
from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL
from interlock.errors import Fatal, NotFound
from interlock.storage.contract import Store

LOOK_EVERY_SECONDS: Final = 0.2
BATCH_SIZE: Final = 200
MAX_WAIT_SECONDS: Final = 60.0


async def first_of(*events: asyncio.Event | None, seconds: float) -> None:
    """Return when one of the events is set or the time is up."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events if event is not None]
    if not waiting:
        await asyncio.sleep(seconds)
        return
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


class Completion:
    """Waiters by job; one query per poll covers all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: dict[tuple[str, str], asyncio.Event] = {}
        self._waiting: dict[tuple[str, str], int] = defaultdict(int)
        self._looking: asyncio.Task[None] | None = None

    async def ended(
        self, tenant: str, job_id: str, *, wait_seconds: float = 0.0, enough: asyncio.Event | None = None
    ) -> Job:
        """Return the job once it is terminal, or its current state when the time is up or `enough` is set."""
        wire.seconds(wait_seconds, "wait_seconds", 0, MAX_WAIT_SECONDS)
        job_id = wire.job_id(job_id)
        job = await self._job(tenant, job_id)
        if job.status in TERMINAL or not wait_seconds:
            return job
        key = (tenant, job_id)
        ended = self._ended.setdefault(key, asyncio.Event())
        self._waiting[key] += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            await first_of(ended, enough, seconds=wait_seconds)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._ended[key]
        return await self._job(tenant, job_id)

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None

    async def _job(self, tenant: str, job_id: str) -> Job:
        (job,) = await self._store.get(tenant, [job_id])
        if job is None:
            raise NotFound(job_id)
        return job

    async def _look(self) -> None:
        """Poll as long as there are waiters."""
        try:
            while self._waiting:
                await asyncio.sleep(LOOK_EVERY_SECONDS)
                try:
                    await self._look_once()
                except Fatal:
                    raise
                except Exception:  # possibly a driver exception
                    continue  # the store is unavailable: keep waiting and retry
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for tenant, job_id in self._waiting:
            by_tenant[tenant].append(job_id)
        for tenant, job_ids in by_tenant.items():
            for start in range(0, len(job_ids), BATCH_SIZE):
                some = job_ids[start : start + BATCH_SIZE]
                for job_id, job in zip(some, await self._store.get(tenant, some), strict=True):
                    ended = self._ended.get((tenant, job_id))
                    if ended is not None and (job is None or job.status in TERMINAL):
                        ended.set()
