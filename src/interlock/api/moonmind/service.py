"""What MoonMind's queue does, in terms of the engine; REST routes and tools both call this."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api.face import Lenient
from interlock.api.moonmind import encode
from interlock.api.moonmind.auth import refused
from interlock.api.moonmind.requests import Asked, Text, stripped
from interlock.api.routes import ABSENT
from interlock.domain import principal
from interlock.domain.artifact import Holder
from interlock.domain.decide import CancelAck, Complete, Fail, Finish
from interlock.domain.job import ANY_FENCE, Beat, Checkpoint, Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.operations import Needs
from interlock.domain.policy import ClaimAsk, names
from interlock.domain.principal import Principal
from interlock.domain.progress import fitted
from interlock.engine.answers import answered
from interlock.engine.engine import Engine
from interlock.errors import Conflict, Forbidden, Invalid, TooLarge
from interlock.wire import JobRequest

RETRY: Final = {"kind": "exponential", "base_seconds": 15, "max_seconds": 600, "multiplier": 2}
EXPIRY_DELAY_SECONDS: Final = 30
LARGEST_STATE: Final = 64 * 1024

Seconds = Annotated[int, Meta(ge=1)]


class Enqueue(Asked, frozen=True, kw_only=True):
    """A job as a user asks for it."""

    type: Text
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    priority: int = 0
    affinity_key: str | None = None
    max_attempts: Annotated[int, Meta(ge=1)] = 3


class Payload(Lenient, frozen=True, kw_only=True):
    """The parts of a payload that decide who may claim the job."""

    repository: str | None = None
    required_capabilities: list[str] | None = None


class ListJobs(Asked, frozen=True, kw_only=True):
    """Which jobs a list shows."""

    status: str | None = None
    type: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class Claim(Asked, frozen=True, kw_only=True):
    """What a worker is ready to do."""

    worker_id: Text
    lease_seconds: Seconds
    allowed_types: list[str] | None = None
    worker_capabilities: list[str] | None = None


class Heartbeat(Asked, frozen=True, kw_only=True):
    """A sign of life."""

    worker_id: Text
    lease_seconds: Seconds


class Completed(Asked, frozen=True, kw_only=True):
    """A success report."""

    worker_id: Text
    result_summary: str | None = None


class Failed(Asked, frozen=True, kw_only=True):
    """A failure report, final unless it says otherwise."""

    worker_id: Text
    error_message: Text
    retryable: bool = False


class CancelJob(Asked, frozen=True, kw_only=True):
    """Why a job is to stop."""

    reason: str | None = None


class Acknowledged(Asked, frozen=True, kw_only=True):
    """The work has stopped, as was asked."""

    worker_id: Text
    message: str | None = None


class RuntimeState(Asked, frozen=True, kw_only=True):
    """Progress to go on from."""

    worker_id: Text
    runtime_state: msgspec.Raw = ABSENT
    state: msgspec.Raw = ABSENT


class Resubmit(Asked, frozen=True, kw_only=True):
    """What is to be different in the new job."""

    payload: msgspec.Raw = ABSENT
    priority: int | None = None
    max_attempts: Annotated[int, Meta(ge=1)] | None = None


class Queue:
    """The agent queue as one caller may use it."""

    def __init__(self, engine: Engine, who: Principal, *, sanitized: bool = False) -> None:
        self._engine = engine
        self._who = who
        self._sanitized = sanitized  # odd text of this request was mended

    async def enqueue(self, asked: Enqueue) -> dict[str, Any]:
        needs = _needs(asked.payload)
        request = JobRequest(
            type=asked.type.strip(),
            payload=asked.payload,
            priority=asked.priority,
            affinity_key=(asked.affinity_key or "").strip() or None,
            max_attempts=asked.max_attempts,
            backoff=RETRY,
            expiry_delay_seconds=EXPIRY_DELAY_SECONDS,
            repository=needs.repository,
            requires=list(needs.requires),
        )
        return await self.get((await self._engine.jobs.enqueue(self._who, request)).id)

    async def get(self, job_id: str) -> dict[str, Any]:
        return encode.job(await self._job(job_id))

    async def list(self, query: ListJobs) -> dict[str, Any]:
        if query.status is not None and query.status not in encode.STATUSES:
            raise refused(422, "invalid_status_filter", f"{query.status!r} is no status")
        statuses = () if query.status is None else encode.STATUSES[query.status]
        found = await self._engine.reads.jobs(self._who.tenant, Filter(statuses, type=query.type, limit=query.limit))
        jobs = await self._engine.reads.some(self._who.tenant, [job.id for job in found])
        return {"items": [encode.job(job) for job in jobs]}

    async def claim(self, asked: Claim) -> dict[str, Any]:
        who, policy = self._who, self._who.policy
        types = frozenset(names(stripped(asked.allowed_types), what="allowedTypes")) or None
        given = names(stripped(asked.worker_capabilities), what="workerCapabilities")
        ask = ClaimAsk(
            worker=self._worker(asked.worker_id),
            types=types,
            capabilities=frozenset(given) if policy is None else policy.capabilities,
            affinity_keys=None,
            lease_seconds=_lease(asked.lease_seconds),
        )
        ask = who.narrowed(ask)
        if ask.types is not None and not ask.types:
            raise refused(403, "worker_not_authorized", "none of these types is allowed to this worker")
        jobs = await self._engine.leases.claim(who.tenant, ask)
        return {"job": encode.job(jobs[0]) if jobs else None}

    async def heartbeat(self, job_id: str, asked: Heartbeat) -> dict[str, Any]:
        beat = Beat(job_id, ANY_FENCE, self._worker(asked.worker_id), _lease(asked.lease_seconds))
        try:
            await self._engine.leases.heartbeat(self._who.tenant, beat)
        except Conflict:
            raise await self._not_held(job_id, beat.worker) from None
        return await self.get(job_id)

    async def complete(self, job_id: str, asked: Completed) -> dict[str, Any]:
        worker, summary = self._worker(asked.worker_id), asked.result_summary
        if summary is not None:  # work that is done is not lost for the length of a remark on it
            summary = fitted(summary.replace("\x00", "\ufffd"), None, wire.REMARK_BYTES)
        return await self._finished(
            Complete(job_id, ANY_FENCE, worker, result_summary=summary, sanitized=self._sanitized)
        )

    async def fail(self, job_id: str, asked: Failed) -> dict[str, Any]:
        error, mended = wire.error_body(asked.error_message)
        order = Fail(
            job_id, ANY_FENCE, self._worker(asked.worker_id), error, retryable=asked.retryable,
            sanitized=mended or self._sanitized,
        )  # fmt: skip
        return await self._finished(order)

    async def acknowledge(self, job_id: str, asked: Acknowledged) -> dict[str, Any]:
        """The same again answers the job that this worker has ended."""
        worker = self._worker(asked.worker_id)
        job = await self._job(job_id)
        if job.status is Status.CANCELLED:
            *_, end = await self._engine.reads.history(self._who.tenant, job.id)
            if end.actor == principal.worker(worker):
                return encode.job(job)
        return await self._finished(CancelAck(job_id, ANY_FENCE, worker))

    async def cancel(self, job_id: str, asked: CancelJob) -> dict[str, Any]:
        if not self._who.may("operate") and (await self._job(job_id)).created_by != self._who.actor:
            raise refused(403, "user_not_authorized", "only who made a job, or an operator, may cancel it")
        await self._engine.jobs.cancel(self._who, job_id, reason=asked.reason)
        return await self.get(job_id)

    async def resubmit(self, job_id: str, asked: Resubmit) -> dict[str, Any]:
        payload = bytes(asked.payload) or None
        done = await self._engine.operations.redrive(
            self._who,
            job_id,
            priority=asked.priority,
            max_attempts=asked.max_attempts,
            payload=payload,
            needs=None if payload is None else _needs(asked.payload),
        )
        return await self.get(done.id)

    async def save_state(self, job_id: str, asked: RuntimeState) -> dict[str, Any]:
        data = bytes(asked.runtime_state) or bytes(asked.state)
        if not data.startswith(b"{"):
            raise Invalid("runtimeState must be an object", pointer="/runtimeState")
        if len(data) > LARGEST_STATE:
            raise Invalid(str(TooLarge("runtimeState", len(data), LARGEST_STATE)), pointer="/runtimeState")
        holder = await self.holder(job_id, asked.worker_id)
        seq = ((await self._job(job_id)).checkpoint_seq or 0) + 1
        await self._engine.leases.checkpoint(self._who.tenant, Checkpoint(*holder, seq, data.decode(), self._sanitized))
        return await self.get(job_id)

    async def holder(self, job_id: str, worker_id: str) -> Holder:
        """The grant under which this worker holds the job now; whoever does not is refused."""
        worker = self._worker(worker_id)
        job = await self._job(job_id)
        if job.status is not Status.RUNNING or job.worker != worker:
            raise await self._not_held(job_id, worker)
        return Holder(job.id, job.fence, worker)

    async def _finished(self, order: Finish) -> dict[str, Any]:
        try:
            (answer,) = await self._engine.leases.finishes(self._who.tenant, [order])
            answered(answer)
        except Conflict:
            raise await self._not_held(order.id, order.worker) from None
        return await self.get(order.id)

    async def _not_held(self, job_id: str, worker: str) -> Exception:
        job = await self._job(job_id)
        if job.status is Status.RUNNING and job.worker != worker:
            return refused(409, "job_ownership_mismatch", f"job {job.id} is held by another worker")
        return refused(409, "job_state_conflict", f"job {job.id} is {encode.job(job)['status']}")

    async def _job(self, job_id: str) -> Job:
        return await self._engine.reads.job(self._who.tenant, wire.job_id(job_id))

    def _worker(self, worker_id: str) -> str:
        worker = worker_id.strip()
        if self._who.worker not in (None, worker):
            raise Forbidden(f"this credential belongs to worker {self._who.worker}")
        return worker


def _needs(payload: msgspec.Raw) -> Needs:
    """What a payload asks of workers; one that is no object is none."""
    try:
        said = msgspec.json.decode(payload, type=Payload)
    except msgspec.ValidationError as error:
        raise Invalid(f"payload: {error}", pointer="/payload") from None
    return Needs((said.repository or "").strip() or None, tuple(stripped(said.required_capabilities)))


def _lease(seconds: int) -> float:
    return float(min(seconds, wire.LIMITS.lease_seconds))
