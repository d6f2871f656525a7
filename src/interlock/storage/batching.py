"""A store in front of a store: concurrent single calls of one verb and tenant share a commit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, cast

from interlock.domain.decide import Finish, Order
from interlock.domain.job import Beat, Checkpoint, Enqueued, Job, NewJob, Pulse, Receipt, Refused
from interlock.domain.lifecycle import Verb
from interlock.domain.policy import ClaimAsk
from interlock.domain.progress import Report, Step, StepRow
from interlock.storage.coalescer import Coalescer
from interlock.storage.commit_window import Rounds
from interlock.storage.contract import NO_TERMS, Store, Terms

MOST: Final = 1000


def merged(store: Store) -> Store:
    """The same store, with single calls merged; batches go straight through."""
    return cast(Store, _Merged(store))


class _Merged:
    def __init__(self, store: Store) -> None:
        self._store = store
        rounds = Rounds() if getattr(store, "has_one_writer", False) else None
        self._enqueue: Coalescer[tuple[str, Terms], NewJob, Enqueued | Refused] = Coalescer(
            lambda key, jobs: store.enqueue(key[0], jobs, terms=key[1]), most=MOST, rounds=rounds
        )
        self._claim: Coalescer[tuple[str, ClaimAsk], ClaimAsk, list[Job]] = Coalescer(
            self._claim_together, rounds=rounds
        )
        self._beat: Coalescer[str, Beat, Pulse | Refused] = Coalescer(store.heartbeat, most=MOST, rounds=rounds)
        self._save: Coalescer[str, Checkpoint, int | Refused] = Coalescer(store.checkpoint, most=MOST, rounds=rounds)
        self._finish: Coalescer[tuple[str, Verb], Order, Receipt | Refused] = Coalescer(
            lambda key, orders: store.carry_out(key[0], orders), most=MOST, rounds=rounds
        )
        self._get: Coalescer[str, str, Job | None] = Coalescer(store.get, most=MOST)
        self._keep: Coalescer[str, Step, StepRow | Refused] = Coalescer(store.save_steps, most=MOST, rounds=rounds)
        self._tell: Coalescer[str, Report, tuple[int, ...] | Refused] = Coalescer(
            store.add_events, most=MOST, rounds=rounds
        )

    def shared(self) -> dict[str, tuple[int, int]]:
        """By verb: calls to the store below, and how many single calls went into them."""
        merging = {"enqueue": self._enqueue, "claim": self._claim, "heartbeat": self._beat, "checkpoint": self._save}
        merging |= {"carry_out": self._finish, "get": self._get, "step": self._keep, "event": self._tell}
        return {verb: (one.batches, one.items) for verb, one in cast(dict[str, Any], merging).items()}

    def __getattr__(self, name: str) -> Any:
        """Everything that is not merged is the store's own."""
        return getattr(self._store, name)

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Refused]:
        if len(jobs) == 1:
            return [await self._enqueue((tenant, terms), jobs[0])]
        return await self._store.enqueue(tenant, jobs, whole=whole, terms=terms)

    async def claim(self, tenant: str, ask: ClaimAsk, *, takers: Sequence[str] = ()) -> list[Job]:
        if ask.claim_id is None and not takers:
            return await self._claim((tenant, ask._replace(worker="", limit=0)), ask)
        return await self._store.claim(tenant, ask, takers=takers)

    async def _claim_together(self, key: tuple[str, ClaimAsk], asks: Sequence[ClaimAsk]) -> list[list[Job]]:
        """One claim for asks with equal filters, whoever makes them; each gets what was granted to its worker."""
        tenant, (first, *others) = key[0], asks
        if not others:
            return [await self._store.claim(tenant, first)]
        takers = [ask.worker for ask in asks for _ in range(ask.limit)]
        granted: dict[str, list[Job]] = {worker: [] for worker in takers}
        for job in await self._store.claim(tenant, first._replace(limit=len(takers)), takers=takers):
            granted[cast(str, job.worker)].append(job)
        theirs = {worker: iter(jobs) for worker, jobs in granted.items()}
        return [list(islice(theirs[ask.worker], ask.limit)) for ask in asks]

    async def heartbeat(self, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
        if len(beats) == 1:
            return [await self._beat(tenant, beats[0])]
        return await self._store.heartbeat(tenant, beats)

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
        if len(checkpoints) == 1:
            return [await self._save(tenant, checkpoints[0])]
        return await self._store.checkpoint(tenant, checkpoints)

    async def carry_out(self, tenant: str, orders: Sequence[Order]) -> list[Receipt | Refused]:
        """Only what a worker says of its own grant is merged: it may be said again, should a merged call fail."""
        if len(orders) == 1 and isinstance(orders[0], Finish):
            return [await self._finish((tenant, orders[0].verb), orders[0])]
        return await self._store.carry_out(tenant, orders)

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]:
        if len(job_ids) == 1:
            return [await self._get(tenant, job_ids[0])]
        return await self._store.get(tenant, job_ids)

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Refused]:
        if len(steps) == 1:
            return [await self._keep(tenant, steps[0])]
        return await self._store.save_steps(tenant, steps)

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Refused]:
        if len(reports) == 1:
            return [await self._tell(tenant, reports[0])]
        return await self._store.add_events(tenant, reports)
