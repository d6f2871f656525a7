"""The newest events of a job: what its log ends with, and how far it says it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain import text
from interlock.domain.progress import EventRow
from interlock.engine.progress import LONGEST_PAGE, Progress

SHOWN: Final = LONGEST_PAGE // 2


class Reached(NamedTuple):
    """How far a job says it is, from 0 to 1, and in which words."""

    share: float
    message: str


async def tail(progress: Progress, tenant: str, job_id: str, first: Sequence[EventRow]) -> Sequence[EventRow]:
    """The last events, found from the first page of them; they are numbered, so the end is searched by halving."""
    if len(first) < LONGEST_PAGE:
        return first[-SHOWN:]

    async def next_after(seq: int) -> int | None:
        found = await progress.events(tenant, job_id, after=seq, limit=1)
        return found[0].seq if found else None

    known, step = first[-1].seq, LONGEST_PAGE
    while (further := await next_after(known + step)) is not None:
        known, step = further, step * 2
    beyond = known + step
    while beyond - known > SHOWN:
        middle = (known + beyond) // 2
        further = await next_after(middle)
        known, beyond = (further, beyond) if further is not None else (known, middle)
    last = await progress.events(tenant, job_id, after=max(known - SHOWN, 0), limit=LONGEST_PAGE)
    return last[-SHOWN:]


def reached(events: Iterable[EventRow]) -> Reached | None:
    """What the newest event says that tells of progress as a number from 0 to 1."""
    for event in reversed(list(events)):
        said = text.loads(event.payload) if event.payload else None
        share = said.get("progress") if isinstance(said, dict) else None
        if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1:
            return Reached(share, event.message)
    return None
