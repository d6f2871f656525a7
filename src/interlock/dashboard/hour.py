"""The last hour of a queue, or of all: what moved by the minute, and how many waited and ran after each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from interlock.domain.registry import Minute

MINUTE: Final = 60_000_000
LONGEST: Final = 60
SHORTEST: Final = 10  # a tenant that is younger than the hour has wider minutes, but never wider than these


class Hour(NamedTuple):
    """The minutes of a plot, oldest first; `waiting` and `running` begin with how many there were before the first."""

    waiting: Sequence[int]
    running: Sequence[int]
    enqueued: Sequence[int]
    succeeded: Sequence[int]
    failed: Sequence[int]


def how_many(rows: Iterable[Minute], now: int) -> int:
    """How many minutes the plots of a tenant show: those since it began, within bounds."""
    first = min((row.minute for row in rows), default=now)
    return max(SHORTEST, min(now // MINUTE - first // MINUTE + 1, LONGEST))


def hour(rows: Iterable[Minute], now: int, minutes: int) -> Hour:
    """The last so many minutes; a row that is younger than `now` was written while the page was made."""
    moved = [[0] * (minutes + 1) for _ in Hour._fields]
    for row in rows:
        place = minutes - max(now // MINUTE - row.minute // MINUTE, 0)
        for counts, count in zip(moved, row[2:], strict=True):
            counts[max(place, 0)] += count
    waiting, running, *rates = moved
    return Hour(tuple(accumulate(waiting)), tuple(accumulate(running)), *(tuple(counts[1:]) for counts in rates))
