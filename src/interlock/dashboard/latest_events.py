"""The newest events of a job, and the progress they report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.client.port import Jobs
from interlock.domain import json_text
from interlock.domain.progress import EventRow

MAX_PAGE_SIZE: Final = 200
MAX_EVENTS: Final = MAX_PAGE_SIZE // 2


class JobProgress(NamedTuple):
    """The progress that a job reported, from 0 to 1, with its message."""

    fraction: float
    message: str


async def latest_events(jobs: Jobs, job_id: str, first: Sequence[EventRow]) -> Sequence[EventRow]:
    """Return the last events, found by binary search over their numbers from the first page on."""
    if len(first) < MAX_PAGE_SIZE:
        return first[-MAX_EVENTS:]

    async def next_after(seq: int) -> int | None:
        found = await jobs.events(job_id, after=seq, limit=1)
        return found[0].seq if found else None

    last_known, step = first[-1].seq, MAX_PAGE_SIZE
    while (further := await next_after(last_known + step)) is not None:
        last_known, step = further, step * 2
    end = last_known + step
    while end - last_known > MAX_EVENTS:
        middle = (last_known + end) // 2
        further = await next_after(middle)
        last_known, end = (further, end) if further is not None else (last_known, middle)
    last = await jobs.events(job_id, after=max(last_known - MAX_EVENTS, 0), limit=MAX_PAGE_SIZE)
    return last[-MAX_EVENTS:]


def latest_progress(events: Iterable[EventRow]) -> JobProgress | None:
    """Return the progress of the newest event whose payload has a `progress` from 0 to 1."""
    for event in reversed(list(events)):
        payload = json_text.loads(event.payload) if event.payload else None
        fraction = payload.get("progress") if isinstance(payload, dict) else None
        if isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0 <= fraction <= 1:
            return JobProgress(fraction, event.message)
    return None
