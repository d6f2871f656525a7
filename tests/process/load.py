"""A worker that enqueues, claims and finishes without end, reporting each call before it and its result after it;
and the book in which that is kept, to be compared with the store afterwards."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from interlock.domain.decide import CompleteJob
from interlock.domain.job import Job, NewJob, Receipt
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.errors import Unavailable
from interlock.storage.contract import Store
from tests.process.actions import TENANT, given
from tests.process.conftest import Checker
from tests.support.workers import Place, until

VERBS: Final = ("enqueue", "claim", "finish")
LEASE_SECONDS: Final = 0.3

Recorder = Callable[[str, str, Any], None]


def payload_of(id: str) -> str:
    """Longer than a line, and different for every job."""
    return '{"id": "' + id + '", "text": "' + f"{id} \\u0000 " * 8 + '"}'


def result_of(worker: int, fence: int) -> str:
    return f'{{"worker":{worker}, "fence":{fence}}}'


async def run_load(
    store: Store, worker: int, record: Recorder, *, insist: bool = False, stop: asyncio.Event | None = None
) -> None:
    """With `insist` a call whose outcome is unknown is made again, until it is answered.

    Every other worker then names its claims, so that they may be repeated; the others lose what they do not hear of.
    """

    async def call(verb: str, facts: Any, make: Callable[[], Any]) -> Any:
        record("before", verb, facts)
        while True:
            try:
                return await make()
            except Unavailable as error:
                if not insist:
                    raise
                record("unknown", verb, error.code)

    for commit_seq in itertools.count():
        if stop is not None and stop.is_set():
            return
        ids = [f"{worker:08x}-{commit_seq:04x}-7000-8000-{n:012x}" for n in range(2)]
        jobs = [NewJob(id, "t", payload=payload_of(id)) for id in ids]
        await call("enqueue", ids, partial(store.enqueue, TENANT, jobs, whole=True))
        record("after", "enqueue", ids)
        name = str(commit_seq) if insist and worker % 2 else None
        ask = ClaimFilter(f"w{worker}", limit=3, lease_seconds=LEASE_SECONDS, claim_id=name)
        held = await call("claim", None, partial(store.claim, TENANT, ask))
        record("after", "claim", [(job.id, job.fence) for job in held])
        orders = [CompleteJob(job.id, job.fence, ask.worker, result_of(worker, job.fence)) for job in held]
        answers = await call("finish", [(job.id, job.fence) for job in held], partial(store.carry_out, TENANT, orders))
        record("after", "finish", given(answers))


def run_load_in_a_process(pipe: Connection, place: Place, worker: int) -> None:
    """Open the store, wait for the word, and go."""

    async def work() -> None:
        store = await place.open(size=1)
        pipe.send(None)
        pipe.recv()
        await run_load(store, worker, lambda *reported: pipe.send(reported))

    asyncio.run(work())


class Book:
    """What was acknowledged, and what may have happened besides."""

    def __init__(self) -> None:
        self.enqueued: set[str] = set()
        self.perhaps: list[list[str]] = []
        self.leased: dict[tuple[str, int], int] = {}
        self.finished: dict[str, tuple[Receipt, int]] = {}
        self.refused: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.answers = 0

    def writer(self, worker: int) -> Recorder:
        """Records the reports of one worker; a call without a response stays among those that may have happened."""

        def note(when: str, verb: str, facts: Any) -> None:
            match when, verb:
                case "before", "enqueue":
                    self.perhaps.append(facts)
                case "after", "enqueue":
                    self.perhaps.remove(facts)
                    self.enqueued.update(facts)
                case "after", "claim":
                    for lease in facts:
                        assert lease not in self.leased, f"{lease} was granted twice"
                        self.leased[lease] = worker
                case "after", "finish":
                    for answer in facts:
                        if isinstance(answer, Receipt):
                            assert answer.id not in self.finished, f"{answer.id} was finished twice"
                            self.finished[answer.id] = (answer, worker)
                        else:
                            self.refused[answer] += 1
                case "unknown", _:
                    self.unknown[f"{verb} {facts}"] += 1
            self.answers += when == "after"

        return note

    async def compare(self, checker: Checker) -> None:
        """Nothing acknowledged is lost, nothing is torn or done twice, nothing was invented."""
        ids = [job.id for job in await checker.everything()]
        there: dict[str, Job] = {}
        for i in range(0, len(ids), 500):
            there |= {job.id: job for job in await checker.jobs(ids[i : i + 500])}
        assert self.enqueued <= there.keys(), f"lost: {sorted(self.enqueued - there.keys())[:5]}"
        assert there.keys() <= self.enqueued.union(*self.perhaps), "invented jobs"
        assert all(job.payload == payload_of(id) for id, job in there.items())
        for batch in self.perhaps:
            assert sum(id in there for id in batch) in (0, len(batch)), f"half a batch: {batch}"
        assert set(self.refused) <= {"lease_lost"}, self.refused
        for id, job in there.items():
            rows = await checker.store.history(TENANT, id)
            leased = {row.fence: row.actor for row in rows if row.verb == Verb.CLAIM}
            ended = {row.fence: row for row in rows if row.verb == Verb.COMPLETE}
            for fence, actor in leased.items():
                worker = self.leased.pop((id, fence), None)
                assert worker is None or actor == f"worker:w{worker}"
            if id in self.finished:
                receipt, worker = self.finished.pop(id)
                assert (job.status, job.version) == (receipt.status, receipt.version) == (Status.SUCCEEDED, len(rows))
                assert job.result == result_of(worker, receipt.fence)
                assert (receipt.finished_at, receipt.version) == (job.finished_at, ended[receipt.fence].version)
            assert len(ended) == (job.status == Status.SUCCEEDED)
        assert not self.leased, f"grants that never were: {list(self.leased)[:5]}"
        assert not self.finished
        await checker.check(integrity=True)

    async def finish_remaining(self, checker: Checker) -> Counter[Status]:
        """Once the leases of the dead have expired, another worker finishes all jobs; returns how each ended."""

        async def all_ended() -> bool:
            left = await checker.store.claim(TENANT, ClaimFilter("last", limit=100))
            await checker.store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "last") for job in left])
            return bool(not left and all(job.status in TERMINAL for job in await checker.everything()))

        await until(all_ended, "every job has ended")
        await checker.check(histories=False)
        return Counter(job.status for job in await checker.everything())
