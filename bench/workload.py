"""The jobs that are measured: nothing to do, about 100 bytes of payload, five types."""

from __future__ import annotations

import msgspec

from interlock import wire
from interlock.domain import principal
from interlock.domain.job import NewJob
from interlock.wire import JobRequest

TYPES = ("email", "invoice", "report", "resize", "sync")
TENANT = "bench"
WHO = principal.local(TENANT)
LOAD_AT_ONCE = 1000
_TEXT = "x" * 71


def type_of(number: int) -> str:
    return TYPES[number % len(TYPES)]


def payload(number: int) -> str:
    """JSON text of 100 bytes."""
    return f'{{"number":{10_000_000 + number},"text":"{_TEXT}"}}'


def requests(count: int) -> list[JobRequest]:
    """Jobs as a producer asks for them."""
    return [JobRequest(type=type_of(i), payload=msgspec.Raw(payload(i).encode())) for i in range(count)]


def new_jobs(count: int) -> list[NewJob]:
    """The same jobs, checked and complete, each with an id of its own."""
    return [wire.new_job(request, created_by=WHO.actor, now=0) for request in requests(count)]
