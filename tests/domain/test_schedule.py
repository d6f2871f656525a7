"""Ticks of schedules: cron expressions with daylight saving, intervals, and which missed ticks create jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.domain.retry import SECOND
from interlock.domain.schedule import CatchUp, Timing, check, due, jitter, preview, zone
from interlock.errors import Invalid

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


def at(text: str) -> int:
    """Microseconds of an ISO time; without an offset, UTC."""
    when = datetime.fromisoformat(text)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()) * SECOND


def local(timing: Timing, after: str, n: int) -> list[str]:
    ticks = preview(timing, at(after), n)
    return [datetime.fromtimestamp(tick // SECOND, zone(timing.timezone)).isoformat()[:-3] for tick in ticks]


@pytest.mark.parametrize(
    ("cron", "timezone", "after", "expected"),
    [
        # A fixed time that spring skips runs right after the change.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T03:00:00+02", "2026-03-30T02:30:00+02"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["2026-03-08T03:00:00-04", "2026-03-09T02:30:00-04"]),
        # A fixed time that autumn repeats runs once, the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T02:30:00+02", "2026-10-26T02:30:00+01"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["2026-11-01T01:30:00-04", "2026-11-02T01:30:00-05"]),
        # Seen from inside the repeated hour it is over.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15", ["2026-10-26T02:30:00+01"]),
        # An expression with a star runs by elapsed time: no hour is left out or merged.
        ("0 * * * *", "Europe/Berlin", "2026-10-25T00:00", ["2026-10-25T02:00:00+01", "2026-10-25T03:00:00+01"]),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:00", ["2026-03-29T03:00:00+02", "2026-03-29T04:00:00+02"]),
        # A zone whose clocks move by half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", ["2026-10-04T02:30:00+11", "2026-10-05T02:15:00+11"]),
        ("0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00", ["2026-01-01T09:00:00+05", "2026-01-02T09:00:00+05"]),
        # The last day of a month, the n-th and the last weekday.
        ("0 0 L * *", "UTC", "2028-01-31T12:00", ["2028-02-29T00:00:00+00", "2028-03-31T00:00:00+00"]),
        ("0 7 * * MON#1", "UTC", "2026-01-01T00:00", ["2026-01-05T07:00:00+00", "2026-02-02T07:00:00+00"]),
        ("0 0 * * 5L", "UTC", "2026-01-01T00:00", ["2026-01-30T00:00:00+00", "2026-02-27T00:00:00+00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00:00+00", "2032-02-29T00:00:00+00"]),
    ],
)
def test_a_cron_expression_ticks_as_in_debian_cron(cron: str, timezone: str, after: str, expected: list[str]) -> None:
    timing = check(Timing(cron=cron, timezone=timezone), created_at=0)
    shown = [text.replace("+05:30", "+05") for text in local(timing, after, len(expected))]
    assert shown == expected


def debian_cron(expression: str, timezone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    """Each minute at which Debian's cron runs an entry: minute by minute, as it does, for changes below three hours."""
    minute, place = timedelta(minutes=1), zone(timezone)
    first, last = (moment.astimezone(place).replace(tzinfo=None) for moment in (start, end))
    walls = set(takewhile(lambda wall: wall < last + 2 * minute, CronSim(expression, first - timedelta(hours=3))))
    has_star = any(field.startswith("*") for field in expression.split()[:2])
    done, now = first, start
    while (now := now + minute) <= end:
        wall = now.astimezone(place).replace(tzinfo=None)
        runs = has_star and wall in walls
        while done < wall:  # also the minutes that a change has skipped; none again that a change repeats
            done += minute
            runs |= not has_star and done in walls
        if runs:
            yield now


@pytest.mark.parametrize(
    ("timezone", "change"),
    [
        ("Europe/Berlin", "2026-03-29T01:00"),
        ("Europe/Berlin", "2026-10-25T01:00"),
        ("America/New_York", "2026-03-08T07:00"),
        ("America/New_York", "2026-11-01T06:00"),
        ("Africa/Cairo", "2026-04-23T22:00"),  # at midnight
        ("America/Havana", "2026-11-01T05:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:30"),  # by half an hour
        ("Antarctica/Troll", "2026-03-29T01:00"),  # by two hours
    ],
)
def test_ticks_around_a_change_of_the_clock_are_those_of_debian_cron(timezone: str, change: str) -> None:
    moment = datetime.fromisoformat(change).replace(tzinfo=UTC)
    start, end = moment - timedelta(hours=20), moment + timedelta(hours=20)
    hours = [(moment + timedelta(hours=n)).astimezone(zone(timezone)).utcoffset() for n in (-1, 1)]
    assert hours[0] != hours[1]
    for cron in ("30 2 * * *", "0 0 * * *", "15,45 0-3 * * *", "0 3 * * *", "*/20 * * * *", "* 2 * * *", "5 */2 * * *"):
        timing = Timing(cron=cron, timezone=timezone)
        ticks = list(takewhile(lambda tick: tick <= at(end.isoformat()), timing.ticks(at(start.isoformat()))))
        assert ticks == [at(when.isoformat()) for when in debian_cron(cron, timezone, start, end)], cron
        for tick in ticks:  # as a process finds it that looks at the moment of the tick, or later
            assert timing.next(tick - 1) == tick, cron
            assert due(timing, CatchUp.NONE, tick, tick).fire == (tick,), cron


