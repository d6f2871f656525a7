"""What this process has granted, remembered between transactions: a finish need not read what a claim has just written.

What is remembered of a grant holds while the job runs at the same version, which is looked at before it is used.
Whatever is missing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST: Final = 20_000


# Plain tuples, which are made and taken apart in half the time of named ones.
# How a job stands: status, attempt, fence, worker, version. Jobs that are granted together share it.
Grant = tuple[str, int, int, str | None, int]
# Id and seq of a job, the base of its route, the line of its agent, the newest hash of its history, how it stands.
Held = tuple[str, int, int, int | None, bytes, Grant]


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

    def take(self, tenant: str, ids: Iterable[str], undone: int) -> dict[str, Held]:
        """What is known of these jobs, which are about to end."""
        known = self._of.get(tenant)
        if known is None or undone != self._undone:
            return {}
        taken = {id: held for id in ids if (held := known.pop(id, None)) is not None}
        self._count -= len(taken)
        if not known:
            del self._of[tenant]
        return taken
