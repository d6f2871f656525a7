"""One tenant seen through a client of any kind, and the words the tests of all clients share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from interlock.client.port import Client, LeasedJob
from interlock.domain.artifact import Holder
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Job, Receipt, Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import ROLES, Principal, user
from interlock.engine.engine import Engine
from interlock.errors import Error
from interlock.wire import JobRequest
from tests.support.stores import ManualClock

T = TypeVar("T")
NEVER: Final = "0193a1b2-ffff-7fff-8fff-ffffffffffff"  # an id that nothing has
WORKER: Final = "w1"


@dataclass(frozen=True)
class ClientUnderTest:
    """A client under test; the engine behind it shows what really happened."""

    client: Client
    engine: Engine
    clock: ManualClock
    tenant: str

    @property
    def operator(self) -> Principal:
        return Principal(self.tenant, user("ada"), ROLES, unchecked=True)

    async def add(self, type: str = "work", payload: str = "{}", **fields: Any) -> str:
        """The id of a new job."""
        (created,) = await self.client.jobs.enqueue([request(type, payload, **fields)])
        return created.id

    async def claim(self, *types: str, limit: int = 1, **fields: Any) -> list[LeasedJob]:
        ask = ClaimFilter(WORKER, types=frozenset(types or {"work"}), limit=limit, lease_seconds=60.0)
        return await self.client.work.claim(ask._replace(**fields))

    async def running(self, type: str = "work", payload: str = "{}", **fields: Any) -> Job:
        """A new job, already claimed."""
        id = await self.add(type, payload, **fields)
        (lease,) = await self.claim(type)
        assert lease.job.id == id
        return lease.job

    async def complete(self, job: Job, result: str | None = None) -> Receipt:
        (answer,) = await self.client.work.finishes([CompleteJob(*holder(job), result)])
        return given(answer)

    async def truth(self, job_id: str) -> Job:
        """The job as the store has it."""
        return await self.engine.queries.job(self.tenant, job_id)


def request(type: str = "work", payload: str = "{}", **fields: Any) -> JobRequest:
    return JobRequest(type=type, payload=msgspec.Raw(payload.encode()), **fields)


def same(job: Job) -> Job:
    """A job to compare: lists are lists of either kind, and only the lease holder sees the fence."""
    fence = job.fence if job.status is Status.RUNNING else 0
    return job._replace(tags=tuple(job.tags), requires=tuple(job.requires), awaiting=tuple(job.awaiting), fence=fence)


def holder(job: Job) -> tuple[str, int, str]:
    assert job.worker is not None
    return job.id, job.fence, job.worker


def held(job: Job) -> Holder:
    return Holder(*holder(job))


def given(answer: T | Rejected) -> T:
    assert not isinstance(answer, Rejected), answer
    return answer


def refused(answer: object) -> Error:
    assert isinstance(answer, Rejected), answer
    return answer.error
