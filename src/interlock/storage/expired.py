"""What claims end on their way: the leases and deadlines that they find run out before anybody else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from interlock.domain.decide import Order
from interlock.domain.job import Receipt, Refused

Swept = Counter[tuple[str, str]]  # by verb and the status it led to


def ended(orders: Iterable[Order], answers: Sequence[Receipt | Refused]) -> Swept:
    """What became of the orders that were carried out."""
    return Counter(
        (order.verb.value, answer.status.value)
        for order, answer in zip(orders, answers, strict=True)
        if not isinstance(answer, Refused)
    )
