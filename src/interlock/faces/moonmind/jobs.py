"""MoonMind's agent queue in terms of the engine, and the REST routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api.adapters import MAX_LEASE_SECONDS
from interlock.api.routes import ABSENT, Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain import policy as policies
from interlock.domain import principal
from interlock.domain.artifact import Holder
from interlock.domain.decide import AcknowledgeCancel, CompleteJob, FailJob, Finish
from interlock.domain.job import ANY_FENCE, Checkpoint, Filter, Heartbeat, Job
from interlock.domain.lifecycle import Status
from interlock.domain.operations import Needs
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import fitted
from interlock.engine.engine import Engine
from interlock.engine.results import answered
from interlock.errors import Conflict, Forbidden, Invalid, TooLarge
from interlock.faces.moonmind import model
from interlock.faces.moonmind.model import BASE, MoonmindRequest, Text, reject, stripped, trimmed
from interlock.wire import JobRequest

RETRY: Final = {"kind": "exponential", "base_seconds": 15, "max_seconds": 600, "multiplier": 2}
EXPIRY_DELAY_SECONDS: Final = 30
MAX_STATE_BYTES: Final = 64 * 1024
MAX_REASON_LENGTH: Final = 256

Seconds = Annotated[int, Meta(ge=1)]


class EnqueueRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A new job."""

    type: Text
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    priority: int = 0
    affinity_key: str | None = None
    max_attempts: Annotated[int, Meta(ge=1)] = 3


class ListJobsQuery(MoonmindRequest, frozen=True, kw_only=True):
    """The filter of a job list."""

    keeps_blank: ClassVar[frozenset[str]] = frozenset({"status"})
    status: str | None = None
    type: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ClaimRequest(MoonmindRequest, frozen=True, kw_only=True):
    """The types and capabilities of a worker."""

    worker_id: Text
    lease_seconds: Seconds
    allowed_types: list[str] | None = None
    worker_capabilities: list[str] | None = None


class HeartbeatRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A lease extension."""

    worker_id: Text
    lease_seconds: Seconds


class CompleteRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A success."""

    worker_id: Text
    result_summary: str | None = None


class FailRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A failure, permanent unless it is retryable."""

    worker_id: Text
    error_message: str
    retryable: bool = False


class CancelRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A request to cancel a job."""

    reason: str | None = None


class AcknowledgeCancelRequest(MoonmindRequest, frozen=True, kw_only=True):
    """The acknowledgement of a cancel request by the worker."""

    worker_id: Text
    message: str | None = None


class RuntimeStateRequest(MoonmindRequest, frozen=True, kw_only=True):
    """Progress to resume from."""

    worker_id: Text
    runtime_state: msgspec.Raw = ABSENT
    state: msgspec.Raw = ABSENT


class ResubmitRequest(MoonmindRequest, frozen=True, kw_only=True):
    """The fields in which the new job differs."""

    payload: msgspec.Raw = ABSENT
    priority: int | None = None
    max_attempts: Annotated[int, Meta(ge=1)] | None = None


