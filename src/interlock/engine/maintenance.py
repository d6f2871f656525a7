"""What the clock does: expired leases and gates, timeouts, passed deadlines, old claims.

There is no leader. Every chore is bounded, fenced and harmless when another process does it at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from interlock.domain.decide import Command, EnforceDeadline, ExpireLease
from interlock.domain.job import Rejected
from interlock.errors import Error, Fatal, TenantMoved
from interlock.storage.contract import Due, Store

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
BATCH_SIZE: Final = 500
CLAIMS_KEPT_SECONDS: Final = 3600.0
LOOSE_COUNTS: Final = 64
MAX_FOLDINGS: Final = 100
JOBS_PER_BLOCK: Final = 256  # the jobs that a list of something rare reads at a time
MAX_STEPS: Final = 40


class MaintenanceTask(NamedTuple):
    """Something to be done again and again: bounded, and harmless when another process does it too."""

    name: str
    every_seconds: float
    run: Callable[[], Awaitable[object]]


class SweepCounts(NamedTuple):
    """How many jobs a sweep moved."""

    leases: int
    deadlines: int
    approvals: int


async def repeat_until_empty(step: Callable[[], Awaitable[int]]) -> int:
    """Repeat a bounded step until it finds nothing, within reason; how much it found in all.

    A step that takes less than it might is not the last: it may be divided among shards, one of which has all there is.
    """
    done = 0
    for _ in range(MAX_STEPS):
        some = await step()
        if not some:
            break
        done += some
    return done


class Maintenance:
    """The chores of the clock, run once or again and again."""

    def __init__(self, store: Store, more: Sequence[MaintenanceTask] = ()) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self.tasks = [
            MaintenanceTask("sweep", TICK_SECONDS, self.sweep),
            MaintenanceTask("lines", TICK_SECONDS, lambda: store.fill_slots(BATCH_SIZE)),
            MaintenanceTask("counts", 10.0, self.fold_counts),
            MaintenanceTask("stretches", 5.0, self.index_job_blocks),
            MaintenanceTask("claims", 60.0, self.forget_claims),
            *more,
        ]

    async def sweep(self) -> SweepCounts:
        """End what the clock has ended, until nothing is due."""
        return SweepCounts(
            await self._until_none_due(self._store.due_leases, ExpireLease),
            await self._until_none_due(self._store.due_deadlines, EnforceDeadline),
            await self._until_none_due(self._store.due_approvals, ExpireLease),
        )

    async def fold_counts(self) -> None:
        """Sum up what was counted; a busy tenant has more than one folding takes."""
        for _ in range(MAX_FOLDINGS):
            if not await self._store.fold_counters(LOOSE_COUNTS, BATCH_SIZE):
                return

    async def index_job_blocks(self) -> None:
        """Note where lists find what is rare, until nothing is left to note."""
        for _ in range(MAX_FOLDINGS):
            if not await self._store.index_job_blocks(JOBS_PER_BLOCK, BATCH_SIZE):
                return

    async def forget_claims(self) -> int:
        return await repeat_until_empty(lambda: self._store.forget_claims(CLAIMS_KEPT_SECONDS, BATCH_SIZE))

    def start(self) -> None:
        """Do the chores in the background until stopped."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        """Each chore at its own pace: one that takes long holds up no other."""
        async with asyncio.TaskGroup() as group:
            for task in self.tasks:
                group.create_task(self._repeat(task))

    async def _repeat(self, task: MaintenanceTask) -> None:
        while True:
            await self._do(task)
            await asyncio.sleep(task.every_seconds)

    async def _do(self, task: MaintenanceTask) -> None:
        """One chore that fails stops no other, and is done again when its time comes."""
        try:
            await task.run()
        except Fatal:
            log.critical("maintenance stopped: storage is broken", exc_info=True)
            raise
        except Error as error:
            log.warning("maintenance task %s failed, retrying: %s", task.name, error)
        except Exception:
            log.exception("maintenance task %s failed, retrying", task.name)

    async def _until_none_due(self, due: Callable[[int], Awaitable[list[Due]]], order: Callable[[str], Command]) -> int:
        moved = 0
        while found := await due(BATCH_SIZE):
            by_tenant: dict[str, list[Command]] = defaultdict(list)
            for tenant, job_id in found:
                by_tenant[tenant].append(order(job_id))
            done = sum([await self._carry_out(tenant, orders) for tenant, orders in by_tenant.items()])
            moved += done
            if len(found) < BATCH_SIZE or not done:
                break
        return moved

    async def _carry_out(self, tenant: str, orders: Sequence[Command]) -> int:
        """One bad row never stops the rest: a batch that fails is taken apart."""
        try:
            answers = await self._store.carry_out(tenant, orders)
            return sum(not isinstance(answer, Rejected) for answer in answers)
        except (Fatal, asyncio.CancelledError):
            raise
        except TenantMoved as error:  # it was waited for already: not again for each of its jobs
            log.warning("cannot change %d jobs, retrying: %s", len(orders), error)
            return 0
        except Exception:
            if len(orders) == 1:
                log.exception("cannot change job %s", orders[0].id)
                return 0
            return sum([await self._carry_out(tenant, [one]) for one in orders])
