"""Cache of leases issued by this process, so that a finish does not re-read rows its claim just wrote.

An entry is valid while the job runs at the same version; callers check that before use and read missing entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_ITEMS: Final = 20_000


# Plain tuples take half the time of named ones to build and unpack.
# Status, attempt, fence, worker, version. Jobs leased together share one.
LeaseRow = tuple[str, int, int, str | None, int]
# Job ID, seq, base eligibility key, agent number, chain head, lease row.
LeasedRow = tuple[str, int, int, int | None, bytes, LeaseRow]


class LeaseCache:
    """The leases of one writer connection."""

    def __init__(self) -> None:
        self._rollbacks = 0
        self._count = 0
        self._of: dict[str, dict[str, LeasedRow]] = {}

    def remember(self, tenant: str, leased: dict[str, LeasedRow], rollbacks: int) -> None:
        """Add leases. A changed `rollbacks` counter clears the earlier entries, which may be rolled back."""
        self._count += len(leased)
        if rollbacks != self._rollbacks or self._count > MAX_ITEMS:
            self._of.clear()
            self._rollbacks, self._count = rollbacks, len(leased)
        self._of.setdefault(tenant, {}).update(leased)

    def take(self, tenant: str, ids: Iterable[str], rollbacks: int) -> dict[str, LeasedRow]:
        """Remove and return the entries of jobs that are about to finish."""
        known = self._of.get(tenant)
        if known is None or rollbacks != self._rollbacks:
            return {}
        taken = {id: leased for id in ids if (leased := known.pop(id, None)) is not None}
        self._count -= len(taken)
        if not known:
            del self._of[tenant]
        return taken
