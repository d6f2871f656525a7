"""Amounts of units: floats that count money and tokens."""

from __future__ import annotations

import math


def rounded(amount: float, *, of: float = 0.0) -> float:
    """Return an amount, or what is left of one, without the error of sums of binary fractions: 10 times 0.1 is 1."""
    largest = max(abs(amount), of)
    return round(amount, max(13 - math.floor(math.log10(largest)), 0)) if largest else 0.0
