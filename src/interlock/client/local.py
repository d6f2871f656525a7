"""The port over an engine in the same process: embedded on SQLite, or straight to PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from interlock import wire
from interlock.client.protocol import LeasedJob
from interlock.client.tracing import claiming, enqueueing
from interlock.domain.approval import RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import Finish
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    Receipt,
    Rejected,
)
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow, Report, Step, StepRow
from interlock.domain.registry import QueueStats
from interlock.engine.engine import Engine
from interlock.wire import JobRequest

SHORTEST_LOOK_SECONDS: Final = 0.01
MAX_LOOK_SECONDS: Final = 0.5
MAX_CHILDREN: Final = 200
MAX_PER_CLAIM: Final = 500  # more than over HTTP: a commit of this many costs as much as one of a hundred


class LocalClient:
    """A client for producers, observers and workers that calls an engine in this process."""

    most_per_claim = MAX_PER_CLAIM

    def __init__(self, engine: Engine, who: Principal) -> None:
        self.engine = engine
        self._who = who
        self._tenant = who.tenant

    async def enqueue(self, requests: Sequence[JobRequest], *, within: object = None) -> list[Enqueued]:
        jobs = self.engine.jobs
        with enqueueing(requests) as trace:
            if within is None and len(requests) == 1:
                return [await jobs.enqueue(self._who, requests[0], traceparent=trace)]
            return await jobs.enqueue_batch(self._who, requests, within=within, traceparent=trace)

    async def get(self, job_id: str) -> Job:
        return await self.engine.queries.job(self._tenant, wire.job_id(job_id))

    async def find(self, filter: Filter) -> list[Job]:
        return await self.engine.queries.jobs(self._tenant, filter)

    async def wait(self, job_id: str, *, seconds: float) -> Job:
        """Looks when something has changed, yet ever less often, so that many who wait cost little."""
        deadline = time.monotonic() + seconds
        pause = SHORTEST_LOOK_SECONDS
        while True:
            changed = self.engine.store.watch(self._tenant)
            job = await self.get(job_id)
            left = deadline - time.monotonic()
            if job.status in TERMINAL or left <= 0:
                return job
            await asyncio.sleep(min(pause, left))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(MAX_LOOK_SECONDS, max(left - pause, 0))):
                    await changed.wait()
            pause = min(pause * 1.5, MAX_LOOK_SECONDS)

    async def cancel(
        self, job_id: str, *, reason: str | None = None, force: bool = False, cascade: bool = False
    ) -> Receipt:
        if cascade:
            return (await self.engine.operations.cancel_tree(self._who, job_id, reason=reason, force=force)).receipt
        return await self.engine.jobs.cancel(self._who, job_id, reason=reason, force=force)

    async def redrive(self, job_id: str, *, start_from: str = "start", idempotency_key: str | None = None) -> Enqueued:
        return await self.engine.operations.redrive(
            self._who, job_id, start_from=start_from, idempotency_key=idempotency_key
        )

    async def revoke(self, job_id: str, *, reason: str | None = None) -> Receipt:
        return await self.engine.jobs.revoke(self._who, job_id, reason=reason)

    async def queue(self, type: str) -> QueueStats:
        return await self.engine.queries.queue(self._tenant, wire.name(type, "type"))

    async def history(self, job_id: str) -> list[HistoryRow]:
        return await self.engine.queries.history(self._tenant, wire.job_id(job_id))

    async def children(self, job_id: str) -> list[Job]:
        found: list[Job] = []
        filter = Filter(parent_id=wire.job_id(job_id), limit=MAX_CHILDREN)
        while page := await self.find(filter):
            found += page
            filter = filter._replace(before_seq=page[-1].seq)
        return found[::-1]

    async def events(self, job_id: str, *, after: int = 0, limit: int = 200) -> list[EventRow]:
        return await self.engine.progress.events(self._tenant, job_id, after=after, limit=limit)

    async def tail(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        async for page in self.engine.progress.tail(self._tenant, job_id, after=after):
            for row in page:
                yield row

    async def steps(self, job_id: str) -> list[StepRow]:
        (steps,) = await self.engine.progress.steps_of(self._tenant, [wire.job_id(job_id)])
        return steps

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        with claiming() as leased:
            jobs = await self.engine.leases.claim(
                self._tenant, ask, wait_seconds=wait_seconds, most=self.most_per_claim
            )
            leased(len(jobs))
        # A job that was never run before has left nothing behind, unless it was redriven from another.
        again = [job.id for job in jobs if job.version > 2 or job.redrive_of is not None]
        if not again:
            return [LeasedJob(job) for job in jobs]
        steps = dict(zip(again, await self.engine.progress.steps_of(self._tenant, again), strict=True))
        approvals = await self.engine.store.approvals.decisions(self._tenant, again)
        return [LeasedJob(job, steps.get(job.id, ()), approvals.get(job.id, ())) for job in jobs]

    async def heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        return await self.engine.leases.heartbeats(self._tenant, heartbeats)

    async def interrupted(self, leases: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0) -> list[str]:
        return await self.engine.leases.interrupted(self._tenant, leases, wait_seconds=wait_seconds)

    async def roles(self) -> frozenset[str] | None:
        return None

    async def finishes(self, orders: Sequence[Finish]) -> list[Receipt | Rejected]:
        return await self.engine.leases.finishes(self._tenant, orders)

    async def checkpoint(self, checkpoint: Checkpoint) -> int:
        return await self.engine.leases.checkpoint(self._tenant, checkpoint)

    async def save_step(self, step: Step) -> StepRow:
        return await self.engine.progress.save_step(self._tenant, step)

    async def add_events(self, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        return await self.engine.progress.reports(self._tenant, reports)

    async def request_approval(self, approval: RequestApproval) -> Receipt:
        return (await self.engine.approvals.open(self._who, approval)).receipt

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        return (await self.engine.artifacts.add(self._tenant, holder, thing)).id

    async def register_type(self, name: str, definition: Mapping[str, Any]) -> None:
        schema = definition.get("schema")
        await self.engine.registry.set_type(
            self._who,
            name,
            schema=None if schema is None else wire.encode_json(schema, what="schema").decode(),
            requires=definition.get("requires", ()),
            defaults=definition.get("defaults"),
        )

    def start_maintenance(self) -> None:
        self.engine.maintenance.start()

    async def close(self) -> None:
        await self.engine.close()
