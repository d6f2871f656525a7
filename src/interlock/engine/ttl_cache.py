"""A memory that is small and short: answers that may be given again without asking."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

# A revoked credential is refused everywhere within a second: this long an answer may be old, the rest is for the way.
FRESH_SECONDS: Final = 0.75
MAX_REMEMBERED: Final = 10_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """A bounded map whose entries each end at a time of their own; when it is full, the oldest entry makes room."""

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
