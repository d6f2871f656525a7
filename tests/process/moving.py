"""A process that moves a tenant and is killed in between; and the load that continues meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

from interlock.domain.approval import ApprovalFilter, ApprovalStatus, CastVote, Decision, RequestApproval
from interlock.domain.decide import CompleteJob, FailJob, ReleaseJob
from interlock.domain.edit import EditJob
from interlock.domain.job import Enqueued, Heartbeat, Job, NewJob, Rejected
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Event, Level, Report, Step
from interlock.storage.contract import Store
from interlock.storage.shards.tenant_move import Mover
from interlock.wire import new_id
from tests.support.workers import failed

STALE_SECONDS: Final = 0.05
FRESH_SECONDS: Final = 0.03
MAX_JOBS: Final = 120
PARKED: Final = 30
FAR: Final = 4_000_000_000_000_000  # some day in 2096
AGENT: Final[dict[str, Any]] = {"agent_kind": "planner", "agent_id": "one"}


def move(pipe: Connection, addresses: Mapping[str, str], tenant: str, target: str, die_at: str | None) -> None:
    """Move a tenant, and report the result and the points passed; killed by the kernel at the named point."""
    points: dict[str, None] = {}

    def at(point: str) -> None:
        points[point] = None
        if point == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        moved = asyncio.run(Mover(addresses, stale_seconds=STALE_SECONDS, step=25, at=at).move(tenant, target))
    except Exception as error:
        pipe.send(failed(error))
    else:
        pipe.send((moved, list(points)))


class Load:
    """Producers, workers and an approver of one tenant; they record the responses, and check the store against them."""

    def __init__(self, store: Store, tenant: str) -> None:
        self.store = store
        self.tenant = tenant
        self.created: dict[str, str] = {}  # ids by idempotency key
        self.ended: dict[str, str] = {}  # how jobs ended, by the responses to the workers
        self.leased: set[tuple[str, int]] = set()
        self.rounds = 0
        self.edited: dict[str, int] = {}  # versions of jobs that wait all the time, by the responses to their editor
        self._stopping = False

    async def run(self) -> None:
        """Until it is stopped; a wrong response of the store is raised."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce())
            group.create_task(self._approve())
            group.create_task(self._edit())
            for number in range(2):
                group.create_task(self._work(f"w{number}"))

    def stop(self) -> None:
        self._stopping = True

    async def _produce(self) -> None:
        for number in itertools.count():
            if self._stopping:
                return
            key = f"key {number % MAX_JOBS}"
            fields: dict[str, Any] = AGENT if number % 3 == 0 else {}
            job = NewJob(new_id(), f"type {number % 2}", idempotency_key=key, body_sha256=key.encode(), **fields)
            (answer,) = await self.store.enqueue(self.tenant, [job])
            assert isinstance(answer, Enqueued), answer
            assert self.created.setdefault(key, answer.id) == answer.id
            assert answer.replayed == (number >= MAX_JOBS)
            self.rounds += 1
            await asyncio.sleep(0.01)

    async def _edit(self) -> None:
        """Jobs that live through every move, and change all the time."""
        parked = [NewJob(new_id(), "parked", idempotency_key=f"parked {i}", run_at=FAR) for i in range(PARKED)]
        for job in parked:
            (created,) = await self.store.enqueue(self.tenant, [job])
            assert isinstance(created, Enqueued), created
            self.created[str(job.idempotency_key)] = created.id
        for number in itertools.count():
            if self._stopping:
                return
            id = parked[number % PARKED].id
            version = self.edited.get(id, 1)
            order = EditJob(id, "user:ada", priority=1 + number // PARKED % 2, expected_version=version)
            (receipt,) = await self.store.carry_out(self.tenant, [order])
            assert not isinstance(receipt, Rejected), receipt
            assert receipt.version == version + 1
            self.edited[id] = receipt.version
            await asyncio.sleep(0.02)

    async def _work(self, worker: str) -> None:
        ask = ClaimFilter(worker, limit=2, lease_seconds=600.0)
        while not self._stopping:
            jobs = await self.store.claim(self.tenant, ask)
            for number, job in enumerate(jobs):
                assert (job.id, job.fence) not in self.leased
                self.leased.add((job.id, job.fence))
                await self._run(job, number)
            if not jobs:
                await asyncio.sleep(0.01)

    async def _run(self, job: Job, number: int) -> None:
        held: dict[str, Any] = {"id": job.id, "fence": job.fence, "worker": job.worker}
        (reply,) = await self.store.heartbeat(self.tenant, [Heartbeat(**held)])
        assert not isinstance(reply, Rejected), reply
        (step,) = await self.store.save_steps(self.tenant, [Step(**held, name="s", occurrence=job.version, result="1")])
        assert not isinstance(step, Rejected), step
        event = Event(new_id(), Level.INFO, f"version {job.version}")
        (reported,) = await self.store.add_events(self.tenant, [Report(**held, events=(event,))])
        assert not isinstance(reported, Rejected), reported
        order: CompleteJob | FailJob | ReleaseJob | RequestApproval = CompleteJob(**held, result="1")
        if job.version == 2 and number == 0:
            order = RequestApproval(**held, approval_id=new_id(), prompt="Go on?", opened_by=f"worker:{job.worker}")
        elif job.version == 2:
            order = ReleaseJob(**held)
        elif job.version == 4:
            order = FailJob(**held, error='{"message":"again"}', retry_after_seconds=0.1)
        (receipt,) = await self.store.carry_out(self.tenant, [order])
        assert not isinstance(receipt, Rejected), receipt
        if isinstance(order, CompleteJob):
            assert job.id not in self.ended
            self.ended[job.id] = receipt.status

    async def _approve(self) -> None:
        while not self._stopping:
            add_approvals = ApprovalFilter(status=ApprovalStatus.OPEN, limit=10)
            for approval in await self.store.approvals.find(self.tenant, add_approvals):
                command = CastVote(approval.id, "user:ada", Decision.APPROVE)
                (answer,) = await self.store.approvals.decide(self.tenant, [command])
                assert not isinstance(answer, Rejected), answer
            await asyncio.sleep(0.02)
