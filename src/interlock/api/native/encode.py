"""Responses with jobs, as of the time of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from interlock.api.routes import RequestContext
from interlock.domain.job import Added, Job
from interlock.domain.lifecycle import CLAIMABLE
from interlock.wire import responses
from interlock.wire.job import job_fields


async def _now(call: RequestContext[Any, Any], found: Sequence[Job]) -> int:
    """Return the time, or 0 without reading the clock if no location depends on it."""
    return await call.engine.queries.now() if any(job.status in CLAIMABLE for job in found) else 0


async def listed(call: RequestContext[Any, Any], found: Sequence[Job]) -> list[Any]:
    """Return the items of a list of jobs."""
    now = await _now(call, found)
    return [responses.ListedJob(*job_fields(job, now=now, listed=True)) for job in found]


async def job(call: RequestContext[Any, Any], found: Job) -> Any:
    return responses.Job(*job_fields(found, now=await _now(call, [found])))


def new_job(job: Job) -> Any:
    """Return a job that was just enqueued."""
    return responses.Job(*job_fields(job, now=job.created_at))


def added(one: Added, now: int | None) -> Any:
    """Return a job of a batch; the clock is needed only for one that already existed."""
    values = job_fields(one.job, now=one.job.created_at if now is None else now)
    return responses.EnqueuedJob(*values, one.replayed)


def etag(job: Job) -> dict[str, str]:
    return {"etag": f'"{job.version}"'}


def kept(value: msgspec.Raw) -> str | None:
    """Return a member of a request as JSON text, byte for byte."""
    return bytes(value).decode() or None
