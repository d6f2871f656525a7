"""Counters of this process, collected by a wrapper around the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from interlock.domain.decide import Command
from interlock.domain.job import Enqueued, Job, NewJob, Receipt, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.webhook import DeliveryResult
from interlock.storage.contract import NO_TERMS, Outbox, Store, Terms


@runtime_checkable
class Merging(Protocol):
    """A store that merges calls into batches and counts them."""

    def shared(self) -> Mapping[str, tuple[int, int]]:
        """By operation: calls to the wrapped store, and how many single calls they contain."""
        ...


class EngineMetrics:
    """Monotonic counters, without labels for tenants or jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._merging = store if isinstance(store, Merging) else None
        self.enqueued = 0
        self.claimed = 0
        self.ordered: Counter[tuple[str, str]] = Counter()  # by operation and resulting status
        self.refused: Counter[tuple[str, str]] = Counter()  # by operation and error code
        self.delivered: Counter[str] = Counter()  # attempts, by outcome of the delivery

    @property
    def moved(self) -> Counter[tuple[str, str]]:
        """By operation and resulting status, including transitions that a claim found due."""
        return self.ordered + self._store.expired

    @property
    def expired_leases(self) -> int:
        """Expired leases; `failed` is excluded: an expired approval fails its job, an expired lease never does."""
        return sum(n for (verb, status), n in self.moved.items() if verb == Verb.EXPIRE and status != Status.FAILED)

    @property
    def shared(self) -> Mapping[str, tuple[int, int]]:
        return {} if self._merging is None else self._merging.shared()


def counted(store: Store, counts: EngineMetrics) -> Store:
    """Wrap the store to count its operations."""
    return cast(Store, _Counted(store, counts))


class _Counted:
    def __init__(self, store: Store, counts: EngineMetrics) -> None:
        self._store, self._counts = store, counts
        self.outbox = cast(Outbox, _CountedOutbox(store.outbox, counts))

    def __getattr__(self, name: str) -> Any:
        """Pass everything that is not counted to the wrapped store."""
        return getattr(self._store, name)

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        answers = await self._store.enqueue(tenant, jobs, whole=whole, terms=terms)
        taken = [answer for answer in answers if isinstance(answer, Enqueued)]
        if not whole or len(taken) == len(answers):
            self._counts.enqueued += len(taken) - sum([answer.replayed for answer in taken])
        return answers

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        jobs = await self._store.claim(tenant, ask, claimants=claimants)
        self._counts.claimed += len(jobs)
        return jobs

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        answers = await self._store.carry_out(tenant, orders)
        for order, answer in zip(orders, answers, strict=True):
            if isinstance(answer, Rejected):
                self._counts.refused[order.verb, answer.error.code] += 1
            else:
                self._counts.ordered[order.verb, answer.status] += 1
        return answers


class _CountedOutbox:
    def __init__(self, outbox: Outbox, counts: EngineMetrics) -> None:
        self._outbox, self._counts = outbox, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        settled = await self._outbox.settle(tenant, settlement)
        if settled:
            self._counts.delivered[str(settlement.outcome.status)] += 1
        return settled
