"""Buckets of limits: what is available, when, and in which turn."""

from __future__ import annotations

from typing import Final

from interlock.domain.budget import OnExceed, Period
from interlock.domain.limits import Bucket, Limit, Ticket, check, is_exceeded
from interlock.domain.retry import SECOND

NOW: Final = 1_800_000_000 * SECOND
RATE: Final = check(Limit("tokens", units={"tokens": 60.0}, per_seconds=60.0))
FAIR: Final = check(Limit("tokens", concurrency=1, keyed=True, fair=True))


def test_a_clock_that_goes_back_adds_no_room() -> None:
    bucket = Bucket(levels={"tokens": 10.0}, as_of=NOW)
    assert bucket.available(RATE, NOW - 30 * SECOND) == {"tokens": 10.0}
    assert bucket.available(RATE, NOW + 30 * SECOND) == {"tokens": 40.0}


def test_time_that_was_counted_is_not_counted_again_after_the_clock_went_back() -> None:
    bucket = Bucket(levels={"tokens": 10.0}, as_of=NOW)
    bucket.refill(RATE, NOW - 30 * SECOND)
    assert bucket.as_of == NOW
    assert bucket.available(RATE, NOW) == {"tokens": 10.0}


def test_a_key_that_was_idle_begins_at_the_turn_that_is_served_now() -> None:
    """Else it would be served alone until it has caught up."""
    idle, ahead = Bucket(parked=True, served=2.0), Bucket(parked=True, served=9.0)
    idle.line_up(FAIR, NOW, 7.0)
    ahead.line_up(FAIR, NOW, 7.0)
    assert (idle.turn, ahead.turn) == (7.0, 9.0)


def test_a_spent_budget_that_only_warns_stops_nothing() -> None:
    for on_exceed, stops in ((OnExceed.WARN, False), (OnExceed.PAUSE, True)):
        limit = check(Limit("budget:team", units={"usd": 5.0}, budget=Period(on_exceed=on_exceed)))
        spent = Bucket(used=1, levels={"usd": -1.0}, as_of=NOW)
        assert is_exceeded(limit, spent, {"usd": 1.0}, {"usd": 1.0}, NOW) is stops


def test_a_job_that_others_pass_keeps_its_room_for_a_twentieth_of_its_wait_at_most() -> None:
    step = SECOND // 100
    binds = [Ticket((0, 0, 1), {}, NOW * 2, NOW, is_passed=True).binds(NOW + n * step) for n in range(1, 1_000_000)]
    assert not any(binds[:100])  # the first second
    assert all(0 < sum(binds[:n]) / n <= 0.05 for n in range(200, len(binds), 10_000))
    longest = max(len(part) for part in "".join("x" if one else " " for one in binds).split())
    assert longest > len(binds) / 80  # so that some part is long enough, however long others need their room