class QueueService:
    """The agent queue for one caller. Accepts job IDs in the form of MoonMind clients or of Interlock."""

    def __init__(self, engine: Engine, who: Principal, *, sanitized: bool = False) -> None:
        self._engine = engine
        self._who = who
        self._sanitized = sanitized  # invalid Unicode of this request was replaced

    async def enqueue(self, request: EnqueueRequest) -> dict[str, Any]:
        needs = _needs(request.payload)
        job_request = JobRequest(
            type=request.type.strip(),
            payload=request.payload,
            priority=request.priority,
            affinity_key=trimmed(request.affinity_key),
            max_attempts=request.max_attempts,
            backoff=RETRY,
            expiry_delay_seconds=EXPIRY_DELAY_SECONDS,
            repository=needs.repository,
            requires=list(needs.requires),
        )
        return await self.get((await self._engine.jobs.enqueue(self._who, job_request)).id)

    async def get(self, job_id: str) -> dict[str, Any]:
        return model.encode_job(await self.job(job_id))

    async def list(self, query: ListJobsQuery) -> dict[str, Any]:
        if query.status is not None and query.status not in model.STATUSES:
            raise reject(422, "invalid_status_filter", f"unsupported status {query.status!r}")
        statuses = () if query.status is None else model.STATUSES[query.status]
        filter = Filter(statuses, type=query.type or None, limit=query.limit)
        found = await self._engine.queries.jobs(self._who.tenant, filter)
        jobs = await self._engine.queries.some(self._who.tenant, [job.id for job in found])
        return {"items": [model.encode_job(job) for job in jobs]}

    async def claim(self, request: ClaimRequest) -> dict[str, Any]:
        who, policy = self._who, self._who.policy
        types = frozenset(policies.names(stripped(request.allowed_types), what="allowedTypes")) or None
        given = policies.names(stripped(request.worker_capabilities), what="workerCapabilities")
        ask = ClaimFilter(
            worker=self._worker(request.worker_id),
            types=types,
            capabilities=frozenset(given) if policy is None else policy.capabilities,
            affinity_keys=None,
            lease_seconds=_lease(request.lease_seconds),
        )
        ask = who.narrowed(ask)
        if ask.types is not None and not ask.types:
            raise reject(403, "worker_not_authorized", "allowedTypes has no type that the worker token allows")
        jobs = await self._engine.leases.claim(who.tenant, ask, max_lease=MAX_LEASE_SECONDS)
        return {"job": model.encode_job(jobs[0]) if jobs else None}

    async def heartbeat(self, job_id: str, request: HeartbeatRequest) -> dict[str, Any]:
        worker = self._worker(request.worker_id)
        extension = Heartbeat(model.decode_id(job_id), ANY_FENCE, worker, _lease(request.lease_seconds))
        try:
            await self._engine.leases.heartbeat(self._who.tenant, extension, max_lease=MAX_LEASE_SECONDS)
        except Conflict:
            raise await self._not_leased(job_id, worker) from None
        return await self.get(job_id)

    async def complete(self, job_id: str, request: CompleteRequest) -> dict[str, Any]:
        worker, summary = self._worker(request.worker_id), trimmed(request.result_summary)
        if summary is not None:  # finished work is not rejected for the length of its summary
            summary = fitted(summary.replace("\x00", "\ufffd"), None, wire.REMARK_BYTES)
        command = CompleteJob(
            model.decode_id(job_id), ANY_FENCE, worker, result_summary=summary, sanitized=self._sanitized
        )
        return await self._finish(command)

    async def fail(self, job_id: str, request: FailRequest) -> dict[str, Any]:
        message = trimmed(request.error_message)
        if message is None:
            raise Invalid("errorMessage is empty: expected a text", pointer="/errorMessage")
        error, replaced = wire.error_body(message)
        command = FailJob(
            model.decode_id(job_id), ANY_FENCE, self._worker(request.worker_id), error, retryable=request.retryable,
            sanitized=replaced or self._sanitized,
        )  # fmt: skip
        return await self._finish(command)

    async def acknowledge(self, job_id: str, request: AcknowledgeCancelRequest) -> dict[str, Any]:
        """Acknowledge a cancel request; a repeated call returns the job that this worker ended."""
        worker = self._worker(request.worker_id)
        job = await self.job(job_id)
        if job.status is Status.CANCELLED:
            *_, end = await self._engine.queries.history(self._who.tenant, job.id)
            if end.actor == principal.worker(worker):
                return model.encode_job(job)
        return await self._finish(AcknowledgeCancel(job.id, ANY_FENCE, worker))

    async def cancel(self, job_id: str, request: CancelRequest) -> dict[str, Any]:
        job = await self.job(job_id)
        if not self._who.may("operate") and job.created_by != self._who.actor:
            raise reject(403, "user_not_authorized", "only the creator of a job or an operator may cancel it")
        reason = trimmed((request.reason or "").strip()[:MAX_REASON_LENGTH])
        await self._engine.jobs.cancel(self._who, job.id, reason=reason)
        return await self.get(job.id)

    async def resubmit(self, job_id: str, request: ResubmitRequest) -> dict[str, Any]:
        payload = bytes(request.payload) or None
        done = await self._engine.operations.redrive(
            self._who,
            model.decode_id(job_id),
            priority=request.priority,
            max_attempts=request.max_attempts,
            payload=payload,
            needs=None if payload is None else _needs(request.payload),
        )
        return await self.get(done.id)

    async def save_state(self, job_id: str, request: RuntimeStateRequest) -> dict[str, Any]:
        data = bytes(request.runtime_state) or bytes(request.state)
        if not data.startswith(b"{"):
            raise Invalid("runtimeState must be an object", pointer="/runtimeState")
        if len(data) > MAX_STATE_BYTES:
            raise Invalid(str(TooLarge("runtimeState", len(data), MAX_STATE_BYTES)), pointer="/runtimeState")
        holder = await self.holder(job_id, request.worker_id)
        seq = ((await self.job(job_id)).checkpoint_seq or 0) + 1
        await self._engine.leases.checkpoint(self._who.tenant, Checkpoint(*holder, seq, data.decode(), self._sanitized))
        return await self.get(job_id)

    async def holder(self, job_id: str, worker_id: str) -> Holder:
        """The lease that this worker has on the job now, or the error that it has none."""
        worker = self._worker(worker_id)
        job = await self.job(job_id)
        if job.status is not Status.RUNNING or job.worker != worker:
            raise await self._not_leased(job_id, worker)
        return Holder(job.id, job.fence, worker)

    async def job(self, job_id: str) -> Job:
        return await self._engine.queries.job(self._who.tenant, wire.job_id(model.decode_id(job_id)))

    async def _finish(self, command: Finish) -> dict[str, Any]:
        try:
            (answer,) = await self._engine.leases.finishes(self._who.tenant, [command])
            answered(answer)
        except Conflict:
            raise await self._not_leased(command.id, command.worker) from None
        return await self.get(command.id)

    async def _not_leased(self, job_id: str, worker: str) -> Exception:
        job = await self.job(job_id)
        if job.status is Status.RUNNING and job.worker != worker:
            return reject(409, "job_ownership_mismatch", f"job {job.id} is leased to another worker")
        return reject(409, "job_state_conflict", f"job {job.id} is {model.STATUS[job.status]}")

    def _worker(self, worker_id: str) -> str:
        worker = worker_id.strip()
        if self._who.worker not in (None, worker):
            raise Forbidden(f"this credential belongs to worker {self._who.worker}")
        return worker


