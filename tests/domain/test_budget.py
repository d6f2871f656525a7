"""The calendar periods of budgets, also where clocks change."""

from __future__ import annotations

from datetime import datetime

import pytest

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
        ("hour", "Asia/Kolkata", "2026-01-01T00:10:00Z", "2025-12-31T23:30:00Z", "2026-01-01T00:30:00Z"),
    ],
)
def test_a_period_begins_and_ends_with_the_calendar_of_its_zone(
    per: str, zone: str, now: str, began: str, resets: str
) -> None:
    period = Period(Per(per), zone).check()
    assert (period.began_at(at(now)), period.resets_at(at(now))) == (at(began), at(resets))
    assert period.began_at(at(resets)) == at(resets)


def test_a_budget_without_a_period_never_starts_anew() -> None:
    assert (Period().began_at(0), Period().resets_at(0)) == (None, None)


@pytest.mark.parametrize("zone", ["Nowhere/City", "", "../etc/passwd"])
def test_an_unknown_time_zone_is_rejected(zone: str) -> None:
    with pytest.raises(Invalid, match="IANA"):
        Period(Per.DAY, zone).check()
