"""Worker presence: recorded when a worker polls, written in the background, and shown to operators.

Leases never depend on it. A lost record only makes an explanation less precise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from interlock import wire
from interlock.domain.policy import ClaimFilter
from interlock.domain.worker_presence import LATELY_SECONDS, Presence, WorkerSeen, wanted
from interlock.engine.maintenance import repeat_until_empty
from interlock.engine.queries import MAX_PAGE_SIZE
from interlock.engine.ttl_cache import TtlCache
from interlock.storage.contract.workers import WorkerStore

log = logging.getLogger(__name__)

NOTE_EVERY_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 86_400.0
FORGET_EVERY_SECONDS: Final = 600.0
FORGET_BATCH_SIZE: Final = 1000
MAX_REMEMBERED: Final = 10_000
MAX_ASKS: Final = 8
LAST_NOTES_SECONDS: Final = 1.0


class _Ask:
    """When this process last saw one claim filter of a worker, counted in claims, and how many claims wait with it."""

    __slots__ = ("at", "no", "waiting")

    def __init__(self) -> None:
        self.no = 0
        self.at = 0.0
        self.waiting = 0


class _SeenFilters:
    """What this process knows of one worker: its recent claims, and what was last written."""

    def __init__(self) -> None:
        self.asks: dict[ClaimFilter, _Ask] = {}
        self.claims = 0
        self.since = 0  # the claim before the newest one with the same filter, or the newest one itself
        self.noted_at = -NOTE_EVERY_SECONDS
        self.noted: frozenset[ClaimFilter] = frozenset()

    def add(self, what: ClaimFilter, now: float) -> _Ask:
        """Record a claim: filters not claimed since the last claim with the same filter are out of date.

        A worker that changes what it accepts is therefore known by its new filter at its next claim. One that claims
        with alternating filters is known by all of them.
        """
        for old in [one for one, ask in self.asks.items() if not ask.waiting and ask.at <= now - LATELY_SECONDS]:
            del self.asks[old]
        self.claims += 1
        ask = self.asks.pop(what, None) or _Ask()
        self.since = ask.no or self.claims
        ask.no, ask.at = self.claims, now
        self.asks[what] = ask
        if len(self.asks) > MAX_ASKS:
            del self.asks[next(iter(self.asks))]
        return ask

    def current(self) -> frozenset[ClaimFilter]:
        return frozenset(what for what, ask in self.asks.items() if ask.waiting or ask.no >= self.since)


class Workers:
    """Workers that poll for jobs, for display only."""

    def __init__(self, store: WorkerStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: TtlCache[tuple[str, str], _SeenFilters] = TtlCache(MAX_REMEMBERED)
        self._due: dict[tuple[str, str], WorkerSeen] = {}
        self._writing: asyncio.Task[None] | None = None

    @contextmanager
    def claiming(self, tenant: str, ask: ClaimFilter) -> Iterator[Callable[[], None]]:
        """Record a claim in the background: immediately if it differs from the last, else every few seconds.

        The filter counts as long as the claim waits. Call the yielded function from time to time while it does.
        A claim for no types is the last one of a worker that stops: its record is deleted.
        """
        now, key = self._clock(), (tenant, ask.worker)
        known = self._known.get(key, now)
        if ask.types is not None and not ask.types:
            if known is None or known.asks:  # a caller that may claim nothing polls too: record it once
                self._known.put(key, _SeenFilters(), now + LATELY_SECONDS)
                self._record(key, WorkerSeen(ask.worker, ()))
            yield lambda: None
            return
        known = known or _SeenFilters()
        claim = known.add(wanted(ask), now)
        claim.waiting += 1
        self._note(key, known)
        try:
            yield lambda: self._note(key, known)
        finally:
            claim.waiting -= 1
            if self._known.get(key, self._clock()) is known and known.current() != known.noted:
                self._note(key, known)

    def _note(self, key: tuple[str, str], known: _SeenFilters) -> None:
        now, current = self._clock(), known.current()
        self._known.put(key, known, now + LATELY_SECONDS)
        if current != known.noted or now - known.noted_at >= NOTE_EVERY_SECONDS:
            known.noted, known.noted_at = current, now
            self._record(key, WorkerSeen(key[1], tuple(current)))

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
        return await self._store.page(tenant, after=after, limit=limit, within_seconds=within_seconds)

    async def forget(self) -> int:
        """Delete workers that did not poll for a day and hold no lease."""
        return await repeat_until_empty(lambda: self._store.forget(KEPT_SECONDS, FORGET_BATCH_SIZE))

    async def written(self) -> None:
        """Give writes in progress a moment to reach the store, so that a reader sees the claims made before."""
        if (writing := self._writing) is not None:
            await asyncio.wait([writing], timeout=LAST_NOTES_SECONDS)

    async def stop(self) -> None:
        await self.written()
        if (writing := self._writing) is not None:
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
            await self._store.note(tenant, seen_workers)
        except Exception as error:  # the claim itself hits the same error and reports it
            log.debug("%d workers of %s were not noted: %s", len(seen_workers), tenant, error)
