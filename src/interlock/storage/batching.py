"""A store wrapper that merges concurrent single calls of one operation and tenant into one commit.

Calls that arrive while a batch is in flight form the next batch. There is no timer: when idle, a call is sent
immediately; under load, it shares the next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar, cast

from interlock.domain.decide import Command, Finish
from interlock.domain.job import Checkpoint, Enqueued, Heartbeat, HeartbeatReply, Job, NewJob, Receipt, Rejected
from interlock.domain.lifecycle import Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Report, Step, StepRow
from interlock.storage.contract import NO_TERMS, Store, Terms
from interlock.storage.contract.wrapper import StoreWrapper

MAX_ITEMS: Final = 1000

K = TypeVar("K", bound=Hashable)
I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")


class Coalescer(Generic[K, I, A]):
    """Merges calls with an equal key. Each item gets its own result.

    If a merged call fails, its items are retried one by one; a cancelled caller does not cancel the others.
    """

    def __init__(self, verb: Callable[[K, Sequence[I]], Awaitable[Sequence[A]]], *, most: int = MAX_ITEMS) -> None:
        self._verb = verb
        self._most = most
        self._waiting: dict[K, list[tuple[I, asyncio.Future[A]]]] = {}
        self._runners: dict[K, asyncio.Task[None]] = {}
        self.batches = 0
        self.items = 0

    async def __call__(self, key: K, item: I) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((item, answer))
        if key not in self._runners:
            self._runners[key] = asyncio.create_task(self._run(key))
        return await answer

    async def _run(self, key: K) -> None:
        try:
            while key in self._waiting:
                await self._flush(key, self._take(key))
        finally:
            del self._runners[key]
            for _, answer in self._waiting.pop(key, []):
                answer.cancel()

    def _take(self, key: K) -> list[tuple[I, asyncio.Future[A]]]:
        waiting = self._waiting.pop(key, [])
        if len(waiting) > self._most:
            self._waiting[key] = waiting[self._most :]
        return waiting[: self._most]

    async def _flush(self, key: K, batch: Sequence[tuple[I, asyncio.Future[A]]]) -> None:
        self.batches += 1
        self.items += len(batch)
        try:
            answers = await self._verb(key, [item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not batch[0][1].done():
                    batch[0][1].set_exception(error)
                return
            for one in batch:
                await self._flush(key, [one])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def batched(store: Store) -> Store:
    """Wrap a store so that single calls are merged; batches are passed through."""
    return BatchedStore(store)


class BatchedStore(StoreWrapper):
    """A store that merges concurrent single calls of one operation and tenant."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._enqueue: Coalescer[tuple[str, Terms], NewJob, Enqueued | Rejected] = Coalescer(
            lambda key, jobs: store.enqueue(key[0], jobs, terms=key[1])
        )
        self._claim: Coalescer[tuple[str, ClaimFilter], ClaimFilter, list[Job]] = Coalescer(self._claim_together)
        self._heartbeat: Coalescer[str, Heartbeat, HeartbeatReply | Rejected] = Coalescer(store.heartbeat)
        self._save: Coalescer[str, Checkpoint, int | Rejected] = Coalescer(store.checkpoint)
        self._finish: Coalescer[tuple[str, Verb], Command, Receipt | Rejected] = Coalescer(
            lambda key, orders: store.carry_out(key[0], orders)
        )
        self._get: Coalescer[str, str, Job | None] = Coalescer(store.get)
        self._keep: Coalescer[str, Step, StepRow | Rejected] = Coalescer(store.save_steps)
        self._emit: Coalescer[str, Report, tuple[int, ...] | Rejected] = Coalescer(store.add_events)

    def shared(self) -> dict[str, tuple[int, int]]:
        """By operation: calls to the wrapped store, and how many single calls they contain."""
        merging: dict[str, Coalescer[Any, Any, Any]] = {
            "enqueue": self._enqueue,
            "claim": self._claim,
            "heartbeat": self._heartbeat,
            "checkpoint": self._save,
            "carry_out": self._finish,
            "get": self._get,
            "step": self._keep,
            "event": self._emit,
        }
        return {verb: (one.batches, one.items) for verb, one in merging.items()}

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        if len(jobs) == 1:
            return [await self._enqueue((tenant, terms), jobs[0])]
        return await self._store.enqueue(tenant, jobs, whole=whole, terms=terms)

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        if ask.claim_id is None and not claimants:
            return await self._claim((tenant, ask._replace(worker="", limit=0)), ask)
        return await self._store.claim(tenant, ask, claimants=claimants)

    async def _claim_together(self, key: tuple[str, ClaimFilter], asks: Sequence[ClaimFilter]) -> list[list[Job]]:
        """Merge claims with equal filters into one, across workers; each caller gets the jobs leased to its worker."""
        tenant, (first, *others) = key[0], asks
        if not others:
            return [await self._store.claim(tenant, first)]
        claimants = [ask.worker for ask in asks for _ in range(ask.limit)]
        leased: dict[str, list[Job]] = {worker: [] for worker in claimants}
        for job in await self._store.claim(tenant, first._replace(limit=len(claimants)), claimants=claimants):
            leased[cast(str, job.worker)].append(job)
        theirs = {worker: iter(jobs) for worker, jobs in leased.items()}
        return [list(islice(theirs[ask.worker], ask.limit)) for ask in asks]

    async def heartbeat(self, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        if len(heartbeats) == 1:
            return [await self._heartbeat(tenant, heartbeats[0])]
        return await self._store.heartbeat(tenant, heartbeats)

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
        if len(checkpoints) == 1:
            return [await self._save(tenant, checkpoints[0])]
        return await self._store.checkpoint(tenant, checkpoints)

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        """Merge only finishes: they are idempotent, so they can be repeated one by one if a merged call fails."""
        if len(orders) == 1 and isinstance(orders[0], Finish):
            return [await self._finish((tenant, orders[0].verb), orders[0])]
        return await self._store.carry_out(tenant, orders)

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]:
        if len(job_ids) == 1:
            return [await self._get(tenant, job_ids[0])]
        return await self._store.get(tenant, job_ids)

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        if len(steps) == 1:
            return [await self._keep(tenant, steps[0])]
        return await self._store.save_steps(tenant, steps)

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        if len(reports) == 1:
            return [await self._emit(tenant, reports[0])]
        return await self._store.add_events(tenant, reports)
