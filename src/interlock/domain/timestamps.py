"""Moments: whole microseconds since 1970 inside, RFC 3339 wherever they are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)  # what is shown together mostly happened together
def when(micros: int) -> str:
    """RFC 3339 in UTC, with microseconds."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def micros(moment: datetime) -> int:
    """A time with an offset as microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)
