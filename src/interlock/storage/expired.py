"""What claims end on their way: the leases and deadlines that they find run out before anybody else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from interlock.domain.decide import Command
from interlock.domain.job import Receipt, Rejected

ExpiredCounts = Counter[tuple[str, str]]  # by verb and the status it led to


def count_expired(orders: Iterable[Command], answers: Sequence[Receipt | Rejected]) -> ExpiredCounts:
    """What became of the orders that were carried out."""
    return Counter(
        (order.verb.value, answer.status.value)
        for order, answer in zip(orders, answers, strict=True)
        if not isinstance(answer, Rejected)
    )
