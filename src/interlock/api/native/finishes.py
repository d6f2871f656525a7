"""Finishes: complete, fail, release, acknowledge a cancel. Each ends a lease at most once."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

import msgspec

from interlock import wire
from interlock.api import problems
from interlock.api.native import encode
from interlock.api.native.lease_requests import LeaseRequest, LeaseRequestItem, count, odd_items
from interlock.api.native.leases import as_holder, as_holders
from interlock.api.routes import ABSENT, Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import AcknowledgeCancel, CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Rejected
from interlock.errors import Conflict, Error, Invalid
from interlock.wire import responses
from interlock.wire.encode import receipt_to_dict

routes = RouteTable()


class ErrorPart(Request, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    kind: str | None = None
    details: msgspec.Raw = ABSENT


class ArtifactPart(Request, frozen=True, kw_only=True):
    """A small file that comes along, or a link."""

    name: str
    content_base64: bytes | None = None
    content_type: str | None = None
    url: str | None = None

    def thing(self, place: str) -> File | Link:
        if (self.content_base64 is None) == (self.url is None):
            raise Invalid("an artifact has content_base64 or url, one of them", pointer=place)
        if self.url is not None:
            return Link(self.name, self.url)
        return File(self.name, self.content_base64 or b"", self.content_type)


class CompleteRequest(LeaseRequest, frozen=True, kw_only=True):
    """A success report."""

    result: msgspec.Raw = ABSENT
    result_summary: str | None = None
    usage: dict[str, int | float] | None = None
    artifacts: tuple[ArtifactPart, ...] = ()


class FailRequest(LeaseRequest, frozen=True, kw_only=True):
    """A failure; the job is retried unless `retryable` is false."""

    error: ErrorPart
    retryable: bool = True
    retry_after_seconds: float | None = None


class ReleaseRequest(LeaseRequest, frozen=True, kw_only=True):
    """A release: due now, after a delay, at a time, or when children are terminal."""

    delay_seconds: float | None = None
    run_at: datetime | None = None
    children: tuple[str, ...] = ()
    reason: str | None = None


class AckRequest(LeaseRequest, frozen=True, kw_only=True):
    """The work has stopped, as was asked."""


class CompleteItem(LeaseRequestItem, frozen=True, kw_only=True, tag_field="outcome", tag="complete"):
    """A success among others."""

    result: msgspec.Raw = ABSENT
    result_summary: str | None = None
    usage: dict[str, int | float] | None = None
    artifacts: tuple[ArtifactPart, ...] = ()


class FailItem(LeaseRequestItem, frozen=True, kw_only=True, tag_field="outcome", tag="fail"):
    """A failure among others."""

    error: ErrorPart
    retryable: bool = True
    retry_after_seconds: float | None = None


class ReleaseItem(LeaseRequestItem, frozen=True, kw_only=True, tag_field="outcome", tag="release"):
    """A release among others."""

    delay_seconds: float | None = None
    run_at: datetime | None = None
    children: tuple[str, ...] = ()
    reason: str | None = None


FinishItem = CompleteItem | FailItem | ReleaseItem


class Finishes(Request, frozen=True, kw_only=True):
    """Reports on many jobs."""

    items: list[FinishItem]


Report = CompleteRequest | FailRequest | ReleaseRequest | AckRequest | FinishItem


@routes.add(
    "POST", "/v1/jobs/{job_id}/complete", roles=["work"], body=CompleteRequest, sanitizes=True,
    answers={200: responses.Receipt},
)  # fmt: skip
async def complete(call: RequestContext[CompleteRequest, Nothing]) -> Response:
    """Report success; artifacts that come along are kept first."""
    await _attach(call, call.job_id, call.body)
    return await _finish(call)


@routes.add(
    "POST", "/v1/jobs/{job_id}/fail", roles=["work"], body=FailRequest, sanitizes=True, answers={200: responses.Receipt}
)  # fmt: skip
async def fail(call: RequestContext[FailRequest, Nothing]) -> Response:
    """Fail a job; it is retried, or becomes terminal."""
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
    """Acknowledge a cancel request."""
    return await _finish(call)


@routes.add("POST", "/v1/finishes", roles=["work"], body=Finishes, sanitizes=True, answers={200: responses.Receipts})
async def finishes(call: RequestContext[Finishes, Nothing]) -> Response:
    """Finish many jobs; each item has its own result."""
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
            return ReleaseJob(
                job_id, body.fence, worker, delay_seconds=body.delay_seconds, run_at=at,
                children=body.children, reason=body.reason,
            )  # fmt: skip
        case AckRequest():
            return AcknowledgeCancel(job_id, body.fence, worker)
