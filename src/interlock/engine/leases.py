"""Workers: claim, heartbeat, save progress, finish."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from interlock import wire
from interlock.domain import json_text, usage
from interlock.domain.decide import MAX_CHILDREN, AcknowledgeCancel, CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import ANY_FENCE, Checkpoint, Heartbeat, HeartbeatReply, Job, LeaseState, Receipt, Rejected
from interlock.domain.policy import ClaimFilter, Names
from interlock.domain.progress import LARGEST_NUMBER
from interlock.domain.retry import MAX_RETRY_AFTER_SECONDS
from interlock.engine.completion import first_of
from interlock.engine.progress import sanitized_events
from interlock.engine.results import answered, each
from interlock.engine.worker_presence import Workers
from interlock.errors import Invalid
from interlock.storage.contract import Store, cancels_of
from interlock.wire import Limits

POLL_SECONDS: Final = 0.5
# Other workers may win the race for a job. Follow this many unsuccessful hints immediately, then pause.
FOLLOW_BATCH_SIZE: Final = 4
SHORTEST_PAUSE_SECONDS: Final = 0.005
MAX_PAUSE_SECONDS: Final = 0.1
REST_FOR_EACH_LOOK: Final = 20
MAX_WAIT_SECONDS: Final = 60.0
LOOK_FOR_CANCELS_SECONDS: Final = 5.0
WATCH_AGAIN_SECONDS: Final = 2.0

OrderedTypes = Callable[[], Awaitable[Sequence[Names]]]


class Leases:
    """Worker operations on leased jobs; every call carries the fence of its lease."""

    def __init__(self, store: Store, limits: Limits, *, workers: Workers) -> None:
        self._store = store
        self._limits = limits
        self._workers = workers

    async def claim(
        self,
        tenant: str,
        ask: ClaimFilter,
        *,
        wait_seconds: float = 0.0,
        enough: asyncio.Event | None = None,
        most: int | None = None,
        in_order: OrderedTypes | None = None,
        max_lease: float | None = None,
    ) -> list[Job]:
        """Claim up to ask.limit jobs; with wait_seconds, wait that long for the first, or until `enough` is set.

        `in_order` returns sets of types and is called before every attempt to claim: jobs of the first set come before
        those of the next, regardless of priority. It replaces the types of `ask`. `max_lease` replaces the limit on
        leases.

        To stop waiting, set `enough` instead of cancelling the call, which could leave leased jobs without a worker. A
        worker in this process may claim up to `most` jobs, regardless of the request limit.
        """
        self._check(ask, most or self._limits.claim, max_lease)
        wire.seconds(wait_seconds, "wait_seconds", 0, MAX_WAIT_SECONDS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        in_vain = 0
        with self._workers.claiming(tenant, ask) as still_claiming:
            while True:
                changed = self._store.watch(tenant) if wait_seconds else None
                began = loop.time()
                if in_order is None:
                    jobs = await self._store.claim(tenant, ask)
                else:
                    jobs = await self._claim_in_order(tenant, ask, await in_order())
                looked = loop.time()
                left = deadline - looked
                if jobs or changed is None or left <= 0 or (enough is not None and enough.is_set()):
                    return jobs
                await first_of(changed, enough, seconds=min(left, POLL_SECONDS))
                since = loop.time() - looked
                in_vain = in_vain + 1 if since < MAX_PAUSE_SECONDS else 0
                if (pause := _pause(in_vain, looked - began)) > since:
                    await first_of(enough, seconds=min(pause - since, left))
                still_claiming()

    async def _claim_in_order(self, tenant: str, ask: ClaimFilter, types: Sequence[Names]) -> list[Job]:
        jobs: list[Job] = []
        for some in dict.fromkeys(types):
            if len(jobs) < ask.limit:
                jobs += await self._store.claim(tenant, ask._replace(types=some, limit=ask.limit - len(jobs)))
        return jobs

    async def heartbeat(self, tenant: str, heartbeat: Heartbeat, *, max_lease: float | None = None) -> HeartbeatReply:
        """Extend a lease and save the checkpoint and events sent with it; report cancel requests and pauses."""
        (answer,) = await self.heartbeats(tenant, [heartbeat], max_lease=max_lease)
        return answered(answer)

    async def heartbeats(
        self, tenant: str, heartbeats: Sequence[Heartbeat], *, max_lease: float | None = None
    ) -> list[HeartbeatReply | Rejected]:
        """Process several heartbeats, each with its own result."""
        wire.check_batch(heartbeats, self._limits)
        check = partial(self._checked_heartbeat, max_lease=max_lease or self._limits.lease_seconds)
        return await each(heartbeats, check, lambda good: self._store.heartbeat(tenant, good))

    async def interrupted(
        self,
        tenant: str,
        leases: Sequence[tuple[str, int]],
        *,
        is_own: Callable[[str], bool] = lambda worker: True,
        wait_seconds: float = 0.0,
        enough: asyncio.Event | None = None,
    ) -> list[str]:
        """List jobs that this worker must stop: cancellation was requested, or the lease with this fence ended.

        With wait_seconds, wait that long for the first, or until `enough` is set. A hint arrives with each request;
        polling covers hints that were lost.
        """
        wire.check_batch(leases, self._limits)
        wire.seconds(wait_seconds, "wait_seconds", 0, MAX_WAIT_SECONDS)
        fences = {wire.job_id(id): fence for id, fence in leases}
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while True:
            changed = self._store.watch(cancels_of(tenant)) if wait_seconds else None
            states = zip(fences, await self._store.lease_states(tenant, list(fences)), strict=True)
            found = [id for id, state in states if state is None or _must_stop(state, fences[id], is_own)]
            left = deadline - asyncio.get_running_loop().time()
            if found or left <= 0 or (enough is not None and enough.is_set()):
                return found
            await self._hint(tenant, changed, enough, min(left, LOOK_FOR_CANCELS_SECONDS))

    async def _hint(
        self, tenant: str, changed: asyncio.Event | None, enough: asyncio.Event | None, seconds: float
    ) -> None:
        """Wait for the event; repeated watching keeps a SQLite store polling for writes of other processes."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await first_of(changed, enough, seconds=min(left, WATCH_AGAIN_SECONDS))
            if (changed is not None and changed.is_set()) or (enough is not None and enough.is_set()):
                return
            self._store.watch(cancels_of(tenant))

    async def checkpoint(self, tenant: str, checkpoint: Checkpoint) -> int:
        """Save progress under the current fence; the sequence number must rise."""
        (answer,) = await self._store.checkpoint(tenant, [self._sanitized(checkpoint)])
        return answered(answer)

    async def complete(self, tenant: str, order: CompleteJob) -> Receipt:
        return await self._finished(tenant, order)

    async def fail(self, tenant: str, order: FailJob) -> Receipt:
        return await self._finished(tenant, order)

    async def release(self, tenant: str, order: ReleaseJob) -> Receipt:
        return await self._finished(tenant, order)

    async def cancel_ack(self, tenant: str, order: AcknowledgeCancel) -> Receipt:
        return await self._finished(tenant, order)

    async def finishes(self, tenant: str, orders: Sequence[Finish]) -> list[Receipt | Rejected]:
        """Process several finishes, each with its own result."""
        wire.check_batch(orders, self._limits)
        return await each(orders, self._checked_finish, lambda good: self._store.carry_out(tenant, good))

    async def _finished(self, tenant: str, order: Finish) -> Receipt:
        (answer,) = await self.finishes(tenant, [order])
        return answered(answer)

    def _check(self, ask: ClaimFilter, most: int, max_lease: float | None) -> None:
        wire.name(ask.worker, "worker")
        wire.whole(ask.limit, "limit", 1, most)
        wire.seconds(ask.lease_seconds, "lease_seconds", 1, max_lease or self._limits.lease_seconds)
        if ask.claim_id is not None:
            wire.name(ask.claim_id, "claim_id")

    def _checked_heartbeat(self, heartbeat: Heartbeat, *, max_lease: float) -> Heartbeat:
        wire.seconds(heartbeat.lease_seconds, "lease_seconds", 1, max_lease)
        if heartbeat.fence == ANY_FENCE and (heartbeat.checkpoint or heartbeat.events or heartbeat.usage):
            raise Invalid("fence must be that of a lease", pointer="/fence")
        checkpoint = None if heartbeat.checkpoint is None else self._sanitized(heartbeat.checkpoint)
        id, worker = wire.job_id(heartbeat.id), wire.name(heartbeat.worker, "worker")
        events = sanitized_events(heartbeat.events, self._limits)
        used = None if heartbeat.usage is None else usage.sanitized(heartbeat.usage)[0]
        return heartbeat._replace(id=id, worker=worker, checkpoint=checkpoint, events=events, usage=used)

    def _sanitized(self, checkpoint: Checkpoint) -> Checkpoint:
        data, changed = json_text.sanitize(checkpoint.data, what="checkpoint", limit=self._limits.checkpoint)
        id, worker = wire.job_id(checkpoint.id), wire.name(checkpoint.worker, "worker")
        return checkpoint._replace(id=id, worker=worker, data=data, sanitized=checkpoint.sanitized or changed)

    def _checked_finish(self, order: Finish) -> Finish:
        """Sanitize the text of the command; reject it only for its size or numbers, never for invalid Unicode."""
        id, worker = wire.job_id(order.id), wire.name(order.worker, "worker")
        match order:
            case CompleteJob():
                if order.result is order.result_summary is order.usage is None and id == order.id:
                    return order
                summary, result = wire.remark(order.result_summary, "result_summary"), order.result
                changed = order.sanitized or summary != order.result_summary
                if result is not None:
                    result, more = json_text.sanitize(result, what="result", limit=self._limits.result)
                    changed = changed or more
                used = order.usage
                if used is not None:
                    used, more = usage.sanitized(used)
                    changed = changed or more
                return order._replace(
                    id=id, worker=worker, result=result, result_summary=summary, usage=used, sanitized=changed
                )
            case FailJob():
                wire.seconds(order.retry_after_seconds, "retry_after_seconds", 0, MAX_RETRY_AFTER_SECONDS)
                error, changed = json_text.sanitize(order.error, what="error", limit=self._limits.error)
                result = order.result
                if result is not None:
                    result, more = json_text.sanitize(result, what="result", limit=self._limits.result)
                    changed = changed or more
                sanitized = order.sanitized or changed
                return order._replace(id=id, worker=worker, error=error, result=result, sanitized=sanitized)
            case ReleaseJob():
                if sum(x is not None for x in (order.run_at, order.delay_seconds, order.children or None)) > 1:
                    raise Invalid("release at a time, after a delay or when children have ended, not several")
                if order.message is not None:
                    if order.children:
                        raise Invalid("release until a message or until children have ended, not both")
                    if (order.message.name is None) == (order.message.topic is None):
                        raise Invalid("a message has a name or a topic: expected exactly one", pointer="/message")
                    if order.message.topic is None:
                        wire.name(order.message.name or "", "message/name")
                    else:
                        wire.name(order.message.topic, "message/topic")
                    wire.whole(order.message.after, "message/after", 0, LARGEST_NUMBER)
                wire.seconds(order.delay_seconds, "delay_seconds", 0, wire.MAX_DELAY_SECONDS)
                if len(order.children) > MAX_CHILDREN:
                    raise Invalid(f"a job waits for at most {MAX_CHILDREN} children at a time", pointer="/children")
                children = tuple(wire.job_id(child, "children") for child in order.children)
                return order._replace(id=id, worker=worker, reason=wire.reason(order.reason), children=children)
            case AcknowledgeCancel():
                return order._replace(id=id, worker=worker)


def _must_stop(state: LeaseState, fence: int, is_own: Callable[[str], bool]) -> bool:
    return state.worker is None or state.fence != fence or state.cancel_requested or not is_own(state.worker)


def _pause(in_vain: int, took: float) -> float:
    """Return how long to pause after this many unsuccessful attempts; longer if an attempt takes long."""
    if in_vain < FOLLOW_BATCH_SIZE:
        return 0.0
    usual = min(SHORTEST_PAUSE_SECONDS * (1 << min(in_vain - FOLLOW_BATCH_SIZE, 10)), MAX_PAUSE_SECONDS)
    return min(max(usual, REST_FOR_EACH_LOOK * took), POLL_SECONDS)
