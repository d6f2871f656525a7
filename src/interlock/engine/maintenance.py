"""Maintenance: expire leases, approvals, timeouts and deadlines; delete old claim results.

There is no leader. Every task is bounded, fenced and safe to run in several processes concurrently.
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
JOBS_PER_BLOCK: Final = 256  # jobs that a list with a rare filter reads at a time
MAX_STEPS: Final = 40
MAX_SWEPT: Final = 64 * BATCH_SIZE


class MaintenanceTask(NamedTuple):
    """A periodic background task: bounded, and safe to run in several processes concurrently."""

    name: str
    every_seconds: float
    run: Callable[[], Awaitable[object]]


class SweepCounts(NamedTuple):
    """How many jobs a sweep changed."""

    leases: int
    deadlines: int
    approvals: int


async def repeat_until_empty(step: Callable[[], Awaitable[int]]) -> int:
    """Repeat a bounded step until it finds nothing or reaches a limit; return the total found.

    A step that returns less than its limit is not the last: the limit may be divided among shards, and one shard may
    have all the work.
    """
    done = 0
    for _ in range(MAX_STEPS):
        some = await step()
        if not some:
            break
        done += some
    return done


class Maintenance:
    """The maintenance tasks, run once or periodically."""

    def __init__(self, store: Store, more: Sequence[MaintenanceTask] = ()) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self.broken: Fatal | None = None  # why it has stopped
        self.tasks = [
            MaintenanceTask("sweep", TICK_SECONDS, self.sweep),
            MaintenanceTask("slots", TICK_SECONDS, lambda: store.registry.fill_slots(BATCH_SIZE)),
            MaintenanceTask("counts", 10.0, self.fold_counts),
            MaintenanceTask("job_blocks", 5.0, self.index_job_blocks),
            MaintenanceTask("claims", 60.0, self.forget_claims),
            *more,
        ]

    async def sweep(self) -> SweepCounts:
        """Expire leases, approvals and deadlines until nothing is due."""
        return SweepCounts(
            await self._until_none_due(self._store.due_leases, ExpireLease),
            await self._until_none_due(self._store.due_deadlines, EnforceDeadline),
            await self._until_none_due(self._store.approvals.due, ExpireLease),
        )

    async def fold_counts(self) -> None:
        """Fold counter deltas; repeat, because a busy tenant has more than one pass folds."""
        for _ in range(MAX_FOLDINGS):
            if not await self._store.registry.fold_counters(LOOSE_COUNTS, BATCH_SIZE):
                return

    async def index_job_blocks(self) -> None:
        """Index job blocks until none is left, so that lists find rare terms."""
        for _ in range(MAX_FOLDINGS):
            if not await self._store.index_job_blocks(JOBS_PER_BLOCK, BATCH_SIZE):
                return

    async def forget_claims(self) -> int:
        return await repeat_until_empty(lambda: self._store.forget_claims(CLAIMS_KEPT_SECONDS, BATCH_SIZE))

    def start(self) -> None:
        """Run the tasks in the background until stopped."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        """Run each task at its own interval; a slow task does not delay the others."""
        async with asyncio.TaskGroup() as group:
            for task in self.tasks:
                group.create_task(self._repeat(task))

    async def _repeat(self, task: MaintenanceTask) -> None:
        while True:
            await self._do(task)
            await asyncio.sleep(task.every_seconds)

    async def _do(self, task: MaintenanceTask) -> None:
        """Run one task; a failure does not affect other tasks, and the task runs again at its next interval."""
        try:
            await task.run()
        except Fatal as error:
            self.broken = error
            log.critical("maintenance stopped: the storage is unusable", exc_info=True)
            raise
        except Error as error:
            log.warning("maintenance task %s failed, retrying: %s", task.name, error)
        except Exception:
            log.exception("maintenance task %s failed, retrying", task.name)

    async def _until_none_due(self, due: Callable[[int], Awaitable[list[Due]]], order: Callable[[str], Command]) -> int:
        """Change everything that is due. Read past jobs that cannot be changed, however many come first."""
        moved, limit, most = 0, BATCH_SIZE, 0
        tried: set[Due] = set()
        while found := await due(limit):
            if new := [one for one in found if one not in tried]:
                by_tenant: dict[str, list[Command]] = defaultdict(list)
                for tenant, job_id in new:
                    by_tenant[tenant].append(order(job_id))
                moved += sum([await self._carry_out(tenant, orders) for tenant, orders in by_tenant.items()])
                tried |= set(new)
                if len(found) < BATCH_SIZE:
                    break
            elif len(found) <= most or limit >= MAX_SWEPT:
                break  # a larger limit finds no more
            else:
                most, limit = len(found), 2 * limit
        return moved

    async def _carry_out(self, tenant: str, orders: Sequence[Command]) -> int:
        """Execute a batch; if it fails, execute its commands one by one, so that a bad row does not block others."""
        try:
            answers = await self._store.carry_out(tenant, orders)
            return sum(not isinstance(answer, Rejected) for answer in answers)
        except (Fatal, asyncio.CancelledError):
            raise
        except TenantMoved as error:  # the call already waited for the move: do not wait for each job
            log.warning("cannot change %d jobs, retrying: %s", len(orders), error)
            return 0
        except Exception:
            if len(orders) == 1:
                log.exception("cannot change job %s", orders[0].id)
                return 0
            return sum([await self._carry_out(tenant, [one]) for one in orders])
