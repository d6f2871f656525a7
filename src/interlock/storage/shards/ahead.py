"""Jobs go over ahead of their tenant, while its work goes on; those that have changed since go over again.

PostgreSQL writes into every row which transaction has made it. A pass remembers the oldest transaction that was still
under way when it began; what the next pass has to copy again are the rows that this one or a later one has made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from interlock.storage.shards.copying import Copier
from interlock.storage.shards.owner import Owner

MOST_PASSES: Final = 10
_WINDOW: Final = "from interlock.job where tenant = $1 and seq > $2"


class Ahead:
    """What has gone over ahead of one tenant, and what of it must be looked at again."""

    def __init__(
        self, old: Owner, new: Owner, copier: Copier, tenant: str, *, step: int, at: Callable[[str], None]
    ) -> None:
        self._old = old
        self._new = new
        self._copier = copier
        self._tenant = tenant
        self._step = step
        self._at = at
        self._since = ""
        self._last = 0
        self._rows = 0
        self._versions: dict[str, int] = {}  # of those that had not ended when they were copied
        self._gated: set[str] = set()

    async def copy(self) -> None:
        """All jobs, in steps, then those that are new or have changed meanwhile, until these are few."""
        self._since = await self._copier.oldest_transaction()
        newest = await self._old.fetchval("select max(seq) from interlock.job where tenant = $1", self._tenant) or 0
        while self._last < newest:  # whoever comes later must not keep this from ending
            await self._copy_window()
            self._at("step")
        before = len(self._versions)
        for _ in range(MOST_PASSES):
            since = await self._copier.oldest_transaction()
            again = await self._changed()
            for some in batched(again, self._step):
                async with self._old.transaction(isolation="repeatable_read"), self._new.transaction():
                    await self._copy_again(some)
            self._since = since
            self._at("caught up")
            if len(again) <= self._step or len(again) > before / 2:
                return
            before = len(again)

    async def finish(self) -> tuple[int, int]:
        """What is left, with nobody changing anything, in open transactions; how many jobs and rows of history came."""
        for left in (self._changed, self._late):
            for some in batched(await left(), self._step):
                await self._copy_again(some)
        await self._copier.copy_gates(sorted(self._gated))
        await self._copier.copy_rest()
        return await self._copier.check_whole(), self._rows + sum(self._versions.values())

    async def _copy_window(self) -> None:
        """The next jobs in the order of arrival."""
        async with self._old.transaction(isolation="repeatable_read"), self._new.transaction():
            window = (self._tenant, self._last)
            rows = await self._old.fetch(
                f"select id, seq, version, status >= 'succeeded' as ended {_WINDOW} order by seq limit {self._step}",
                *window,
            )  # fmt: skip
            last = int(rows[-1]["seq"])
            there = {
                row["id"]: row["version"]
                for row in await self._new.fetch(f"select id, version {_WINDOW} and seq <= $3", *window, last)
            }
            ended = {row["id"]: row["version"] for row in rows if row["ended"]}
            living = {row["id"]: row["version"] for row in rows if not row["ended"]}
            # A job that has ended changes no more: as an earlier attempt has brought it, it may stay.
            missing = [id for id, version in ended.items() if there.get(id) != version]
            await self._copier.copy_jobs(missing, list(living))
            rows_of_history = await self._copier.check_jobs(list(ended), list(living))
            self._gated |= await self._copier.gated(list(living))
        self._last = last
        self._rows += rows_of_history
        self._versions |= living

    async def _copy_again(self, ids: list[str]) -> None:
        """Jobs as they are now, in place of what is there of them."""
        await self._copier.copy_jobs((), ids)
        await self._copier.check_jobs((), ids)
        self._gated |= await self._copier.gated(ids)
        rows = await self._old.fetch(
            "select id, version from interlock.job where tenant = $1 and id = any($2::uuid[])", self._tenant, ids
        )
        self._versions |= {row["id"]: row["version"] for row in rows}

    async def _changed(self) -> list[str]:
        """Jobs to be copied again: those that were changed since the last pass began, and new ones."""
        changed = await self._copier.changed(list(self._versions), self._since)
        rows = await self._old.fetch(f"select id, seq {_WINDOW} order by seq", self._tenant, self._last)
        if rows:
            self._last = int(rows[-1]["seq"])
        return list(dict.fromkeys([*changed, *(row["id"] for row in rows)]))

    async def _late(self) -> list[str]:
        """Numbers are no order of commits: a job may have come in with one that was passed already."""
        count, ids = (f"select {what} from interlock.job where tenant = $1" for what in ("count(*)", "id"))
        if await self._old.fetchval(count, self._tenant) == await self._new.fetchval(count, self._tenant):
            return []
        there = {row[0] for row in await self._new.fetch(ids, self._tenant)}
        return [row[0] for row in await self._old.fetch(ids, self._tenant) if row[0] not in there]


def batched(ids: Sequence[str], size: int) -> Iterator[list[str]]:
    """Some at a time."""
    for start in range(0, len(ids), size):
        yield list(ids[start : start + size])
