"""Schedules: which ticks a cron expression or an interval has, and which of them are due.

Times are whole microseconds since 1970, UTC, as everywhere. Pure: `now` is an argument.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, timedelta, tzinfo
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from interlock.domain import cron
from interlock.domain.retry import SECOND
from interlock.errors import Invalid

MAX_CATCH_UP: Final = 100
MAX_PREVIEW: Final = 100
# A tick that is at most this late still counts as on time, for `catch_up: none`. A busy server must not lose a tick.
ON_TIME: Final = 10 * SECOND
MIN_EVERY_SECONDS: Final = 1.0
MAX_EVERY_SECONDS: Final = 366 * 86_400.0
MAX_JITTER_SECONDS: Final = 86_400.0
# Span in which the most recent ticks are searched first. It grows, because some expressions have few ticks.
_FIRST_SPAN: Final = timedelta(hours=4)
_LAST_TIME: Final = 253_402_300_799 * SECOND  # the end of year 9999


class Overlap(StrEnum):
    """What a tick does while the job of the previous tick is not terminal."""

    ALLOW = "allow"
    SKIP = "skip"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """Which of the missed ticks create a job."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Timing(NamedTuple):
    """When a schedule ticks: by a cron expression in a time zone, or at a fixed interval from `starts_at`."""

    cron: str | None = None
    every_seconds: float | None = None
    timezone: str = "UTC"
    starts_at: int | None = None  # an interval always has one: its first tick
    ends_at: int | None = None

    def ticks(self, after: int) -> Iterator[int]:
        """Yield the ticks later than a time, oldest first; a tick exactly at `starts_at` or `ends_at` counts."""
        if self.starts_at is not None:
            after = max(after, self.starts_at - 1)
        for tick in self._unbounded(after):
            if tick > (_LAST_TIME if self.ends_at is None else self.ends_at):
                return
            yield tick

    def next(self, after: int) -> int | None:
        """Return the first tick later than a time, or None if there is none."""
        return next(self.ticks(after), None)

    def latest(self, first: int, now: int, count: int) -> list[int]:
        """Return the most recent ticks from `first` to `now`, oldest first, at most `count`."""
        span = _FIRST_SPAN if self.every_seconds is None else timedelta(seconds=self.every_seconds * count)
        while True:
            start = max(first, now - span // timedelta(microseconds=1))
            found: list[int] = []
            for tick in self.ticks(start - 1):
                if tick > now:
                    break
                found.append(tick)
            if len(found) >= count or start == first:
                return found[-count:]
            span *= 16

    def _unbounded(self, after: int) -> Iterator[int]:
        if self.every_seconds is not None:
            period, start = round(self.every_seconds * SECOND), self.starts_at or 0
            tick = start if after < start else start + ((after - start) // period + 1) * period
            while True:
                yield tick
                tick += period
        assert self.cron is not None
        yield from cron.ticks(self.cron, zone(self.timezone), after)


class Schedule(NamedTuple):
    """A named schedule of a tenant, and how far it got."""

    name: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    starts_at: int | None
    ends_at: int | None
    job: str  # JSON of the request to enqueue
    overlap: Overlap
    catch_up: CatchUp
    jitter_seconds: float
    next_at: int | None  # the first tick that was not looked at yet
    last_at: int | None  # the last tick that created a job
    last_job_id: str | None
    last_error: str | None  # why the last tick created no job, if it should have
    paused_at: int | None
    paused_by: str | None
    version: int
    created_at: int
    created_by: str
    updated_at: int

    @property
    def timing(self) -> Timing:
        return Timing(self.cron, self.every_seconds, self.timezone, self.starts_at, self.ends_at)

    @property
    def phrase(self) -> str:
        """When it ticks, in a few words."""
        if self.cron is None:
            return f"every {self.every_seconds:g} s"
        return self.cron if self.timezone == "UTC" else f"{self.cron} {self.timezone}"

    @property
    def type(self) -> str:
        """The type of its jobs."""
        return str(json.loads(self.job)["type"])


class Fired(NamedTuple):
    """The outcome of a tick: the job that it created, or why it created none."""

    tick: int
    next_at: int | None
    job_id: str | None = None
    error: str | None = None


class Due(NamedTuple):
    """The result of a look at a schedule: the ticks that create a job now, and the next tick to look at."""

    fire: tuple[int, ...]
    next_at: int | None


def due(timing: Timing, catch_up: CatchUp, next_at: int, now: int, *, looked_at: int | None = None) -> Due:
    """Decide which ticks from `next_at` to `now` create a job.

    A process that looks late has missed no tick since its previous look, at `looked_at`, up to a limit.
    """
    fire = timing.latest(next_at, now, MAX_CATCH_UP if catch_up is CatchUp.ALL else 1)
    if catch_up is CatchUp.NONE:
        fire = [tick for tick in fire if now - tick <= ON_TIME]
    if looked_at is not None:
        since = max(next_at, looked_at + 1, now - ON_TIME)
        fire = sorted({*fire, *timing.latest(since, now, MAX_CATCH_UP)})
    return Due(tuple(fire), timing.next(now))


def jitter(tenant: str, name: str, tick: int, seconds: float) -> int:
    """Return the delay of the job of a tick in microseconds: the same on every server."""
    if not seconds:
        return 0
    digest = hashlib.sha256(f"{tenant}\0{name}\0{tick}".encode()).digest()
    return int.from_bytes(digest[:6], "big") % (int(seconds * SECOND) + 1)


def zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name."""
    return UTC if name == "UTC" else ZoneInfo(name)


def check(timing: Timing, *, created_at: int) -> Timing:
    """Return the timing with an interval anchored, or raise Invalid with the member that is wrong."""
    if (timing.cron is None) == (timing.every_seconds is None):
        raise Invalid("set exactly one of cron and every_seconds", pointer="/cron")
    _check_zone(timing)
    if timing.ends_at is not None and timing.ends_at <= (timing.starts_at or 0):
        raise Invalid("ends_at must be later than starts_at", pointer="/ends_at")
    if timing.every_seconds is not None:
        if not MIN_EVERY_SECONDS <= timing.every_seconds <= MAX_EVERY_SECONDS:
            raise Invalid(
                f"every_seconds is {timing.every_seconds:g}: expected {MIN_EVERY_SECONDS:g} to {MAX_EVERY_SECONDS:g}",
                pointer="/every_seconds",
            )
        if timing.starts_at is None:
            timing = timing._replace(starts_at=created_at + round(timing.every_seconds * SECOND))
        return timing
    assert timing.cron is not None
    cron.check(timing.cron)
    return timing


def _check_zone(timing: Timing) -> None:
    try:
        zone(timing.timezone)
    except (ValueError, OSError, LookupError):  # a path, a directory, or a name that does not exist
        raise Invalid(
            f"unknown time zone {timing.timezone!r}: expected an IANA name such as Europe/Berlin", pointer="/timezone"
        ) from None


def preview(timing: Timing, now: int, n: int) -> list[int]:
    """Return the next ticks."""
    return list(islice(timing.ticks(now), n))
