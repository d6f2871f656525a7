"""Wrong guesses of a secret, counted by where they come from."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

MOST_GUESSES: Final = 20
WINDOW_SECONDS: Final = 60.0
MOST_ADDRESSES: Final = 10_000


class _Count(NamedTuple):
    wrong: int
    until: float


class Guesses:
    """Whoever has guessed wrong too often waits out the minute; right guesses are never counted."""

    def __init__(self, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._counts: OrderedDict[str, _Count] = OrderedDict()  # the oldest window first

    def seconds_to_wait(self, address: str) -> float:
        """How long this caller has to wait before the next guess; 0 for almost everybody."""
        count = self._current(address)
        return count.until - self._seconds() if count.wrong >= MOST_GUESSES else 0.0

    def note_wrong(self, address: str) -> None:
        count = self._current(address)
        self._counts[_network(address)] = count._replace(wrong=count.wrong + 1)
        if len(self._counts) > MOST_ADDRESSES:
            self._counts.popitem(last=False)

    def _current(self, address: str) -> _Count:
        now = self._seconds()
        while self._counts and (first := next(iter(self._counts))) and self._counts[first].until <= now:
            del self._counts[first]
        return self._counts.get(_network(address), _Count(0, now + WINDOW_SECONDS))


def _network(address: str) -> str:
    """One machine has as many IPv6 addresses as it likes, but one network."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((known, 64), strict=False)) if known.version == 6 else address
