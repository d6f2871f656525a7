"""Budgets: amounts of units that jobs may use in total, or in each calendar period.

A budget is stored as a limit under a name with a prefix. Its bucket has what is left: it does not refill with time, but
starts anew with each period.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from interlock.domain.retry import SECOND
from interlock.domain.timestamps import EPOCH, micros
from interlock.errors import Invalid

PREFIX: Final = "budget:"
TREE: Final = "tree:"  # prefix of the budget of a tree of jobs; its root follows
MAX_TREES_OF_JOB: Final = 4
MAX_BUDGETS_OF_JOB: Final = 4
MAX_NAME_LENGTH: Final = 200 - len(PREFIX)
HOUR: Final = 3600 * SECOND


class Per(StrEnum):
    """The calendar period of a budget."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class OnExceed(StrEnum):
    """What happens when a budget is spent.

    Its jobs wait until it is raised, also after approvers were asked to raise it; or due jobs fail; or only `why` and
    the totals show it.
    """

    PAUSE = "pause"
    ASK = "ask"
    FAIL = "fail"
    WARN = "warn"


class Period(NamedTuple):
    """When a budget starts anew, and what happens when it is spent."""

    per: Per | None = None
    timezone: str = "UTC"
    on_exceed: OnExceed = OnExceed.PAUSE
    raised_by: str | None = None  # the job of the approval that raised it last

    @classmethod
    def of(cls, given: Mapping[str, str | None]) -> Period:
        """Return the period as stored in the rules of a limit."""
        per = given["per"]
        return cls(
            None if per is None else Per(per),
            given["timezone"] or "UTC",
            OnExceed(given["on_exceed"] or ""),
            given.get("raised_by"),
        )

    def check(self) -> Period:
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            raise Invalid(
                f"timezone is {self.timezone!r}: expected an IANA name such as Europe/Berlin", pointer="/timezone"
            ) from None
        return self

    def began_at(self, now: int) -> int | None:
        """Return the start of the current period; None without one."""
        if self.per is None:
            return None
        local = self._local(now).replace(minute=0, second=0, microsecond=0)
        if self.per is not Per.HOUR:
            local = local.replace(hour=0, fold=0)
        return micros(local.replace(day=1) if self.per is Per.MONTH else local)

    def resets_at(self, now: int) -> int | None:
        """Return the start of the next period; None without one."""
        began = self.began_at(now)
        if began is None:
            return None
        if self.per is Per.HOUR:  # where clocks change by half an hour, an hour on the wall may have 90 minutes
            starts = (self.began_at(began + hours * HOUR) or began for hours in (1, 2))
            return next(start for start in starts if start > began)
        days = 1 if self.per is Per.DAY else 31  # a day of the next month
        later = self._local(began).replace(tzinfo=None) + timedelta(days=days)
        return self.began_at(micros(later.replace(hour=12, tzinfo=ZoneInfo(self.timezone))))

    def _local(self, at: int) -> datetime:
        return (EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(self.timezone))


class BudgetState(NamedTuple):
    """A budget as of now. What is available is the amount without what was spent and what running jobs reserve."""

    name: str
    amount: Mapping[str, float]
    per: Per | None
    timezone: str
    on_exceed: OnExceed
    spent: Mapping[str, float]
    reserved: Mapping[str, float]
    available: Mapping[str, float]
    running: int
    waiting: int
    resets_at: int | None
    created_at: int = 0
    updated_at: int = 0
