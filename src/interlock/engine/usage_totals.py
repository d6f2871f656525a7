"""Totals of what finished jobs have used."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime
from typing import Final

from interlock import wire
from interlock.domain.retry import SECOND
from interlock.domain.usage_totals import DEFAULT_DAYS, MAX_DAYS, By, Key, Sum, UsageTotal, merged, total
from interlock.errors import Invalid
from interlock.storage.contract import Store

MAX_PAGE_SIZE: Final = 200
DAY: Final = 24 * 3600 * SECOND
MAX_LEVELS: Final = 1000  # of a tree whose levels are on different shards


class UsageTotals:
    """Sums the usage of a tenant."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(
        self, tenant: str, by: By | str = By.TYPE, *, since: datetime | None = None, until: datetime | None = None,
        after: Key | None = None, limit: int = 50,
    ) -> list[UsageTotal]:  # fmt: skip
        """List totals by key, of the jobs that finished from `since` until before `until`."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        if by not in [*By]:
            raise Invalid(f"by must be one of {', '.join(By)}", pointer="/by")
        by = By(by)
        start, end = wire.instant(since, "from"), wire.instant(until, "to")
        last = await self._store.now() if end is None else end
        if start is None:
            start = last - DEFAULT_DAYS * DAY
        if end is None:
            end = last + 1  # jobs that finish now count
        if start >= end:
            raise Invalid("from must be before to", pointer="/from")
        if last - start > MAX_DAYS * DAY:
            raise Invalid(f"from is too early: expected at most {MAX_DAYS} days before to", pointer="/from")
        found = await self._store.usage.sums(tenant, by, start, end)
        if by is By.TREE:
            roots = await self._roots(tenant, {one.key[0] for one in found if one.key[1]})
            found = [Sum((roots.get(one.key[0], one.key[0]), ""), one.jobs, one.usage) for one in found]
        listed = [one for one in await asyncio.to_thread(merged, found) if after is None or one.key > after]
        return [total(by, one) for one in listed[:limit]]

    async def _roots(self, tenant: str, ids: Collection[str]) -> dict[str, str]:
        """Return the root of each job; an ancestor may be on another shard than its child."""
        roots = {id: id for id in ids}
        for _ in range(MAX_LEVELS):
            above = await self._store.usage.ancestors(tenant, sorted({*roots.values()}))
            if not above:
                break
            roots = {id: above.get(root, root) for id, root in roots.items()}
        return roots
