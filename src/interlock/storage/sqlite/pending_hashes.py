"""The hashes of history rows that a verb has computed and the triggers of `job` are about to write."""

from __future__ import annotations

from collections.abc import Sized


class Hashes(dict[int, bytes]):
    """Hashes by the place of their job in the order of arrival; whoever is no verb (`strangers`) has none."""

    def __init__(self, strangers: Sized) -> None:
        self._strangers = strangers

    def __missing__(self, seq: int) -> None:
        if not self._strangers:
            raise LookupError(f"job {seq} is changed by a verb that has no hash for its history")
