"""Waiting for a lost database: growing pauses, and one log line instead of one per attempt."""

from __future__ import annotations

import time
from typing import Any, Final

from interlock.pauses import Pauses

LOG_AGAIN_SECONDS: Final = 60.0


class Reconnect:
    """Retry pauses and logging of one loop that must not give up."""

    def __init__(self, log: Any, doing: str) -> None:
        self._log = log
        self._doing = doing
        self._pauses = Pauses()
        self._logged_at: float | None = None

    async def wait(self, error: Exception) -> None:
        """Pause after a failed attempt."""
        now = time.monotonic()
        if self._logged_at is None or now - self._logged_at >= LOG_AGAIN_SECONDS:
            self._logged_at = now
            self._log.warning("queue unreachable, retrying", doing=self._doing, error=str(error))
        await self._pauses.wait()

    def rest(self) -> None:
        """Reset after a successful attempt."""
        if self._logged_at is not None:
            self._log.info("queue reachable again", doing=self._doing)
            self._logged_at = None
            self._pauses.reset()
