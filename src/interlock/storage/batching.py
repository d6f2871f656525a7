"""A store wrapper that merges concurrent single calls of one operation and tenant into one commit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, cast

from interlock.domain.decide import Command, Finish
from interlock.domain.job import Checkpoint, Enqueued, Heartbeat, HeartbeatReply, Job, NewJob, Receipt, Rejected
from interlock.domain.lifecycle import Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Report, Step, StepRow
from interlock.storage.coalescer import Coalescer
from interlock.storage.commit_window import CommitWindow
from interlock.storage.contract import NO_TERMS, Store, Terms

MAX_ITEMS: Final = 1000


def batched(store: Store) -> Store:
    """Wrap a store so that single calls are merged; batches are passed through."""
    return cast(Store, _Batched(store))


class _Batched:
    def __init__(self, store: Store) -> None:
        self._store = store
        window = CommitWindow() if getattr(store, "has_one_writer", False) else None
        self._enqueue: Coalescer[tuple[str, Terms], NewJob, Enqueued | Rejected] = Coalescer(
            lambda key, jobs: store.enqueue(key[0], jobs, terms=key[1]), most=MAX_ITEMS, window=window
        )
        self._claim: Coalescer[tuple[str, ClaimFilter], ClaimFilter, list[Job]] = Coalescer(
            self._claim_together, window=window
        )
        self._heartbeat: Coalescer[str, Heartbeat, HeartbeatReply | Rejected] = Coalescer(
            store.heartbeat, most=MAX_ITEMS, window=window
        )
        self._save: Coalescer[str, Checkpoint, int | Rejected] = Coalescer(
            store.checkpoint, most=MAX_ITEMS, window=window
        )
        self._finish: Coalescer[tuple[str, Verb], Command, Receipt | Rejected] = Coalescer(
            lambda key, orders: store.carry_out(key[0], orders), most=MAX_ITEMS, window=window
        )
        self._get: Coalescer[str, str, Job | None] = Coalescer(store.get, most=MAX_ITEMS)
        self._keep: Coalescer[str, Step, StepRow | Rejected] = Coalescer(
            store.save_steps, most=MAX_ITEMS, window=window
        )
        self._emit: Coalescer[str, Report, tuple[int, ...] | Rejected] = Coalescer(
            store.add_events, most=MAX_ITEMS, window=window
        )

    def shared(self) -> dict[str, tuple[int, int]]:
        """By operation: calls to the wrapped store, and how many single calls they contain."""
        merging = {
            "enqueue": self._enqueue,
            "claim": self._claim,
            "heartbeat": self._heartbeat,
            "checkpoint": self._save,
        }
        merging |= {"carry_out": self._finish, "get": self._get, "step": self._keep, "event": self._emit}
        return {verb: (one.batches, one.items) for verb, one in cast(dict[str, Any], merging).items()}

    def __getattr__(self, name: str) -> Any:
        """Pass everything that is not merged to the wrapped store."""
        return getattr(self._store, name)

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
