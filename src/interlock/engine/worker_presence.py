"""Worker presence: recorded when a worker polls, written in the background, and shown to operators.

Leases never depend on it. A lost record only makes an explanation less precise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from interlock import wire
from interlock.domain.policy import ClaimFilter
from interlock.domain.worker_presence import LATELY_SECONDS, Presence, WorkerSeen, wanted
from interlock.engine.maintenance import repeat_until_empty
from interlock.engine.queries import MAX_PAGE_SIZE
from interlock.engine.ttl_cache import TtlCache
from interlock.storage.contract import Store

log = logging.getLogger(__name__)

NOTE_EVERY_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 86_400.0
FORGET_EVERY_SECONDS: Final = 600.0
FORGET_BATCH_SIZE: Final = 1000
MAX_REMEMBERED: Final = 10_000
MAX_ASKS: Final = 8
LAST_NOTES_SECONDS: Final = 1.0


class _SeenFilters:
    """What this process knows of one worker: its last filter, when it polled, and when that was last written."""

    def __init__(self) -> None:
        self.asks: dict[ClaimFilter, float] = {}
        self.noted_at = -NOTE_EVERY_SECONDS

    def seen(self, worker: str, now: float) -> WorkerSeen:
        lately = [ask for ask, at in self.asks.items() if at > now - LATELY_SECONDS]
        self.asks = {ask: self.asks[ask] for ask in lately[-MAX_ASKS:]}
        return WorkerSeen(worker, tuple(self.asks))


class Workers:
    """Workers that poll for jobs, for display only."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: TtlCache[tuple[str, str], _SeenFilters] = TtlCache(MAX_REMEMBERED)
        self._due: dict[tuple[str, str], WorkerSeen] = {}
        self._writing: asyncio.Task[None] | None = None

    def note(self, tenant: str, ask: ClaimFilter) -> None:
        """Record a claim in the background: immediately if it is new, else every few seconds.

        A claim for no types is the last one of a worker that stops: its record is deleted.
        """
        now, key = self._clock(), (tenant, ask.worker)
        known = self._known.get(key, now)
        if ask.types is not None and not ask.types:
            if known is None or known.asks:  # a caller that may claim nothing polls too: record it once
                self._known.put(key, _SeenFilters(), now + LATELY_SECONDS)
                self._record(key, WorkerSeen(ask.worker, ()))
            return
        known = known or _SeenFilters()
        self._known.put(key, known, now + LATELY_SECONDS)
        what = wanted(ask)
        is_new = known.asks.pop(what, None) is None and len(known.asks) < MAX_ASKS
        known.asks[what] = now
        if is_new or now - known.noted_at >= NOTE_EVERY_SECONDS:
            known.noted_at = now
            self._record(key, known.seen(ask.worker, now))

    def _record(self, key: tuple[str, str], seen: WorkerSeen) -> None:
        self._due[key] = seen
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def seen(
        self, tenant: str, *, after: str = "", limit: int = 50, within_seconds: float | None = None
    ) -> list[Presence]:
        """List workers by name: what they accept, when they last polled, and what they run.

        `within_seconds` leaves out workers that neither polled within that time nor hold a lease.
        """
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.workers(tenant, after=after, limit=limit, within_seconds=within_seconds)

    async def forget(self) -> int:
        """Delete workers that did not poll for a day and hold no lease."""
        return await repeat_until_empty(lambda: self._store.forget_workers(KEPT_SECONDS, FORGET_BATCH_SIZE))

    async def stop(self) -> None:
        """Give writes in progress a moment to reach the store."""
        if (writing := self._writing) is not None:
            await asyncio.wait([writing], timeout=LAST_NOTES_SECONDS)
            writing.cancel()

    async def _write(self) -> None:
        try:
            while self._due:
                due, self._due = self._due, {}
                by_tenant: dict[str, list[WorkerSeen]] = defaultdict(list)
                for (tenant, _), seen in due.items():
                    by_tenant[tenant].append(seen)
                for tenant, seen_workers in by_tenant.items():
                    await self._keep(tenant, seen_workers)
        finally:
            self._writing = None

    async def _keep(self, tenant: str, seen_workers: list[WorkerSeen]) -> None:
        try:
            await self._store.note_workers(tenant, seen_workers)
        except Exception as error:  # the claim itself hits the same error and reports it
            log.debug("%d workers of %s were not noted: %s", len(seen_workers), tenant, error)
