"""What this process has granted, remembered between transactions: a finish need not read what a claim has just written.

What is remembered of a grant holds while the job runs at the same version, which is looked at before it is used.
Whatever is missing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_ITEMS: Final = 20_000


# Plain tuples, which are made and taken apart in half the time of named ones.
# How a job stands: status, attempt, fence, worker, version. Jobs that are granted together share it.
LeaseRow = tuple[str, int, int, str | None, int]
# Id and seq of a job, the base of its route, the line of its agent, the newest hash of its history, how it stands.
LeasedRow = tuple[str, int, int, int | None, bytes, LeaseRow]


class LeaseCache:
    """The grants of one connection that writes."""

    def __init__(self) -> None:
        self._rollbacks = 0
        self._count = 0
        self._of: dict[str, dict[str, LeasedRow]] = {}

    def remember(self, tenant: str, leased: dict[str, LeasedRow], rollbacks: int) -> None:
        """Keep these; `undone` rises whenever something is rolled back, and what was remembered before is forgotten."""
        self._count += len(leased)
        if rollbacks != self._rollbacks or self._count > MAX_ITEMS:
            self._of.clear()
            self._rollbacks, self._count = rollbacks, len(leased)
        self._of.setdefault(tenant, {}).update(leased)

    def take(self, tenant: str, ids: Iterable[str], rollbacks: int) -> dict[str, LeasedRow]:
        """What is known of these jobs, which are about to end."""
        known = self._of.get(tenant)
        if known is None or rollbacks != self._rollbacks:
            return {}
        taken = {id: leased for id in ids if (leased := known.pop(id, None)) is not None}
        self._count -= len(taken)
        if not known:
            del self._of[tenant]
        return taken
