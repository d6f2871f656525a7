"""A small cache with short lifetimes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

# A revoked credential must be rejected everywhere within a second: this is the cache lifetime, the rest is latency.
FRESH_SECONDS: Final = 0.75
MAX_REMEMBERED: Final = 10_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """A bounded map with an expiry per entry; when it is full, it evicts the oldest entry."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[K, tuple[V, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, now: float) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, until = entry
        if now < until:
            return value
        del self._entries[key]
        return None

    def put(self, key: K, value: V, until: float) -> None:
        self._entries.pop(key, None)
        while len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (value, until)

    def forget(self, match: Callable[[V], bool]) -> None:
        for key in [key for key, (value, _) in self._entries.items() if match(value)]:
            del self._entries[key]
