"""What this process has granted, remembered between transactions: a finish need not read what a claim has just written.

What is remembered of a grant holds while the job runs at the same version, which is looked at before it is used.
Whatever is missing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

MOST: Final = 20_000


class Held(NamedTuple):
    """A job as it stands, with the base of its route, the line of its agent, and the newest hash of its history."""

    id: str
    seq: int
    status: str
    fence: int
    worker: str | None
    version: int
    attempt: int
    base: int
    line: int | None
    head: bytes


class Memory:
    """The grants of one connection that writes."""

    def __init__(self) -> None:
        self._undone = 0
        self._count = 0
        self._of: dict[str, dict[str, Held]] = {}

    def remember(self, tenant: str, granted: dict[str, Held], undone: int) -> None:
        """Keep these; `undone` rises whenever something is rolled back, and what was remembered before is forgotten."""
        self._count += len(granted)
        if undone != self._undone or self._count > MOST:
            self._of.clear()
            self._undone, self._count = undone, len(granted)
        self._of.setdefault(tenant, {}).update(granted)

    def take(self, tenant: str, ids: Iterable[str], undone: int) -> list[Held]:
        """What is known of these jobs, which are about to end."""
        known = self._of.get(tenant)
        if known is None or undone != self._undone:
            return []
        taken = [held for id in ids if (held := known.pop(id, None)) is not None]
        self._count -= len(taken)
        if not known:
            del self._of[tenant]
        return taken
