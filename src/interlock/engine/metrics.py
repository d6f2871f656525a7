"""Counters of this process, collected by a wrapper around the store."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from time import monotonic
from typing import Final, Protocol, runtime_checkable

from interlock.domain import json_text
from interlock.domain.decide import Command, CompleteJob
from interlock.domain.job import Enqueued, Job, NewJob, Receipt, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.domain.retry import SECOND
from interlock.domain.webhook import DeliveryResult
from interlock.storage.contract import NO_TERMS, Outbox, Store, Terms
from interlock.storage.contract.wrapper import StoreWrapper

MAX_TYPES: Final = 100  # job types with their own series; later ones share one with an empty name
MAX_UNITS: Final = 50  # units of usage with their own series; later ones are left out
_MAX_RUNS: Final = 10_000
_JOB_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)


class Histogram:
    """Durations by labels. Only the event loop updates them, so they need no lock."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def add(self, labels: tuple[str, ...], *durations: float) -> None:
        counts, total = self._series.setdefault(labels, ([0] * (len(self._bounds) + 1), [0.0]))
        for seconds in durations:
            counts[bisect_left(self._bounds, seconds)] += 1
        total[0] += sum(durations)

    def series(self) -> Iterator[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
        """Yield the labels of each series, its cumulative buckets, and its sum."""
        bounds = [*(f"{float(bound)}" for bound in self._bounds), "+Inf"]
        for labels, (counts, (total,)) in sorted(self._series.items()):
            yield labels, list(zip(bounds, accumulate(counts), strict=True)), total


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
        self.used: Counter[str] = Counter()  # by unit
        self.waited = Histogram(_JOB_SECONDS)  # by type
        self.ran = Histogram(_JOB_SECONDS)  # by type and resulting status
        self._types: set[str] = set()
        self._reported: dict[tuple[str, int], None] = {}  # runs whose usage was counted
        self._running: dict[str, tuple[str, float]] = {}  # type and start of the runs that this process handed out

    def started(self, jobs: Sequence[Job]) -> None:
        """Count claimed jobs, and remember when their runs started."""
        self.claimed += len(jobs)
        now, running = monotonic(), self._running
        waits: defaultdict[str, list[float]] = defaultdict(list)
        for job in jobs:
            type, run_at = job.type, job.run_at
            if type not in self._types:
                if len(self._types) < MAX_TYPES:
                    self._types.add(type)
                else:
                    type = ""
            waits[type].append(max((job.run_started_at or run_at) - run_at, 0) / SECOND)
            running.pop(job.id, None)
            running[job.id] = type, now
        for type, durations in waits.items():
            self.waited.add((type,), *durations)
        while len(running) > _MAX_RUNS:  # their workers died or reported to another server
            del running[next(iter(running))]

    def stopped(self, ended: Iterable[tuple[str, str]]) -> None:
        """Measure the runs that commands ended, given as job ID and status, if this process handed them out."""
        now = monotonic()
        durations: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for job_id, status in ended:
            if run := self._running.pop(job_id, None):
                durations[run[0], status].append(now - run[1])
        for labels, some in durations.items():
            self.ran.add(labels, *some)

    def completed(self, order: CompleteJob) -> None:
        """Sum the usage that a completion reports, once for each run."""
        if order.usage is None or (order.id, order.fence) in self._reported:
            return
        self._reported[order.id, order.fence] = None
        if len(self._reported) > _MAX_RUNS:
            del self._reported[next(iter(self._reported))]
        found = json_text.loads(order.usage)
        for unit, amount in found.items() if isinstance(found, dict) else ():
            is_amount = isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < math.inf
            if is_amount and (unit in self.used or len(self.used) < MAX_UNITS):
                self.used[unit] += amount

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
    return CountedStore(store, counts)


class CountedStore(StoreWrapper):
    """A store whose enqueued, claimed and finished jobs are counted."""

    def __init__(self, store: Store, counts: EngineMetrics) -> None:
        super().__init__(store)
        self._counts = counts
        self.outbox = CountedOutbox(store.outbox, counts)
        self.heartbeat = store.heartbeat
        self.checkpoint = store.checkpoint
        self.get = store.get
        self.save_steps = store.save_steps
        self.add_events = store.add_events

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
        self._counts.started(jobs)
        return jobs

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        answers = await self._store.carry_out(tenant, orders)
        counts = self._counts
        ended: list[tuple[str, str]] = []
        for order, answer in zip(orders, answers, strict=True):
            if isinstance(answer, Rejected):
                counts.refused[order.verb, answer.error.code] += 1
                continue
            counts.ordered[order.verb, answer.status] += 1
            if isinstance(order, CompleteJob):
                counts.completed(order)
            if answer.status != Status.RUNNING:
                ended.append((answer.id, answer.status))
        counts.stopped(ended)
        return answers


class CountedOutbox:
    """An outbox whose attempts are counted."""

    def __init__(self, outbox: Outbox, counts: EngineMetrics) -> None:
        self._outbox, self._counts = outbox, counts
        self.subscribe = outbox.subscribe
        self.subscriptions = outbox.subscriptions
        self.subscription = outbox.subscription
        self.unsubscribe = outbox.unsubscribe
        self.renew = outbox.renew
        self.rotate = outbox.rotate
        self.deliveries = outbox.deliveries
        self.redeliver = outbox.redeliver
        self.due_channels = outbox.due_channels
        self.take = outbox.take
        self.give_back = outbox.give_back
        self.sweep_subscriptions = outbox.sweep_subscriptions
        self.forget_deliveries = outbox.forget_deliveries

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        settled = await self._outbox.settle(tenant, settlement)
        if settled:
            self._counts.delivered[str(settlement.outcome.status)] += 1
        return settled
