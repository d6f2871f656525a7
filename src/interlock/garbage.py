"""Garbage collection in servers and workers, which keep thousands of short-lived objects alive at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

COLLECT_AFTER: Final = (20_000, 20, 20)  # the default of 700 new objects is reached by a few requests or runs


class _Users:
    """The servers and workers of this process that are running: the settings are those of the whole process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._usual = gc.get_threshold()
        self._froze = False

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._usual = gc.get_threshold()
                self._froze = not gc.get_freeze_count()  # else the program has frozen its objects itself
                if self._froze:
                    gc.freeze()
                gc.set_threshold(*COLLECT_AFTER)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                gc.set_threshold(*self._usual)
                if self._froze:
                    gc.unfreeze()


_users: Final = _Users()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage less often, and skip the objects that exist now; reference counting frees the rest.

    With the defaults of Python, a worker that runs many small jobs spends a fifth of its CPU time on collections.
    """
    _users.enter()
    try:
        yield
    finally:
        _users.leave()
