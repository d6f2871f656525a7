"""Work: claim jobs, extend their leases, and finish them."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api import auth, problems
from interlock.api.long_poll import claim_with_wait, waiting
from interlock.api.native import encode
from interlock.api.native.leases import (
    CheckpointPart,
    EventPart,
    LeaseRequest,
    LeaseRequestItem,
    Seq,
    as_holder,
    as_holders,
    count,
    events_of,
    odd_items,
)
from interlock.api.routes import ABSENT, Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain import policy
from interlock.domain.approval import Approval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import AcknowledgeCancel, CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Heartbeat, Job, Rejected
from interlock.domain.message import AwaitMessage
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import StepRow
from interlock.errors import Conflict, Error, Invalid
from interlock.wire import responses
from interlock.wire.encode import decision_to_dict, heartbeat_reply_to_dict, receipt_to_dict, step_to_dict
from interlock.wire.job import job_fields

routes = RouteTable()


class ClaimRequest(Request, frozen=True, kw_only=True):
    """A claim: the jobs that a worker accepts. Without types any; without capabilities all of the credential.

    Without `lease_seconds` the lease comes from the job's agent, else from its type, else it is 60 s.
    """

    types: list[str] | None = None
    worker: str | None = None
    capabilities: list[str] | None = None
    affinity_keys: list[str] | None = None
    limit: Annotated[int, Meta(ge=1, le=wire.LIMITS.claim)] = 1
    lease_seconds: Annotated[float, Meta(ge=1, le=wire.LIMITS.lease_seconds)] | None = None
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    claim_id: str | None = None


@routes.add("POST", "/v1/claims", roles=["work"], body=ClaimRequest, answers={200: responses.Claimed})
async def claim(call: RequestContext[ClaimRequest, Nothing]) -> Response:
    """Lease due jobs, highest priority first. Repeating a call with the same `claim_id` returns the same jobs."""
    ask = _ask(call)
    if call.body.wait_seconds:
        jobs = await claim_with_wait(call, ask, call.body.wait_seconds)
    else:
        jobs = await call.engine.leases.claim(call.who.tenant, ask)
    return respond({"jobs": await _leased(call, jobs)})


def _ask(call: RequestContext[ClaimRequest, Nothing]) -> ClaimFilter:
    body, who = call.body, call.who
    allowed = who.policy.capabilities if who.policy is not None else frozenset()
    keys = policy.any_or(body.affinity_keys, what="affinity_keys") if body.affinity_keys is not None else frozenset()
    ask = ClaimFilter(
        worker=auth.worker_name(who, body.worker),
        types=policy.any_or(body.types, what="types"),
        capabilities=allowed
        if body.capabilities is None
        else frozenset(policy.names(body.capabilities, what="capabilities")),
        affinity_keys=keys,
        limit=body.limit,
        lease_seconds=body.lease_seconds,
        claim_id=body.claim_id,
    )
    return who.narrowed(ask)


async def _leased(call: RequestContext[ClaimRequest, Nothing], jobs: list[Job]) -> list[Any]:
    """Add the saved steps and decisions of earlier runs to each job; a first run has none."""
    past = jobs if call.body.claim_id is not None else [job for job in jobs if not job.runs_first]
    steps: dict[str, list[StepRow]] = {}
    decided: dict[str, list[Approval]] = {}
    if past:
        ids = [job.id for job in past]
        steps = dict(zip(ids, await call.engine.progress.steps_of(call.who.tenant, ids), strict=True))
        decided = await call.engine.approvals.decisions(call.who.tenant, past)
    return [
        responses.ClaimedJob(
            *job_fields(job, now=0),
            [step_to_dict(row) for row in steps.get(job.id, ())],
            decision_to_dict(decided[job.id][-1]) if job.id in decided else None,
            [decision_to_dict(one) for one in decided.get(job.id, ())],
        )
        for job in jobs
    ]


LeaseSeconds = Annotated[float, Meta(ge=1, le=wire.LIMITS.lease_seconds)]


class HeartbeatRequest(LeaseRequest, frozen=True, kw_only=True):
    """A heartbeat. Without `lease_seconds` the lease is extended by its original duration."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None
    usage: dict[str, int | float] | None = None


