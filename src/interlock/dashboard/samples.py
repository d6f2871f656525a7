"""What the queues were like a moment ago, as far as somebody was looking: enough for a small plot, and bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain.registry import QueueStats
from interlock.domain.retry import SECOND

EVERY_MICROS: Final = 2_000_000
KEPT: Final = 90
MOST_TENANTS: Final = 200
MOST_TYPES: Final = 200


class Sample(NamedTuple):
    """One moment of one queue."""

    waiting: int
    running: int
    done_per_minute: float
    oldest_seconds: float


class Samples:
    """The last few minutes of every queue that is being watched."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, int] = OrderedDict()
        self._kept: dict[str, dict[str, deque[Sample]]] = {}

    def add(self, tenant: str, queues: Iterable[QueueStats], now: int) -> None:
        if now - self._at.get(tenant, -EVERY_MICROS) < EVERY_MICROS:
            return
        self._at[tenant] = now
        self._at.move_to_end(tenant)
        if len(self._at) > MOST_TENANTS:
            self._kept.pop(self._at.popitem(last=False)[0], None)
        kept = self._kept.setdefault(tenant, {})
        for queue in list(queues)[:MOST_TYPES]:
            done = queue.succeeded_per_minute + queue.failed_per_minute
            age = 0.0 if queue.oldest_ready_at is None else max(now - queue.oldest_ready_at, 0) / SECOND
            moment = Sample(queue.ready, queue.in_progress, done, age)
            kept.setdefault(queue.type, deque(maxlen=KEPT)).append(moment)

    def of(self, tenant: str, type: str) -> Sequence[Sample]:
        return tuple(self._kept.get(tenant, {}).get(type, ()))

    def all(self, tenant: str) -> list[Sample]:
        """All queues of a tenant put together, moment by moment, the newest last."""
        rows = list(self._kept.get(tenant, {}).values())
        longest = max(map(len, rows), default=0)
        moments = []
        for back in range(longest, 0, -1):
            there = [row[-back] for row in rows if len(row) >= back]
            waiting, running, done, ages = zip(*there, strict=True)
            moments.append(Sample(sum(waiting), sum(running), sum(done), max(ages)))
        return moments
