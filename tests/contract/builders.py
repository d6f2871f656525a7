"""Small makers of jobs, asks and orders, and a desk: one tenant's view of a store in the words tests use."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.decide import (
    AcknowledgeCancel,
    AcknowledgeJob,
    CancelJob,
    Command,
    CompleteJob,
    EnforceDeadline,
    ExpireLease,
    FailJob,
    ReleaseJob,
    RevokeLease,
)  # fmt: skip
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    NewJob,
    Receipt,
    Rejected,
)
from interlock.domain.policy import ClaimFilter
from interlock.domain.retry import Backoff
from interlock.errors import Error
from interlock.storage.contract import Store
from tests.support.stores import SECOND, ManualClock

ERROR: Final = '{"message":"boom","kind":"test"}'
OPERATOR: Final = "user:ada"
NEVER: Final = "0193a1b2-ffff-7fff-8fff-ffffffffffff"  # an id that no job has
FIXED: Final = Backoff("fixed", base_seconds=10.0).to_text()

_numbers = itertools.count(1)


def new_id() -> str:
    return f"0193a1b2-c3d4-7e5f-8a9b-{next(_numbers):012x}"


def new_job(**fields: Any) -> NewJob:
    """A job of type work, with a new ID."""
    return NewJob(**{"id": new_id(), "type": "work", **fields})


def ask(**fields: Any) -> ClaimFilter:
    """One job for worker w1, who has no capabilities and names no affinity key."""
    return ClaimFilter(**{"worker": "w1", **fields})


def complete(job: Job, **fields: Any) -> CompleteJob:
    return CompleteJob(**_lease(job) | fields)


def fail(job: Job, **fields: Any) -> FailJob:
    return FailJob(**_lease(job) | {"error": ERROR} | fields)


def release(job: Job, **fields: Any) -> ReleaseJob:
    return ReleaseJob(**_lease(job) | fields)


def cancel_ack(job: Job, **fields: Any) -> AcknowledgeCancel:
    return AcknowledgeCancel(**_lease(job) | fields)


def heartbeat(job: Job, **fields: Any) -> Heartbeat:
    return Heartbeat(**_lease(job) | fields)


def save(job: Job, seq: int, data: str = '"here"', **fields: Any) -> Checkpoint:
    return Checkpoint(**_lease(job) | {"seq": seq, "data": data} | fields)


def cancel(job_id: str, **fields: Any) -> CancelJob:
    return CancelJob(**{"id": job_id, "actor": OPERATOR, **fields})


def acknowledge(job_id: str, **fields: Any) -> AcknowledgeJob:
    return AcknowledgeJob(**{"id": job_id, "actor": OPERATOR, **fields})


def revoke(job_id: str, **fields: Any) -> RevokeLease:
    return RevokeLease(**{"id": job_id, "actor": OPERATOR, **fields})


def expire(job_id: str) -> ExpireLease:
    return ExpireLease(job_id)


def pass_deadline(job_id: str) -> EnforceDeadline:
    return EnforceDeadline(job_id)


def _lease(job: Job) -> dict[str, Any]:
    return {"id": job.id, "fence": job.fence, "worker": job.worker}


class TenantQueue:
    """One tenant of a store; answers come alone, and a refusal that was not expected fails the test."""

    def __init__(self, store: Store, tenant: str, clock: ManualClock) -> None:
        self.store = store
        self.tenant = tenant
        self.clock = clock

    def after(self, seconds: float) -> int:
        """The time this many seconds from now."""
        return self.clock.now + round(seconds * SECOND)

    async def add(self, **fields: Any) -> str:
        """The id of a new job."""
        (id,) = await self.add_all([new_job(**fields)])
        return id

    async def add_all(self, jobs: Sequence[NewJob]) -> list[str]:
        answers = await self.store.enqueue(self.tenant, jobs)
        assert not [a for a in answers if isinstance(a, Rejected)], answers
        return [a.id for a in answers if isinstance(a, Enqueued)]

    async def claim(self, **fields: Any) -> list[Job]:
        return await self.store.claim(self.tenant, ask(**fields))

    async def claimed(self, **fields: Any) -> list[str]:
        """The ids of what a claim was granted."""
        return [job.id for job in await self.claim(**fields)]

    async def running(self, *, worker: str = "w1", lease_seconds: float = 60.0, **fields: Any) -> Job:
        """A new job, already claimed."""
        id = await self.add(**fields)
        (job,) = await self.claim(
            worker=worker, lease_seconds=lease_seconds, types=frozenset({fields.get("type", "work")})
        )
        assert job.id == id
        return job

    async def again(self, job: Job, *, worker: str = "w2", **fields: Any) -> Job:
        """The next grant of a job that waits for nothing."""
        (leased,) = await self.claim(worker=worker, types=frozenset({job.type}), **fields)
        assert leased.id == job.id
        return leased

    async def do(self, order: Command) -> Receipt:
        (answer,) = await self.store.carry_out(self.tenant, [order])
        assert isinstance(answer, Receipt), answer
        return answer

    async def refused(self, order: Command) -> Error:
        (answer,) = await self.store.carry_out(self.tenant, [order])
        assert isinstance(answer, Rejected), answer
        return answer.error

    async def heartbeat(self, *heartbeats: Heartbeat) -> list[HeartbeatReply]:
        answers = await self.store.heartbeat(self.tenant, heartbeats)
        assert all(isinstance(a, HeartbeatReply) for a in answers), answers
        return [a for a in answers if isinstance(a, HeartbeatReply)]

    async def heartbeat_rejected(self, heartbeat: Heartbeat) -> Error:
        (answer,) = await self.store.heartbeat(self.tenant, [heartbeat])
        assert isinstance(answer, Rejected), answer
        return answer.error

    async def checkpoint(self, checkpoint: Checkpoint) -> int:
        (answer,) = await self.store.checkpoint(self.tenant, [checkpoint])
        assert isinstance(answer, int), answer
        return answer

    async def checkpoint_rejected(self, checkpoint: Checkpoint) -> Error:
        (answer,) = await self.store.checkpoint(self.tenant, [checkpoint])
        assert isinstance(answer, Rejected), answer
        return answer.error

    async def job(self, job_id: str) -> Job:
        (job,) = await self.store.get(self.tenant, [job_id])
        assert job is not None
        return job

    async def history(self, job_id: str) -> list[HistoryRow]:
        return await self.store.history(self.tenant, job_id)

    async def trace(self, job_id: str) -> tuple[Job, list[HistoryRow]]:
        """Everything that can be seen of a job: equal before and after means that nothing changed."""
        return await self.job(job_id), await self.history(job_id)

    async def sweep(self) -> None:
        """What the clock does in the background, for this tenant."""
        leases = [due.job_id for due in await self.store.due_leases(10_000) if due.tenant == self.tenant]
        await self.store.carry_out(self.tenant, [expire(id) for id in leases])
        late = [due.job_id for due in await self.store.due_deadlines(10_000) if due.tenant == self.tenant]
        await self.store.carry_out(self.tenant, [pass_deadline(id) for id in late])

    async def verify(self) -> None:
        assert (await self.store.audit.verify(self.tenant)).first_bad is None


def facts(row: HistoryRow) -> dict[str, Any]:
    """The metadata of a row, without the digests of the transition."""
    reported: dict[str, Any] = json.loads(row.metadata or "{}")
    reported.pop("digests", None)
    return reported


def digests(row: HistoryRow) -> dict[str, str | None]:
    """The digests that a row carries."""
    found: dict[str, str | None] = json.loads(row.metadata or "{}").get("digests", {})
    return found
