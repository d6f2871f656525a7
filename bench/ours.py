"""Interlock itself, through the same calls that everybody makes, with every rule and the whole audit on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count as numbers

from bench.plan import BenchFailed, Measurement
from bench.workload import LOAD_BATCH_SIZE, TENANT, TYPES, WHO, new_jobs, requests
from interlock import wire
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Enqueued, Filter, NewJob, Receipt, Rejected
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.policy import ClaimFilter
from interlock.engine.engine import Engine
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.wire import JobRequest


class Ours:
    """A store with an engine over it."""

    def __init__(self, store: Store) -> None:
        self.added = 0
        self._store = store
        self._engine = Engine(batched(store))
        self._requests: list[JobRequest] = []
        self._jobs: list[NewJob] = []
        self._enqueued: list[Enqueued | Rejected] = []
        self._receipts: list[Receipt | Rejected] = []

    def prepare(self, count: int) -> None:
        self._requests = requests(count)
        self._jobs = new_jobs(count)

    async def load(self, count: int) -> None:
        jobs = new_jobs(count)
        for i in range(0, count, LOAD_BATCH_SIZE):
            self._enqueued += await self._store.enqueue(TENANT, jobs[i : i + LOAD_BATCH_SIZE])
        self.added += count

    async def enqueue(self, what: Measurement, start: int, stop: int) -> None:
        if what.batch > 1:
            for i in range(start, stop, what.batch):
                self._enqueued += await self._store.enqueue(TENANT, self._jobs[i : min(i + what.batch, stop)])
        else:
            waiting = iter(self._requests[start:stop])
            client = self._one_by_one if what.coalesced else self._one_by_one_on_the_store
            if what.ways == 1:
                await client(waiting)
            else:
                await asyncio.gather(*(client(waiting) for _ in range(what.ways)))
        self.added += stop - start

    async def _one_by_one(self, waiting: Iterator[JobRequest]) -> None:
        for request in waiting:
            self._enqueued.append(await self._engine.jobs.enqueue(WHO, request))

    async def _one_by_one_on_the_store(self, waiting: Iterator[JobRequest]) -> None:
        for request in waiting:
            job = wire.new_job(request, created_by=WHO.actor, now=0)
            self._enqueued += await self._store.enqueue(TENANT, [job])

    async def drain(self, batch: int, loops: int, tickets: int | None) -> int:
        before = len(self._receipts)
        left: Iterator[int] = iter(numbers() if tickets is None else range(tickets))
        await asyncio.gather(*(self._work(f"worker-{i}", batch, left) for i in range(loops)))
        return len(self._receipts) - before

    async def _work(self, worker: str, batch: int, left: Iterator[int]) -> None:
        ask = ClaimFilter(worker, types=frozenset(TYPES), limit=batch)
        for _ in left:
            jobs = await self._store.claim(TENANT, ask)
            if not jobs:
                return
            orders = [CompleteJob(job.id, job.fence, worker) for job in jobs]
            self._receipts += await self._store.carry_out(TENANT, orders)

    async def check(self, *, drained: bool) -> None:
        fresh = {answer.id for answer in self._enqueued if isinstance(answer, Enqueued) and not answer.replayed}
        _expect("jobs acknowledged", len(fresh), self.added)
        done = {r.id for r in self._receipts if isinstance(r, Receipt) and r.status is Status.SUCCEEDED}
        _expect("jobs reported as succeeded", len(done), self.added if drained else 0)
        if drained:
            open_ = tuple(status for status in Status if status not in TERMINAL)
            _expect("jobs left over", len(await self._store.find(TENANT, Filter(statuses=open_, limit=1))), 0)
        verdict = await self._store.audit.verify()
        if verdict.first_bad is not None:
            raise BenchFailed(f"the audit found a bad row: {verdict.first_bad}")
        _expect("jobs in the audit", verdict.jobs, self.added)
        _expect("rows of history", verdict.rows, self.added * (3 if drained else 1))


def _expect(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise BenchFailed(f"Interlock: {found} {what}, not {wanted}")
