"""History hashes that an operation has computed for the triggers of `job` to write."""

from __future__ import annotations

from collections.abc import Sized


class Hashes(dict[int, bytes]):
    """History hashes by job seq. Direct SQL (`strangers` is not empty) has none and reads None."""

    def __init__(self, strangers: Sized) -> None:
        self._strangers = strangers

    def __missing__(self, seq: int) -> None:
        if not self._strangers:
            raise LookupError(f"job {seq} is changed by a verb that has no hash for its history")
