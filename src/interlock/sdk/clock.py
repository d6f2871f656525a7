"""The database's time as known to a worker, independent of the worker's own clock."""

from __future__ import annotations

import time


class ServerClock:
    """The greatest known lower bound of the database's time: never ahead of it, never behind a received response."""

    def __init__(self, started_at: int | None, received: int | None = None) -> None:
        """Start from when the lease began, in microseconds, and the monotonic nanosecond when its claim came back."""
        self._is_known = started_at is not None
        self._offset = (started_at or 0) - _micros(received)

    def now(self) -> int | None:
        """Return the time in microseconds since 1970, or None if it is unknown."""
        return _micros(None) + self._offset if self._is_known else None

    def observe(self, at: int) -> None:
        """Record the server time of a response that has just arrived."""
        self._offset = max(self._offset, at - _micros(None))
        self._is_known = True


def _micros(nanoseconds: int | None) -> int:
    return (time.monotonic_ns() if nanoseconds is None else nanoseconds) // 1000
