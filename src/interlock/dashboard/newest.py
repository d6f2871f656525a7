"""The newest records of a job, and the progress that its events report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from interlock.domain import json_text
from interlock.domain.progress import EventRow

MAX_PAGE_SIZE: Final = 200
MAX_RECORDS: Final = MAX_PAGE_SIZE // 2


class Numbered(Protocol):
    """A record with its number within the job."""

    @property
    def seq(self) -> int: ...


R = TypeVar("R", bound=Numbered)


class JobProgress(NamedTuple):
    """The progress that a job reported, from 0 to 1, with its message."""

    fraction: float
    message: str


async def newest(
    read: Callable[[int, int], Awaitable[Sequence[R]]], first: Sequence[R], count: int = MAX_RECORDS
) -> Sequence[R]:
    """Return the last records, found by binary search over their numbers from the first page on.

    `read` returns records with a number above its first argument, at most as many as the second.
    """
    if len(first) < MAX_PAGE_SIZE:
        return first[-count:]

    async def next_after(seq: int) -> int | None:
        found = await read(seq, 1)
        return found[0].seq if found else None

    last_known, step = first[-1].seq, MAX_PAGE_SIZE
    while (further := await next_after(last_known + step)) is not None:
        last_known, step = further, step * 2
    end = last_known + step
    while end - last_known > max(MAX_PAGE_SIZE - count, 0):
        middle = (last_known + end) // 2
        further = await next_after(middle)
        last_known, end = (further, end) if further is not None else (last_known, middle)
    last = await read(max(last_known - count, 0), MAX_PAGE_SIZE)
    return last[-count:]


def latest_progress(events: Iterable[EventRow]) -> JobProgress | None:
    """Return the progress of the newest event whose payload has a `progress` from 0 to 1."""
    for event in reversed(list(events)):
        payload = json_text.loads(event.payload) if event.payload else None
        fraction = payload.get("progress") if isinstance(payload, dict) else None
        if isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0 <= fraction <= 1:
            return JobProgress(fraction, event.message)
    return None
