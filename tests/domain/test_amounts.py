"""Amounts without the errors of binary fractions."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.amounts import rounded


@given(st.lists(st.integers(0, 10_000), max_size=50), st.integers(0, 6))
def test_a_sum_of_decimal_amounts_is_the_decimal_sum(parts: list[int], decimals: int) -> None:
    scale = float(10**decimals)
    assert rounded(sum(part / scale for part in parts)) == sum(parts) / scale


@given(st.lists(st.integers(1, 10_000), max_size=50), st.integers(0, 4))
def test_what_is_left_of_a_budget_is_the_decimal_rest(parts: list[int], decimals: int) -> None:
    scale = float(10**decimals)
    left = amount = sum(parts) / scale
    for part in parts:
        left = rounded(left - part / scale, of=amount)
    assert left == 0


@pytest.mark.parametrize("amount", [0.0, 1e-300, 5e-324, 123_456_789_012_345.0, 2.0**53, sys.float_info.max, -1e15])
def test_amounts_of_any_size_stay(amount: float) -> None:
    assert rounded(amount) == amount