class HeartbeatRequestItem(LeaseRequestItem, frozen=True, kw_only=True):
    """A heartbeat of one job in a batch."""

    lease_seconds: LeaseSeconds | None = None
    events: tuple[EventPart, ...] = ()
    checkpoint: CheckpointPart | None = None
    usage: dict[str, int | float] | None = None


class Heartbeats(Request, frozen=True, kw_only=True):
    """Heartbeats for several jobs."""

    items: list[HeartbeatRequestItem]


@routes.add(
    "POST", "/v1/jobs/{job_id}/heartbeat", roles=["work"], body=HeartbeatRequest, sanitizes=True,
    has_checkpoint=True, answers={200: responses.HeartbeatReply},
)  # fmt: skip
async def heartbeat(call: RequestContext[HeartbeatRequest, Nothing]) -> Response:
    """Extend a lease; also save the events and the checkpoint of the request."""

    async def act(job_id: str, worker: str) -> Any:
        return await call.engine.leases.heartbeat(
            call.who.tenant, _heartbeat(call, call.body, job_id, worker, call.sanitized)
        )

    return respond(heartbeat_reply_to_dict(await as_holder(call, call.body, act)))


@routes.add(
    "POST", "/v1/heartbeats", roles=["work"], body=Heartbeats, sanitizes=True, has_checkpoint=True,
    answers={200: responses.HeartbeatReplies},
)  # fmt: skip
async def heartbeats(call: RequestContext[Heartbeats, Nothing]) -> Response:
    """Extend several leases; each item has its own result."""
    items = call.body.items
    wire.check_batch(items, call.engine.limits)
    odd = odd_items(call)

    def order(i: int, worker: str) -> Heartbeat:
        return _heartbeat(call, items[i], items[i].id, worker, bool(odd) and odd[i])

    answers = await as_holders(call, items, order, call.engine.leases.heartbeats)
    return respond(
        {
            "items": [
                problems.item(item.id, given.error) if isinstance(given, Rejected) else heartbeat_reply_to_dict(given)
                for item, given in zip(items, answers, strict=True)
            ]
        }
    )


class Leases(Request, frozen=True, kw_only=True):
    """Leases to watch, and the time to wait."""

    items: list[LeaseRequestItem]
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


class Interrupted(responses.Shape, frozen=True, kw_only=True):
    """Jobs that the worker must stop. The heartbeat reply contains the reason."""

    ids: list[str]


@routes.add("POST", "/v1/leases/watch", roles=["work"], body=Leases, answers={200: Interrupted})
async def watch_leases(call: RequestContext[Leases, Nothing]) -> Response:
    """Wait until a lease must stop: its job is being cancelled, or is no longer leased to the caller."""

    def is_own(worker: str) -> bool:
        return call.who.unchecked or auth.is_own_worker(call.who, worker)

    async def look(enough: asyncio.Event | None = None) -> list[str]:
        return await call.engine.leases.interrupted(
            call.who.tenant, [(item.id, item.fence) for item in call.body.items], is_own=is_own,
            wait_seconds=0.0 if enough is None else call.body.wait_seconds, enough=enough,
        )  # fmt: skip

    if not call.body.wait_seconds:
        return respond({"ids": await look()})
    async with waiting(call) as enough:
        return respond({"ids": await look(enough)})


def _heartbeat(
    call: RequestContext[Any, Nothing],
    body: HeartbeatRequest | HeartbeatRequestItem,
    job_id: str,
    worker: str,
    sanitized: bool,
) -> Heartbeat:
    part = body.checkpoint
    return Heartbeat(
        job_id,
        body.fence,
        worker,
        body.lease_seconds,
        None if part is None else part.of(job_id, body.fence, worker, sanitized=sanitized),
        events_of(call, body.events, sanitized=sanitized),
        count(body.usage),
    )


