"""Values of the engine as the native API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from interlock import wire
from interlock.api.routes import RequestContext
from interlock.domain.job import Added, HeartbeatReply, Job, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.progress import EventRow, StepRow
from interlock.wire.encode import EnqueuedJobBody, JobBody, job_fields

# Only where these stand does the place of a job depend on the time.
_WAITING = frozenset({Status.QUEUED, Status.RETRY})


async def jobs(call: RequestContext[Any, Any], found: Sequence[Job]) -> list[JobBody]:
    """Jobs as of now; the clock is asked only where an answer depends on it."""
    now = await call.engine.queries.now() if any(job.status in _WAITING for job in found) else 0
    return [JobBody(*job_fields(job, now=now)) for job in found]


async def listed(call: RequestContext[Any, Any], found: Sequence[Job]) -> list[JobBody]:
    """Jobs of a list, without the fields that may be large."""
    items = await jobs(call, found)
    for item in items:
        item.payload = item.checkpoint = item.result = item.error = item.awaiting = UNSET
    return items


async def job(call: RequestContext[Any, Any], found: Job) -> JobBody:
    (encoded,) = await jobs(call, [found])
    return encoded


def new_job(job: Job) -> JobBody:
    """A job that was added a moment ago."""
    return JobBody(*job_fields(job, now=job.created_at))


def added(one: Added, now: int | None) -> EnqueuedJobBody:
    """A job of a batch; the clock is needed only for one that was there before."""
    return EnqueuedJobBody(*(*job_fields(one.job, now=one.job.created_at if now is None else now), one.replayed))


def etag(job: Job) -> dict[str, str]:
    return {"etag": f'"{job.version}"'}


def receipt(receipt: Receipt) -> dict[str, Any]:
    id, fence, status, attempt, version, run_at, finished_at = receipt
    return {
        "id": id, "fence": fence, "status": status, "attempt": attempt, "version": version,
        "run_at": None if run_at is None else wire.when(run_at),
        "finished_at": None if finished_at is None else wire.when(finished_at),
    }  # fmt: skip


def heartbeat_reply(reply: HeartbeatReply) -> dict[str, Any]:
    return reply._asdict() | {"lease_expires_at": wire.when(reply.lease_expires_at)}


def step(row: StepRow) -> dict[str, Any]:
    encoded = row._asdict() | {"result": msgspec.Raw(row.result.encode()), "at": wire.when(row.at)}
    del encoded["job_id"]
    return encoded


def event(row: EventRow) -> dict[str, Any]:
    times = {"at": wire.when(row.at), "received_at": wire.when(row.received_at)}
    return row._asdict() | {"payload": raw(row.payload)} | times


def raw(text: str | None) -> msgspec.Raw | None:
    """JSON text as it is kept, to be put into an answer unread."""
    return None if text is None else msgspec.Raw(text.encode())


def kept(value: msgspec.Raw) -> str | None:
    """A part of a request as it was sent, to be kept byte for byte."""
    return bytes(value).decode() or None


def when(micros: int | None) -> str | None:
    return None if micros is None else wire.when(micros)
