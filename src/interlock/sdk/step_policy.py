"""How a step is retried inside a run, and how long each of its attempts may take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from interlock.errors import CancelRequested, LeaseLost, NotRunning
from interlock.sdk.exceptions import Fail, Retry, StepMismatch, in_seconds
from interlock.sdk.values import Backoff

# Final by intent, or because no further attempt in this run can succeed.
NOT_RETRIED: Final = (Fail, StepMismatch, LeaseLost, NotRunning, CancelRequested)


class StepPolicy(NamedTuple):
    """The options of one step."""

    retry: Backoff
    attempts: int
    timeout_seconds: float | None

    @classmethod
    def of(cls, retry: Any, attempts: Any, timeout: Any) -> StepPolicy:
        """Return the options of a step; reject invalid ones."""
        timeout_seconds = in_seconds(timeout)
        advice = "; pass an argument of the function with functools.partial"
        if retry is not None and not isinstance(retry, Backoff):
            raise TypeError(f"retry is {retry!r}: expected interlock.Backoff{advice}")
        if retry is not None and attempts is None:
            raise TypeError("retry needs attempts: expected a number of at least 1")
        if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int)):
            raise TypeError(f"attempts is {attempts!r}: expected a number of at least 1{advice}")
        if attempts is not None and attempts < 1:
            raise ValueError(f"attempts is {attempts}: expected at least 1")
        if timeout_seconds is not None and (
            isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, (int, float))
        ):
            raise TypeError(f"timeout is {timeout_seconds!r}: expected seconds or a timedelta{advice}")
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"timeout is {timeout_seconds}: expected more than 0 seconds")
        return cls(retry or Backoff(), attempts or 1, timeout_seconds)

    async def limited(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make one attempt within the timeout."""
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            async with limit:
                return await call()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"step {name!r} exceeded its timeout of {self.timeout_seconds} s") from error

    def delay(self, attempt: int, error: Exception) -> float:
        """Return the seconds until the next attempt; `Retry` may set its own delay."""
        if isinstance(error, Retry) and error.after_seconds is not None:
            return error.after_seconds
        return self.retry.delay(attempt, random.random()).total_seconds()