@pytest.mark.parametrize(
    "expression",
    [
        "@daily",
        "* * * * * *",
        "* * * *",
        "61 * * * *",
        "0 0 31 2 *",
        "a b c d e",
        "*/0 * * * *",
        "",
        "9" * 5000 + " * * * *",
    ],
)
def test_an_invalid_cron_expression_is_rejected(expression: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(Timing(cron=expression), created_at=0)
    assert caught.value.pointer == "/cron"


@pytest.mark.parametrize("name", ["Europe/Atlantis", "", "/etc/localtime", "../UTC", "Europe", "a\0b"])
def test_an_unknown_time_zone_is_rejected(name: str) -> None:
    with pytest.raises(Invalid, match="time zone") as caught:
        check(Timing(cron="* * * * *", timezone=name), created_at=0)
    assert caught.value.pointer == "/timezone"


@pytest.mark.parametrize(
    ("timing", "pointer"),
    [
        (Timing(), "/cron"),
        (Timing(cron="* * * * *", every_seconds=5), "/cron"),
        (Timing(every_seconds=0.5), "/every_seconds"),
        (Timing(every_seconds=1e9), "/every_seconds"),
        (Timing(every_seconds=float("nan")), "/every_seconds"),
        (Timing(cron="* * * * *", starts_at=5, ends_at=5), "/ends_at"),
    ],
)
def test_a_timing_that_contradicts_itself_is_rejected(timing: Timing, pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(timing, created_at=0)
    assert caught.value.pointer == pointer


def test_ticks_at_the_start_and_at_the_end_count() -> None:
    timing = Timing(cron="0 * * * *", starts_at=at("2026-01-01T10:00"), ends_at=at("2026-01-01T12:00"))
    assert preview(timing, 0, 10) == [at(f"2026-01-01T{hour}:00") for hour in (10, 11, 12)]
    assert timing.next(at("2026-01-01T12:00")) is None


def test_an_interval_counts_from_its_start_and_not_from_the_last_run() -> None:
    timing = check(Timing(every_seconds=90), created_at=at("2026-01-01T00:00"))
    assert preview(timing, 0, 3) == [at("2026-01-01T00:01:30"), at("2026-01-01T00:03"), at("2026-01-01T00:04:30")]
    assert timing.next(at("2026-01-01T00:04")) == at("2026-01-01T00:04:30")


def test_no_tick_is_after_the_year_9999() -> None:
    assert Timing(cron="0 0 1 1 *", starts_at=at("9999-12-31T12:00")).next(0) is None


@pytest.mark.parametrize(
    ("catch_up", "late", "expected"),
    [
        (CatchUp.NONE, "2026-01-01T12:00:09", ["12:00"]),  # a busy server, not a missed tick
        (CatchUp.NONE, "2026-01-01T12:00:30", []),
        (CatchUp.NONE, "2026-01-01T12:07:05", ["12:07"]),
        (CatchUp.LAST, "2026-01-01T12:07:50", ["12:07"]),
        (CatchUp.ALL, "2026-01-01T12:03:50", ["12:00", "12:01", "12:02", "12:03"]),
    ],
)
def test_missed_ticks_run_as_catch_up_says(catch_up: CatchUp, late: str, expected: list[str]) -> None:
    found = due(Timing(cron="* * * * *"), catch_up, at("2026-01-01T12:00"), at(late))
    assert list(found.fire) == [at(f"2026-01-01T{tick}") for tick in expected]
    assert found.next_at == at(late) // MINUTE * MINUTE + MINUTE


def test_at_most_100_missed_ticks_run_the_most_recent_ones() -> None:
    now = at("2026-06-01T00:00:30")
    found = due(Timing(cron="* * * * *"), CatchUp.ALL, at("2020-01-01T00:00"), now)
    assert list(found.fire) == [at("2026-06-01T00:00") - i * MINUTE for i in reversed(range(100))]


@settings(max_examples=60)
@given(
    st.sampled_from(["*/7 * * * *", "0 */5 * * *", "30 2 * * *", "15 1,2 * * 0", "59 23 L * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    st.integers(at("2026-01-01T00:00"), at("2027-01-01T00:00")),
    st.integers(0, 40 * DAY),
    st.integers(1, 5),
)
def test_the_latest_ticks_are_the_last_of_all_ticks(
    cron: str, timezone: str, first: int, span: int, count: int
) -> None:
    timing, now = Timing(cron=cron, timezone=timezone), first + span
    every = list(takewhile(lambda tick: tick <= now, timing.ticks(first - 1)))
    assert all(a < b for a, b in pairwise(every))
    assert timing.latest(first, now, count) == every[-count:]


def test_jitter_is_the_same_on_every_server_and_within_its_bound() -> None:
    delays = [jitter("t", "nightly", tick, 30) for tick in range(200)]
    assert delays == [jitter("t", "nightly", tick, 30) for tick in range(200)]
    assert all(0 <= delay <= 30 * SECOND for delay in delays)
    assert len(set(delays)) > 150
    assert jitter("t", "nightly", 1, 0) == 0
