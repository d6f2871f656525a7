"""Timestamps: integer microseconds since 1970 internally, RFC 3339 in all output."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)  # jobs of one response often share timestamps
def when(micros: int) -> str:
    """Format as RFC 3339 in UTC, with microseconds."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def micros(moment: datetime) -> int:
    """Convert a time with an offset to microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)
