"""Job counts per minute of the last hour, and the age of the oldest ready job over that time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from interlock.domain.registry import Minute, QueueStats
from interlock.domain.retry import SECOND

MINUTE: Final = 60_000_000
MAX_MINUTES: Final = 60
MAX_TENANTS: Final = 200
MAX_TYPES: Final = 200
MIN_MINUTES: Final = 10  # the plots of a new tenant cover at least this many


class MinuteSeries(NamedTuple):
    """Counts per minute, oldest first; `waiting` and `running` start with the count before the first minute."""

    waiting: Sequence[int]
    running: Sequence[int]
    enqueued: Sequence[int]
    succeeded: Sequence[int]
    failed: Sequence[int]


def plotted_minutes(rows: Iterable[Minute], now: int) -> int:
    """Return how many minutes the plots of a tenant cover: those since its first job, within bounds."""
    first = min((row.minute for row in rows), default=now)
    return max(MIN_MINUTES, min(now // MINUTE - first // MINUTE + 1, MAX_MINUTES))


def minute_series(rows: Iterable[Minute], now: int, minutes: int) -> MinuteSeries:
    """Return the last `minutes` minutes; rows after `now` count as the current minute."""
    columns = [[0] * (minutes + 1) for _ in MinuteSeries._fields]
    for row in rows:
        index = minutes - max(now // MINUTE - row.minute // MINUTE, 0)
        for counts, count in zip(columns, row[2:], strict=True):
            counts[max(index, 0)] += count
    waiting, running, *rates = columns
    return MinuteSeries(
        tuple(accumulate(waiting)), tuple(accumulate(running)), *(tuple(counts[1:]) for counts in rates)
    )


class AgeSamples:
    """The age of the oldest ready job at the last page load of each minute, by queue."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, dict[int, float]]] = OrderedDict()

    def record(self, tenant: str, queues: Iterable[QueueStats], now: int) -> None:
        kept = self._kept.setdefault(tenant, {})
        self._kept.move_to_end(tenant)
        if len(self._kept) > MAX_TENANTS:
            self._kept.popitem(last=False)
        for queue in list(queues)[:MAX_TYPES]:
            seen = kept.setdefault(queue.type, {})
            seen[now // MINUTE] = oldest_age(queue, now)
            if len(seen) > MAX_MINUTES:
                del seen[min(seen)]

    def of(self, tenant: str, type: str) -> Mapping[int, float]:
        """Return ages in seconds by minute number."""
        return self._kept.get(tenant, {}).get(type, {})


def oldest_age(queue: QueueStats, now: int) -> float:
    """Return the seconds since the oldest ready job became due; 0 if there is none."""
    return 0.0 if queue.oldest_ready_at is None else max(now - queue.oldest_ready_at, 0) / SECOND


def age_series(queue: QueueStats, seen: Mapping[int, float], waiting: Sequence[int], now: int) -> list[float | None]:
    """Return the age of the oldest ready job at the end of each minute, None where it is unknown.

    The job that is the oldest now has been ready since it became due; with no waiting job the age is 0.
    """
    ages: list[float | None] = []
    present = now // MINUTE
    for minute, jobs in zip(range(present - len(waiting) + 1, present), waiting, strict=False):
        end = (minute + 1) * MINUTE
        if minute in seen:
            ages.append(seen[minute])
        elif not jobs:
            ages.append(0.0)
        else:
            ages.append(
                oldest_age(queue, end) if queue.oldest_ready_at is not None and queue.oldest_ready_at <= end else None
            )
    return [*ages, oldest_age(queue, now)]
