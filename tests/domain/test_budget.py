"""The calendar periods of budgets, also where clocks change."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.budget import Per, Period
from interlock.domain.timestamps import micros
from interlock.errors import Invalid


def at(text: str) -> int:
    return micros(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("per", "zone", "now", "began", "resets"),
    [
        ("hour", "UTC", "2026-01-31T23:59:59Z", "2026-01-31T23:00:00Z", "2026-02-01T00:00:00Z"),
        ("day", "UTC", "2026-02-28T12:00:00Z", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"),
        ("month", "UTC", "2026-01-31T12:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("month", "UTC", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("month", "America/New_York", "2026-01-01T03:00:00Z", "2025-12-01T05:00:00Z", "2026-01-01T05:00:00Z"),
        # The day on which Berlin has 23 hours, and the one on which it has 25.
        ("day", "Europe/Berlin", "2026-03-29T10:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
        ("day", "Europe/Berlin", "2026-10-25T20:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        ("hour", "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
        # An hour of 90 minutes, and one of 30.
        ("hour", "Australia/Lord_Howe", "2026-04-04T14:10:00Z", "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z"),
        ("hour", "Australia/Lord_Howe", "2026-04-04T15:10:00Z", "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z"),
        ("hour", "Australia/Lord_Howe", "2026-10-03T15:40:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"),
        # Days that begin at 1 o'clock, and with a repeated hour.
        ("day", "Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"),
        ("day", "America/Havana", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("hour", "Asia/Kolkata", "2026-01-01T00:10:00Z", "2025-12-31T23:30:00Z", "2026-01-01T00:30:00Z"),
    ],
)
def test_a_period_begins_and_ends_with_the_calendar_of_its_zone(
    per: str, zone: str, now: str, began: str, resets: str
) -> None:
    period = Period(Per(per), zone).check()
    assert (period.began_at(at(now)), period.resets_at(at(now))) == (at(began), at(resets))
    assert period.began_at(at(resets)) == at(resets)


@given(
    st.sampled_from(Per),
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Havana",
         "America/Santiago", "Pacific/Chatham", "Antarctica/Troll"]
    ),
    st.integers(at("2026-01-01T00:00:00Z"), at("2028-01-01T00:00:00Z")),
)  # fmt: skip
def test_each_time_is_in_the_one_period_that_began_before_and_ends_after_it(per: Per, zone: str, now: int) -> None:
    period = Period(per, zone)
    began, resets = period.began_at(now), period.resets_at(now)
    assert began is not None
    assert resets is not None
    assert began <= now < resets
    assert (period.began_at(began), period.began_at(resets - 1), period.began_at(resets)) == (began, began, resets)


def test_a_budget_without_a_period_never_starts_anew() -> None:
    assert (Period().began_at(0), Period().resets_at(0)) == (None, None)


@pytest.mark.parametrize("zone", ["Nowhere/City", "", "../etc/passwd"])
def test_an_unknown_time_zone_is_rejected(zone: str) -> None:
    with pytest.raises(Invalid, match="IANA"):
        Period(Per.DAY, zone).check()
