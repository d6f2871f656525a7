"""Copy of a tenant's jobs ahead of its move, while they keep running; changed jobs are copied again.

Once a tenant is leaving, its database records every job that is written. A pass reads these records and the jobs from
one snapshot, so that afterwards the copy equals the source at that moment. The last pass runs while writes are blocked.
Its duration depends on how much has changed since the pass before, not on the size of the tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from interlock.storage.shards.admin_connection import Owner
from interlock.storage.shards.tenant_copy import Copier, Size

MAX_PASSES: Final = 10
_WINDOW: Final = "from interlock.job where tenant = $1 and seq > $2"


class Precopy:
    """Progress of copying one tenant ahead of its move."""

    def __init__(
        self, old: Owner, new: Owner, copier: Copier, tenant: str, *, step: int, at: Callable[[str], None]
    ) -> None:
        self._old = old
        self._new = new
        self._copier = copier
        self._tenant = tenant
        self._step = step
        self._at = at
        self._size = Size(0, 0)
        self._with_approvals: set[str] = set()

    async def copy(self) -> None:
        """Copy all jobs in steps, then new and changed ones, until few are left."""
        await self._copier.copy_eligibility_keys()
        newest = await self._old.fetchval("select max(seq) from interlock.job where tenant = $1", self._tenant) or 0
        last = 0
        while last < newest:  # later jobs are recorded as changed, so that this loop ends
            last = await self._copy_window(last)
            self._at("step")
        async with self._old.transaction(isolation="repeatable_read"):
            before = await self._copy_again()
            self._size = await self._copier.check_ahead()
        self._at("counted ahead")
        for _ in range(MAX_PASSES):
            async with self._old.transaction(isolation="repeatable_read"):
                again = await self._copy_again()
            self._at("caught up")
            if again <= self._step or again > before / 2:
                return
            before = again

    async def finish(self) -> Size:
        """Copy the rest in open transactions while writes are blocked; return the total size."""
        await self._copy_again()
        await self._copier.copy_approvals(sorted(self._with_approvals))
        await self._copier.copy_rest()
        await self._copier.check_rest()
        return self._size

    async def _copy_window(self, after: int) -> int:
        """Copy the next jobs in order of arrival; return the position of the last one."""
        async with self._old.transaction(isolation="repeatable_read"), self._new.transaction():
            window = (self._tenant, after)
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
            living = [row["id"] for row in rows if not row["ended"]]
            # A terminal job that an earlier attempt copied is kept, unless rows are missing. Later changes to it are
            # recorded.
            kept = [id for id, version in ended.items() if there.get(id) == version]
            if not await self._copier.is_whole(kept):
                kept = []
            await self._copier.copy_jobs(sorted(ended.keys() - kept), living)
            await self._copier.check_jobs(list(ended), living)
            self._with_approvals |= await self._copier.with_approvals(living)
        return last

    async def _copy_again(self) -> int:
        """Copy jobs written since the last pass again, replacing their rows on the target; return their number."""
        again = list(dict.fromkeys([*await self._copier.move_deltas(), *await self._copier.displaced()]))
        for ids in batched(again, self._step):
            async with self._new.transaction():
                before = await self._copier.arrived(ids)
                ended = await self._copier.ended(ids)
                living = sorted(set(ids).difference(ended))
                await self._copier.copy_jobs(ended, living)
                await self._copier.check_jobs(ended, living)
                after = await self._copier.arrived(ids)
            self._size = Size(self._size.jobs + after.jobs - before.jobs, self._size.rows + after.rows - before.rows)
            self._with_approvals |= await self._copier.with_approvals(living)
        return len(again)


def batched(ids: Sequence[str], size: int) -> Iterator[list[str]]:
    """Split the IDs into lists of at most `size`."""
    for start in range(0, len(ids), size):
        yield list(ids[start : start + size])