class ErrorPart(Request, frozen=True, kw_only=True):
    """The error of a failed run."""

    message: str
    kind: str | None = None
    details: msgspec.Raw = ABSENT


class ArtifactPart(Request, frozen=True, kw_only=True):
    """A small file or a link to attach."""

    name: str
    content_base64: bytes | None = None
    content_type: str | None = None
    url: str | None = None

    def thing(self, place: str) -> File | Link:
        if (self.content_base64 is None) == (self.url is None):
            raise Invalid("artifact must have exactly one of content_base64 and url", pointer=place)
        if self.url is not None:
            return Link(self.name, self.url)
        return File(self.name, self.content_base64 or b"", self.content_type)


class CompleteRequest(LeaseRequest, frozen=True, kw_only=True):
    """The result of a successful run."""

    result: msgspec.Raw = ABSENT
    result_summary: str | None = None
    usage: dict[str, int | float] | None = None
    artifacts: tuple[ArtifactPart, ...] = ()


class FailRequest(LeaseRequest, frozen=True, kw_only=True):
    """The failure of a run. The job is retried unless `retryable` is false."""

    error: ErrorPart
    retryable: bool = True
    retry_after_seconds: float | None = None


class MessageWait(Request, frozen=True, kw_only=True):
    """The message that the next run waits for: of this name, or to this topic, with a number above `after`."""

    name: str | None = None
    topic: str | None = None
    after: Seq = 0


class ReleaseRequest(LeaseRequest, frozen=True, kw_only=True):
    """A release: due now, after a delay, at a time, when children are terminal, or when a message has arrived.

    With a message, the delay or time is the limit of the wait.
    """

    delay_seconds: float | None = None
    run_at: datetime | None = None
    children: tuple[str, ...] = ()
    message: MessageWait | None = None
    reason: str | None = None


class AckRequest(LeaseRequest, frozen=True, kw_only=True):
    """Acknowledgement of a cancel: the run has stopped."""


class CompleteItem(LeaseRequestItem, frozen=True, kw_only=True, tag_field="outcome", tag="complete"):
    """The completion of one job in a batch."""

    result: msgspec.Raw = ABSENT
    result_summary: str | None = None
    usage: dict[str, int | float] | None = None
    artifacts: tuple[ArtifactPart, ...] = ()


class FailItem(LeaseRequestItem, frozen=True, kw_only=True, tag_field="outcome", tag="fail"):
    """The failure of one job in a batch."""

    error: ErrorPart
    retryable: bool = True
    retry_after_seconds: float | None = None


class ReleaseItem(LeaseRequestItem, frozen=True, kw_only=True, tag_field="outcome", tag="release"):
    """The release of one job in a batch."""

    delay_seconds: float | None = None
    run_at: datetime | None = None
    children: tuple[str, ...] = ()
    message: MessageWait | None = None
    reason: str | None = None


FinishItem = CompleteItem | FailItem | ReleaseItem


class Finishes(Request, frozen=True, kw_only=True):
    """Finishes of several jobs."""

    items: list[FinishItem]


Report = CompleteRequest | FailRequest | ReleaseRequest | AckRequest | FinishItem


@routes.add(
    "POST", "/v1/jobs/{job_id}/complete", roles=["work"], body=CompleteRequest, sanitizes=True,
    answers={200: responses.Receipt},
)  # fmt: skip
async def complete(call: RequestContext[CompleteRequest, Nothing]) -> Response:
    """Complete a job. Artifacts in the request are stored first."""
    await _attach(call, call.job_id, call.body)
    return await _finish(call)


@routes.add(
    "POST", "/v1/jobs/{job_id}/fail", roles=["work"], body=FailRequest, sanitizes=True, answers={200: responses.Receipt}
)  # fmt: skip
async def fail(call: RequestContext[FailRequest, Nothing]) -> Response:
    """Fail a run. The job is retried, or becomes terminal."""
    return await _finish(call)