def _needs(payload: msgspec.Raw) -> Needs:
    """The repository and capabilities that a payload names; any object is a valid payload."""
    try:
        members = msgspec.json.decode(payload, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise Invalid(f"payload: {error}", pointer="/payload") from None
    return Needs(_repository(members.get("repository")), tuple(_capabilities(members.get("requiredCapabilities"))))


def _repository(value: object) -> str | None:
    """A repository by name; no token can name any other value, so that only tokens without a list get the job."""
    try:
        return policies.repository(value) if isinstance(value, str) else None
    except Invalid:
        return None


def _capabilities(value: object) -> list[str]:
    """Distinct capabilities; a value that is not a list requires none, as in its server."""
    if not isinstance(value, list):
        return []
    return stripped([one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in value])


def _lease(seconds: int) -> float:
    return float(min(seconds, MAX_LEASE_SECONDS))


routes = RouteTable()


def queue(call: RequestContext[Any, Any]) -> QueueService:
    return QueueService(call.engine, call.who, sanitized=call.sanitized)


@routes.add("POST", f"{BASE}/jobs", roles=["produce"], body=EnqueueRequest, answers={201: None})
async def enqueue_job(call: RequestContext[EnqueueRequest, Nothing]) -> Response:
    """Enqueue a job."""
    return respond(await queue(call).enqueue(call.body), 201)


@routes.add("GET", f"{BASE}/jobs", roles=["read"], query=ListJobsQuery, answers={200: None})
async def list_jobs(call: RequestContext[None, ListJobsQuery]) -> Response:
    """List jobs, newest first."""
    return respond(await queue(call).list(call.query))


@routes.add("GET", f"{BASE}/jobs/{{job_id}}", roles=["read"], answers={200: None})
async def get_job(call: RequestContext[None, Nothing]) -> Response:
    """Read a job."""
    return respond(await queue(call).get(call.path["job_id"]))


@routes.add("POST", f"{BASE}/jobs/claim", roles=["work"], body=ClaimRequest, answers={200: None})
async def claim_job(call: RequestContext[ClaimRequest, Nothing]) -> Response:
    """Lease the next job that the worker may claim."""
    return respond(await queue(call).claim(call.body))


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/heartbeat", roles=["work"], body=HeartbeatRequest, answers={200: None})
async def heartbeat_job(call: RequestContext[HeartbeatRequest, Nothing]) -> Response:
    """Extend the lease of a job."""
    return respond(await queue(call).heartbeat(call.path["job_id"], call.body))


@routes.add(
    "POST",
    f"{BASE}/jobs/{{job_id}}/complete",
    roles=["work"],
    body=CompleteRequest,
    sanitizes=True,
    answers={200: None},
)
async def complete_job(call: RequestContext[CompleteRequest, Nothing]) -> Response:
    """Complete a job."""
    return respond(await queue(call).complete(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/fail", roles=["work"], body=FailRequest, sanitizes=True, answers={200: None}
)
async def fail_job(call: RequestContext[FailRequest, Nothing]) -> Response:
    """Fail a job."""
    return respond(await queue(call).fail(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel", roles=["operate", "produce"], body=CancelRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def cancel_job(call: RequestContext[CancelRequest, Nothing]) -> Response:
    """Cancel a job: immediately unless it is running, else by request."""
    return respond(await queue(call).cancel(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/cancel/ack", roles=["work"], body=AcknowledgeCancelRequest, answers={200: None}
)
async def acknowledge_cancel(call: RequestContext[AcknowledgeCancelRequest, Nothing]) -> Response:
    """Acknowledge a cancel request."""
    return respond(await queue(call).acknowledge(call.path["job_id"], call.body))


@routes.add(
    "POST",
    f"{BASE}/jobs/{{job_id}}/runtime-state",
    roles=["work"],
    body=RuntimeStateRequest,
    sanitizes=True,
    answers={200: None},
)
async def save_runtime_state(call: RequestContext[RuntimeStateRequest, Nothing]) -> Response:
    """Save a checkpoint."""
    return respond(await queue(call).save_state(call.path["job_id"], call.body))


@routes.add(
    "POST", f"{BASE}/jobs/{{job_id}}/resubmit", roles=["operate"], body=ResubmitRequest, body_optional=True,
    answers={201: None},
)  # fmt: skip
async def resubmit_job(call: RequestContext[ResubmitRequest, Nothing]) -> Response:
    """Redrive a terminal job as a new one."""
    return respond(await queue(call).resubmit(call.path["job_id"], call.body), 201)
