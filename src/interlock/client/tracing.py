"""Tracing spans of any client: one for enqueueing jobs, one for claiming them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from interlock import tracing
from interlock.wire import JobRequest

_OFF: Final = nullcontext()


def enqueueing(requests: Sequence[JobRequest]) -> AbstractContextManager[str | None]:
    """Open a span for an enqueue and yield the traceparent for its jobs; None if tracing is off."""
    return _enqueueing(requests) if tracing.is_on() else _OFF


@contextmanager
def _enqueueing(requests: Sequence[JobRequest]) -> Iterator[str | None]:
    types = sorted({request.type for request in requests})
    name = f"enqueue {types[0]}" if len(types) == 1 else "enqueue"
    with tracing.span(name, "producer", attributes={"interlock.jobs": len(requests)}) as span:
        yield None if span is None else tracing.traceparent()


@contextmanager
def claiming() -> Iterator[Callable[[int], None]]:
    """Open a span for a claim; call the yielded function with the number of leased jobs."""
    with tracing.span("claim", "client") as span:
        yield lambda count: None if span is None else span.set_attribute("interlock.jobs", count)