@routes.add(
    "POST", "/v1/jobs/{job_id}/release", roles=["work"], body=ReleaseRequest, sanitizes=True,
    answers={200: responses.Receipt},
)  # fmt: skip
async def release(call: RequestContext[ReleaseRequest, Nothing]) -> Response:
    """Release a job without using an attempt."""
    return await _finish(call)


@routes.add(
    "POST", "/v1/jobs/{job_id}/cancel/ack", roles=["work"], body=AckRequest, sanitizes=True,
    answers={200: responses.Receipt},
)  # fmt: skip
async def acknowledge_cancel(call: RequestContext[AckRequest, Nothing]) -> Response:
    """Acknowledge a cancel after the run has stopped."""
    return await _finish(call)


@routes.add("POST", "/v1/finishes", roles=["work"], body=Finishes, sanitizes=True, answers={200: responses.Receipts})
async def finishes(call: RequestContext[Finishes, Nothing]) -> Response:
    """Finish several jobs; each item has its own result."""
    items = call.body.items
    wire.check_batch(items, call.engine.limits)
    odd = odd_items(call)
    faults: dict[int, Error] = {}
    for i, item in enumerate(items):
        if isinstance(item, CompleteItem) and item.artifacts:
            try:
                await _attach(call, wire.job_id(item.id), item)
            except Error as error:
                faults[i] = error

    def order(i: int, worker: str) -> Finish:
        if i in faults:
            raise faults[i]
        return _order(items[i], items[i].id, worker, bool(odd) and odd[i])

    answers = await as_holders(call, items, order, call.engine.leases.finishes)
    return respond(
        {
            "items": [
                problems.item(item.id, given.error) if isinstance(given, Rejected) else receipt_to_dict(given)
                for item, given in zip(items, answers, strict=True)
            ]
        }
    )


async def _attach(call: RequestContext[Any, Nothing], job_id: str, report: CompleteRequest | CompleteItem) -> None:
    """Store the artifacts of a successful run before its lease ends."""
    things = [part.thing(f"/artifacts/{i}") for i, part in enumerate(report.artifacts)]

    async def attach(job_id: str, worker: str) -> None:
        await call.engine.artifacts.attach(call.who.tenant, Holder(job_id, report.fence, worker), things)

    if things:
        # An ended lease accepts no artifacts. The finish itself decides whether this is a repeated call.
        with contextlib.suppress(Conflict):
            await as_holder(call, report, attach, job_id=job_id)


async def _finish(call: RequestContext[Any, Nothing]) -> Response:
    async def act(job_id: str, worker: str) -> Any:
        (given,) = await call.engine.leases.finishes(
            call.who.tenant, [_order(call.body, job_id, worker, call.sanitized)]
        )
        if isinstance(given, Rejected):
            raise given.error
        return given

    return respond(receipt_to_dict(await as_holder(call, call.body, act)))


def _order(body: Report, job_id: str, worker: str, sanitized: bool) -> Finish:
    match body:
        case CompleteRequest() | CompleteItem():
            result, usage = encode.kept(body.result), count(body.usage)
            return CompleteJob(job_id, body.fence, worker, result, body.result_summary, usage, sanitized)
        case FailRequest() | FailItem():
            details = body.error.details if bytes(body.error.details) else None
            error = wire.limited_error(body.error.message, kind=body.error.kind, details=details).decode()
            return FailJob(
                job_id, body.fence, worker, error, body.retryable, body.retry_after_seconds, sanitized=sanitized
            )
        case ReleaseRequest() | ReleaseItem():
            at = wire.instant(body.run_at, "run_at")
            wanted = (
                None
                if body.message is None
                else AwaitMessage(body.message.name, body.message.after, body.message.topic)
            )
            return ReleaseJob(
                job_id, body.fence, worker, delay_seconds=body.delay_seconds, run_at=at,
                children=body.children, message=wanted, reason=body.reason,
            )  # fmt: skip
        case AckRequest():
            return AcknowledgeCancel(job_id, body.fence, worker)
