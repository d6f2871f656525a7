"""Cron expressions around changes of the clock, compared with a reference that looks at every minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.domain import cron
from interlock.domain.timestamps import micros

MINUTE: Final = timedelta(minutes=1)
BERLIN: Final = ZoneInfo("Europe/Berlin")
# Changes by one hour, half an hour and two hours; before, at and after midnight; at a quarter of an hour.
CHANGES: Final = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("America/Santiago", "2026-04-05"),
    ("America/Santiago", "2026-09-06"),
    ("Atlantic/Azores", "2026-03-29"),
    ("Pacific/Chatham", "2026-04-05"),
    ("Pacific/Chatham", "2026-09-27"),
    ("America/St_Johns", "2026-03-08"),
]


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def expected(expression: str, zone: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    """The ticks by the rules of Debian's cron: with a star, by the clock; else, each time of day once."""
    minute, hour, *days = expression.split()
    minutes, hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
    assert days == ["*", "*", "*"]

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours

    def real(wall: datetime) -> datetime | None:
        at = wall.replace(tzinfo=zone).astimezone(UTC)
        return at if at.astimezone(zone).replace(tzinfo=None) == wall else None

    def every(first: datetime, last: datetime) -> Iterator[datetime]:
        while first <= last:
            yield first
            first += MINUTE

    if minute.startswith("*") or hour.startswith("*"):
        return [at for at in every(after + MINUTE, until) if matches(at.astimezone(zone))]
    found = set()
    around = [time.astimezone(zone).replace(tzinfo=None) for time in (after, until)]
    for wall in every(around[0] - timedelta(hours=3), around[1] + timedelta(hours=3)):
        if matches(wall):
            later = wall
            while (at := real(later)) is None:
                later += MINUTE
            found.add(at)
    return sorted(at for at in found if after < at <= until)


def field(low: int, high: int, star: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    return st.one_of(star, st.lists(number, min_size=1, max_size=3).map(lambda some: ",".join(map(str, some))), spans)


@settings(max_examples=150)
@given(
    st.sampled_from(CHANGES),
    field(0, 59, st.sampled_from(["*", "*/7", "*/15", "*/20"])),
    field(0, 5, st.sampled_from(["*", "*/2", "*/3"])) | field(0, 23, st.just("*")),
    st.integers(-20 * 60, 16 * 60),
)
def test_ticks_around_a_change_of_the_clock_are_those_of_debian_cron(
    change: tuple[str, str], minute: str, hour: str, minutes: int
) -> None:
    zone, day = ZoneInfo(change[0]), datetime.fromisoformat(change[1]).replace(tzinfo=UTC)
    expression, after = f"{minute} {hour} * * *", day + minutes * MINUTE
    until = day + timedelta(hours=30)
    ticks = list(takewhile(lambda tick: tick <= micros(until), cron.ticks(expression, zone, micros(after))))
    assert ticks == [micros(at) for at in expected(expression, zone, after, until)]


@pytest.mark.parametrize("expression", ["36-49 */3 * * *", "*/7 0,5 * * *", "13 */3 * * *", "* 0 * * 0"])
@pytest.mark.parametrize("zone", ["Pacific/Chatham", "Australia/Lord_Howe", "Atlantic/Azores"])
def test_each_tick_is_later_than_the_one_before(expression: str, zone: str) -> None:
    began = micros(datetime(2026, 1, 1, tzinfo=UTC))
    found = [began, *islice(cron.ticks(expression, ZoneInfo(zone), began), 3000)]
    assert all(earlier < later for earlier, later in pairwise(found))


def test_a_rare_tick_after_several_changes_of_the_clock_is_found() -> None:
    after = micros(datetime(2026, 7, 1, tzinfo=UTC))
    found = list(islice(cron.ticks("*/30 12 29 2 *", BERLIN, after), 2))
    assert found == [micros(datetime(2028, 2, 29, 11, minute, tzinfo=UTC)) for minute in (0, 30)]
