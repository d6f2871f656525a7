"""Throttle for wrong tokens, by network address."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_WRONG_ATTEMPTS: Final = 20
WINDOW_SECONDS: Final = 60.0
MAX_ADDRESSES: Final = 10_000


class _Count(NamedTuple):
    wrong: int
    until: float


class SignInThrottle:
    """Counts wrong tokens per address and minute; correct tokens are never counted."""

    def __init__(self, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._counts: OrderedDict[str, _Count] = OrderedDict()  # the oldest window first

    def seconds_to_wait(self, address: str) -> float:
        """Return the seconds until this address may try another token; 0 below the limit."""
        count = self._current(address)
        return count.until - self._seconds() if count.wrong >= MAX_WRONG_ATTEMPTS else 0.0

    def record_failure(self, address: str) -> None:
        count = self._current(address)
        self._counts[_network(address)] = count._replace(wrong=count.wrong + 1)
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)

    def _current(self, address: str) -> _Count:
        now = self._seconds()
        while self._counts and (first := next(iter(self._counts))) and self._counts[first].until <= now:
            del self._counts[first]
        return self._counts.get(_network(address), _Count(0, now + WINDOW_SECONDS))


def _network(address: str) -> str:
    """Return the /64 network of an IPv6 address, since one machine can use all of its addresses."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((known, 64), strict=False)) if known.version == 6 else address
