"""Counts of leases and deadlines that a claim expired before selecting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from interlock.domain.decide import Command
from interlock.domain.job import Receipt, Rejected

ExpiredCounts = Counter[tuple[str, str]]  # by operation and resulting status


def count_expired(orders: Iterable[Command], answers: Sequence[Receipt | Rejected]) -> ExpiredCounts:
    """Count the commands that were executed."""
    return Counter(
        (order.verb.value, answer.status.value)
        for order, answer in zip(orders, answers, strict=True)
        if not isinstance(answer, Rejected)
    )
