"""Cron expressions in time zones, as Debian's cron runs them.

CronSim finds the matching times of the wall clock; the changes of the clock are handled here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

from interlock.domain.timestamps import EPOCH, micros
from interlock.errors import Invalid

MAX_LENGTH: Final = 1000
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)


def ticks(expression: str, zone: tzinfo, after: int) -> Iterator[int]:
    """Yield the ticks later than a time, oldest first, until the year 9999."""
    began = EPOCH + timedelta(microseconds=after + 1)
    is_fixed = not any(field.startswith("*") for field in expression.split()[:2])
    last = after
    try:
        for at in (_fixed if is_fixed else _by_elapsed_time)(expression, zone, began):
            tick = micros(at)
            if tick > last:
                last = tick
                yield tick
    except OverflowError:  # past the year 9999
        return


def _fixed(expression: str, zone: tzinfo, began: datetime) -> Iterator[datetime]:
    """Yield each matching time of day once: the first of two equal ones, and one that is skipped right after it."""
    # The clock just before: at the moment of a change, times that it skips are still ahead.
    for wall in CronSim(expression, _wall(began, (began - _MICROSECOND).astimezone(zone))):
        at = wall.replace(tzinfo=zone).astimezone(UTC)  # of a time that is skipped, after the change
        if at.astimezone(zone).replace(tzinfo=None) == wall:
            yield at
        else:
            yield _change(zone, at - timedelta(days=1), at)


def _by_elapsed_time(expression: str, zone: tzinfo, began: datetime) -> Iterator[datetime]:
    """Yield every time at which the wall clock matches: a repeated one twice, a skipped one never."""
    while True:
        local = began.astimezone(zone)
        for wall in CronSim(expression, _wall(began, local)):
            at = (wall - _offset(local)).replace(tzinfo=UTC)
            if _offset(at.astimezone(zone)) != _offset(local):
                began = _change(zone, began, at)
                break
            yield at
        else:
            return


def _wall(began: datetime, local: datetime) -> datetime:
    """Return the time on the wall from which CronSim finds matches at `began` or later."""
    return began.replace(tzinfo=None) + _offset(local) - _MICROSECOND


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta()


def _change(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """Return when the offset from UTC changes between two times at which it differs."""
    low, offset = low.replace(microsecond=0), _offset(low.astimezone(zone))
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(middle.astimezone(zone)) == offset:
            low = middle
        else:
            high = middle
    return high


def check(expression: str) -> None:
    """Raise Invalid unless an expression has five valid fields and matches some time."""
    if len(expression) > MAX_LENGTH:
        raise Invalid(
            f"cron expression has {len(expression)} characters: expected at most {MAX_LENGTH}", pointer="/cron"
        )
    fields = len(expression.split())
    if fields != 5:
        raise Invalid(
            f"cron expression {expression!r} has {fields} fields: expected 5 (minute hour day month weekday)",
            pointer="/cron",
        )
    try:
        possible = next(iter(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC))), None)
    except CronSimError as error:
        raise Invalid(f"cron expression {expression!r}: {str(error).lower()} field", pointer="/cron") from None
    if possible is None:
        raise Invalid(f"cron expression {expression!r} never matches", pointer="/cron")
