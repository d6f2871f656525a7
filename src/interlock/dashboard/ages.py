"""How old the oldest ready job was, minute by minute: what the database can still tell, and what somebody saw."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from interlock.dashboard.hour import LONGEST, MINUTE
from interlock.domain.registry import QueueStats
from interlock.domain.retry import SECOND

MOST_TENANTS: Final = 200
MOST_TYPES: Final = 200


class Ages:
    """The last look of each minute at every queue that was being watched."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, dict[int, float]]] = OrderedDict()

    def note(self, tenant: str, queues: Iterable[QueueStats], now: int) -> None:
        kept = self._kept.setdefault(tenant, {})
        self._kept.move_to_end(tenant)
        if len(self._kept) > MOST_TENANTS:
            self._kept.popitem(last=False)
        for queue in list(queues)[:MOST_TYPES]:
            seen = kept.setdefault(queue.type, {})
            seen[now // MINUTE] = age(queue, now)
            if len(seen) > LONGEST:
                del seen[min(seen)]

    def of(self, tenant: str, type: str) -> Mapping[int, float]:
        """Seconds by the number of the minute."""
        return self._kept.get(tenant, {}).get(type, {})


def age(queue: QueueStats, now: int) -> float:
    """Seconds since the oldest ready job came due; 0 if there is none."""
    return 0.0 if queue.oldest_ready_at is None else max(now - queue.oldest_ready_at, 0) / SECOND


def known(queue: QueueStats, seen: Mapping[int, float], waiting: Sequence[int], now: int) -> list[float | None]:
    """The age at the end of each minute, None where nobody knows.

    The job that is the oldest now has been ready ever since it came due, and where nothing waited nothing was old.
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
            ages.append(age(queue, end) if queue.oldest_ready_at is not None and queue.oldest_ready_at <= end else None)
    return [*ages, age(queue, now)]
