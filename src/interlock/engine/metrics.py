"""What this process has done since it began, for whoever watches it: a store in front of a store that counts."""

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
    """A store that shares commits among callers, and knows how well."""

    def shared(self) -> Mapping[str, tuple[int, int]]:
        """By verb: calls to the store below, and how many single calls went into them."""
        ...


class EngineMetrics:
    """Only ever rising; no tenant and no job is told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._merging = store if isinstance(store, Merging) else None
        self.enqueued = 0
        self.claimed = 0
        self.ordered: Counter[tuple[str, str]] = Counter()  # by verb and the status it led to
        self.refused: Counter[tuple[str, str]] = Counter()  # by verb and code
        self.delivered: Counter[str] = Counter()  # tries, by what became of the delivery

    @property
    def moved(self) -> Counter[tuple[str, str]]:
        """By verb and the status it led to, whether somebody ordered it or a claim found it due."""
        return self.ordered + self._store.expired

    @property
    def expired_leases(self) -> int:
        """Leases that ran out; a gate that expires fails its job, which a lease never does."""
        return sum(n for (verb, status), n in self.moved.items() if verb == Verb.EXPIRE and status != Status.FAILED)

    @property
    def shared(self) -> Mapping[str, tuple[int, int]]:
        return {} if self._merging is None else self._merging.shared()


def counted(store: Store, counts: EngineMetrics) -> Store:
    """The same store, with what it does counted."""
    return cast(Store, _Counted(store, counts))


class _Counted:
    def __init__(self, store: Store, counts: EngineMetrics) -> None:
        self._store, self._counts = store, counts
        self.outbox = cast(Outbox, _CountedOutbox(store.outbox, counts))

    def __getattr__(self, name: str) -> Any:
        """Everything that is not counted is the store's own."""
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
