"""After a restore: end the leases of workers from before it, and never issue their fences again."""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.domain import principal
from interlock.domain.decide import RevokeLease
from interlock.domain.job import Filter, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.storage.contract import Store

BATCH_SIZE: Final = 500
REASON: Final = "the database was restored"

# Epochs follow the calendar, so that restoring a backup twice does not produce the same epoch twice. With this step, a
# fence stays below 2^53, the largest integer that every JSON reader supports, for forty years.
CALENDAR_START: Final = 1_767_225_600 * SECOND  # 2026-01-01
CALENDAR_STEP: Final = 600 * SECOND


class Restored(NamedTuple):
    """The new epoch, and how many leases were ended."""

    epoch: int
    revoked: int


class Restore:
    """Operations on a database that was restored from a backup."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def restored(self, who: Principal) -> Restored:
        """Raise the epoch and end every earlier lease of all tenants; a repeated call does the same."""
        who.need("admin")
        now = await self._store.now()
        epoch = await self._store.raise_epoch(max((now - CALENDAR_START) // CALENDAR_STEP, 0))
        revoked = 0
        for tenant in await self._store.audit.tenants():
            revoked += await self._revoke_all(tenant, below=epoch << 32)
        return Restored(epoch, revoked)

    async def _revoke_all(self, tenant: str, *, below: int) -> int:
        """End leases with a fence below `below`; a lease issued since the restore is kept."""
        revoked = 0
        page = Filter(statuses=(Status.RUNNING,), limit=BATCH_SIZE)
        while jobs := await self._store.find(tenant, page):
            old = [job for job in jobs if job.fence < below]
            orders = [RevokeLease(job.id, principal.system("restored"), REASON, below) for job in old]
            answers = await self._store.carry_out(tenant, orders) if orders else []
            revoked += sum(isinstance(answer, Receipt) and answer.fence < below for answer in answers)
            page = page._replace(before_seq=jobs[-1].seq)
        return revoked
