"""Retention: delete old terminal jobs, on request or as configured."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from interlock import wire
from interlock.domain import principal
from interlock.domain.operations import Prune, PruneCommand, Pruned
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.engine.maintenance import repeat_until_empty
from interlock.errors import Invalid, TenantMoved, Unavailable
from interlock.storage.contract import Store

log = logging.getLogger(__name__)

DAY: Final = 86_400 * SECOND
MAX_DAYS: Final = 36_500
STEP: Final = 500
BATCH_SIZE: Final = 10_000
RETAIN_EVERY_SECONDS: Final = 3600.0
EXTEND_EVERY_SECONDS: Final = 600.0


class Retention:
    """Retention of terminal jobs; without a configured number of days it deletes only on request."""

    def __init__(self, store: Store, days: float | None = None) -> None:
        self._store = store
        self._days = None if days is None else checked_days(days, "retention_days")
        self._retaining: asyncio.Task[None] | None = None

    async def prune(
        self, who: Principal, days: float, *, limit: int = BATCH_SIZE, dry_run: bool = False, after_seq: int = 0
    ) -> Pruned:
        """Delete jobs that finished more than `days` ago with all their data, in steps, up to `limit` jobs.

        A dry run only counts them.
        """
        who.need("admin")
        wire.whole(limit, "limit", 1, 1_000_000)
        cutoff = await self._store.now() - round(checked_days(days, "days") * DAY)
        return await self._prune(who.tenant, who.actor, cutoff, limit, dry_run, after_seq)

    async def prunes(self, tenant: str, *, limit: int = 50) -> list[Prune]:
        """List prunes, newest first."""
        return await self._store.prunes(tenant, limit=wire.whole(limit, "limit", 1, 200))

    async def retain(self) -> int:
        """Delete expired data of all tenants; return the number of jobs."""
        if self._days is None:
            return 0
        cutoff = await self._store.now() - round(self._days * DAY)
        deleted = 0
        await self._store.leave_history(cutoff)
        for tenant in await self._store.audit.tenants():
            try:
                deleted += (await self._prune(tenant, principal.system("retention"), cutoff)).deleted
            except Unavailable as error:  # one shard is down or one tenant is being moved: continue with the others
                if not isinstance(error, TenantMoved) and not await self._store.unreachable():
                    raise
                log.warning("cannot prune tenant %r, retrying: %s", tenant, error)
        await self._store.drop_history(cutoff)
        await self.forget_tokens()
        return deleted

    async def forget_tokens(self) -> int:
        """Delete tokens that ended longer ago than the retention period; return the number."""
        if self._days is None:
            return 0
        seconds = self._days * DAY / SECOND
        return await repeat_until_empty(lambda: self._store.tokens.forget(seconds, STEP))

    async def retain_aside(self) -> None:
        """Apply retention in the background, because the first run may have much to delete."""
        if self._days is not None and (self._retaining is None or self._retaining.done()):
            self._retaining = asyncio.create_task(self._retain())

    async def stop(self) -> None:
        if self._retaining is not None:
            self._retaining.cancel()
            await asyncio.gather(self._retaining, return_exceptions=True)
            self._retaining = None

    async def _retain(self) -> None:
        try:
            if deleted := await self.retain():
                log.info("deleted %d jobs that ended more than %g days ago", deleted, self._days)
        except Exception as error:
            log.warning("cannot prune, retrying: %s", error)

    async def _prune(
        self, tenant: str, actor: str, cutoff: int, limit: int | None = None, dry_run: bool = False, after_seq: int = 0
    ) -> Pruned:
        deleted = 0
        while limit is None or deleted < limit:
            left = None if limit is None else limit - deleted
            order = PruneCommand(wire.new_id(), actor, cutoff, after_seq, STEP, dry_run, left)
            done = await self._store.prune(tenant, order)
            deleted, after_seq = deleted + done.deleted, done.last_seq
            if done.at_end:
                return Pruned(deleted, False, after_seq)
        return Pruned(deleted, True, after_seq)


def checked_days(value: float, field: str) -> float:
    if not 0 <= value <= MAX_DAYS:
        raise Invalid(f"{field} must be from 0 to {MAX_DAYS}", pointer=f"/{field}")
    return value
