"""The spans of a client, whichever it is: jobs are made under one, and asking for them is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from interlock import tracing
from interlock.wire import JobRequest


@contextmanager
def enqueueing(requests: Sequence[JobRequest]) -> Iterator[str | None]:
    """A span for an enqueue, as the traceparent that goes along with its jobs; None where nothing is traced."""
    types = sorted({request.type for request in requests})
    name = f"enqueue {types[0]}" if len(types) == 1 else "enqueue"
    with tracing.span(name, "producer", attributes={"interlock.jobs": len(requests)}) as span:
        yield None if span is None else tracing.traceparent()


@contextmanager
def claiming() -> Iterator[Callable[[int], None]]:
    """A span for a claim, which is to be told how many jobs were granted."""
    with tracing.span("claim", "client") as span:
        yield lambda count: None if span is None else span.set_attribute("interlock.jobs", count)
