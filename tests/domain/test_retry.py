"""Delays: within their bounds for every policy, attempt and chance."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.retry import (
    DEFAULT_BACKOFF,
    KINDS,
    MAX_RETRY_AFTER_SECONDS,
    SECOND,
    SHORTEST_DELAY,
    Backoff,
    after_expiry,
    after_failure,
)  # fmt: skip
from interlock.errors import Invalid

policies = st.builds(
    Backoff,
    kind=st.sampled_from(KINDS),
    base_seconds=st.floats(0, 86_400),
    max_seconds=st.floats(0, 30 * 86_400),
    multiplier=st.floats(1, 100),
)
attempts = st.integers(1, 100)
chances = st.floats(0, 1, exclude_max=True)


def grown(policy: Backoff, attempt: int) -> float:
    """The specification: min(max, base · multiplier^(attempt-1)), in seconds; fixed and linear accordingly."""
    if policy.kind == "fixed":
        seconds = policy.base_seconds
    elif policy.kind == "linear":
        seconds = policy.base_seconds * attempt
    else:
        try:
            seconds = policy.base_seconds * math.pow(policy.multiplier, attempt - 1)
        except OverflowError:
            seconds = math.inf if policy.base_seconds else 0.0
    return min(policy.max_seconds, seconds)


@given(policies, attempts, chances)
def test_a_delay_is_never_below_a_tenth_of_a_second_nor_above_its_bound(
    policy: Backoff, attempt: int, chance: float
) -> None:
    """G11."""
    delay = policy.delay(attempt, chance)
    assert SHORTEST_DELAY <= delay <= max(round(policy.max_seconds * SECOND), SHORTEST_DELAY)
    assert delay <= max(round(grown(policy, attempt) * SECOND), SHORTEST_DELAY) + 1


@given(policies, attempts, chances)
def test_jitter_is_full_equal_or_none_by_policy(policy: Backoff, attempt: int, chance: float) -> None:
    share = {"full_jitter": chance, "equal_jitter": 0.5 + 0.5 * chance}.get(policy.kind, 1.0)
    expected = max(round(grown(policy, attempt) * share * SECOND), SHORTEST_DELAY)
    assert abs(policy.delay(attempt, chance) - expected) <= 1


@given(policies, attempts, chances)
def test_a_delay_never_shrinks_with_the_attempts(policy: Backoff, attempt: int, chance: float) -> None:
    assert policy.delay(attempt, chance) <= policy.delay(attempt + 1, chance)


@pytest.mark.parametrize(
    ("kind", "delays"),
    [
        ("fixed", [2, 2, 2, 2]),
        ("linear", [2, 4, 6, 8]),
        ("exponential", [2, 6, 18, 20]),
        ("full_jitter", [1, 3, 9, 10]),
        ("equal_jitter", [1.5, 4.5, 13.5, 15]),
    ],
)
def test_how_each_kind_of_backoff_grows(kind: str, delays: list[float]) -> None:
    policy = Backoff(kind, base_seconds=2.0, max_seconds=20.0, multiplier=3.0)
    assert [policy.delay(attempt, 0.5) / SECOND for attempt in range(1, 5)] == delays


def test_the_default_is_full_jitter_from_1_second_doubling_up_to_300() -> None:
    assert Backoff("full_jitter", 1.0, 300.0, 2.0) == DEFAULT_BACKOFF
    assert [DEFAULT_BACKOFF.delay(attempt, 1.0) for attempt in (1, 2, 9, 10, 100)] == [
        SECOND, 2 * SECOND, 256 * SECOND, 300 * SECOND, 300 * SECOND,
    ]  # fmt: skip


@given(policies, attempts, chances, st.floats(0, MAX_RETRY_AFTER_SECONDS))
def test_a_retry_after_overrides_every_policy(policy: Backoff, attempt: int, chance: float, given: float) -> None:
    assert after_failure(policy, attempt, chance, given) == max(round(given * SECOND), SHORTEST_DELAY)
    assert after_failure(policy, attempt, chance, None) == policy.delay(attempt, chance)


def test_after_an_expiry_there_is_no_delay_unless_the_job_has_one() -> None:
    assert after_expiry(None) == after_expiry(0.0) == 0
    assert after_expiry(2.5) == 2_500_000


@given(policies)
def test_a_policy_round_trips_through_its_text(policy: Backoff) -> None:
    assert Backoff.from_text(policy.to_text()) == policy.check() == policy


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"kind": "random"}, "/backoff/kind"),
        ({"base_seconds": -1.0}, "/backoff/base_seconds"),
        ({"base_seconds": 86_401.0}, "/backoff/base_seconds"),
        ({"base_seconds": math.nan}, "/backoff/base_seconds"),
        ({"base_seconds": True}, "/backoff/base_seconds"),
        ({"base_seconds": "1"}, "/backoff/base_seconds"),
        ({"max_seconds": math.inf}, "/backoff/max_seconds"),
        ({"max_seconds": -0.1}, "/backoff/max_seconds"),
        ({"multiplier": 0.5}, "/backoff/multiplier"),
        ({"multiplier": 101.0}, "/backoff/multiplier"),
    ],
)
def test_an_invalid_policy_is_rejected_and_named(wrong: dict[str, object], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        Backoff(**wrong).check()  # type: ignore[arg-type]
    assert caught.value.pointer == pointer
