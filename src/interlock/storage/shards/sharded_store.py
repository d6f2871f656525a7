"""A store over several databases that routes each call to the shards of its tenant."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, TypeVar

from interlock.domain.shards import ShardSupplier
from interlock.errors import Error, Unavailable
from interlock.storage import rehearsal
from interlock.storage.contract import Fitness, Outbox
from interlock.storage.contract.doctor import Fault
from interlock.storage.expired import ExpiredCounts
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.approvals import ShardedApprovals
from interlock.storage.shards.artifacts import ShardedArtifacts
from interlock.storage.shards.attention import ShardedAttention
from interlock.storage.shards.audit import ShardedAudit
from interlock.storage.shards.channels import ShardedChannels
from interlock.storage.shards.effects import ShardedEffects
from interlock.storage.shards.job_data import ShardedProgress
from interlock.storage.shards.jobs import ShardedJobs
from interlock.storage.shards.limits import ShardedLimits
from interlock.storage.shards.messages import ShardedMessages
from interlock.storage.shards.operations import ShardedMaintenance, ShardedOperations
from interlock.storage.shards.outbox import ShardedOutbox
from interlock.storage.shards.registry import ShardedRegistry
from interlock.storage.shards.schedules import ShardedSchedules
from interlock.storage.shards.sessions import ShardedSessions
from interlock.storage.shards.shard import Shard
from interlock.storage.shards.streams import ShardedStreams
from interlock.storage.shards.tokens import ShardedTokens
from interlock.storage.shards.usage import ShardedUsage
from interlock.storage.shards.workers import ShardedWorkers
from interlock.storage.wakeup import Wakeup

T = TypeVar("T")

MAX_FAULTS: Final = 1_000_000


class ShardedStore(
    ShardedJobs,
    ShardedProgress,
    ShardedOperations,
    ShardedMaintenance,
):
    """Jobs on several shards. Any number of processes may use them; there is no leader."""

    def __init__(self, shards: Sequence[Shard], supplier: ShardSupplier) -> None:
        super().__init__(shards, supplier)
        self._next_shard = itertools.count()
        self._sharded_outbox = ShardedOutbox(shards, supplier)
        self.approvals = ShardedApprovals(self)
        self.artifacts = ShardedArtifacts(self)
        self.audit = ShardedAudit(self)
        self.registry = ShardedRegistry(self)
        self.schedules = ShardedSchedules(self)
        self.messages = ShardedMessages(self)
        self.streams = ShardedStreams(self)
        self.effects = ShardedEffects(self)
        self.sessions = ShardedSessions(self)
        self.limits = ShardedLimits(self)
        self.channels = ShardedChannels(self)
        self.usage = ShardedUsage(self)
        self.tokens = ShardedTokens(self)
        self.workers = ShardedWorkers(self)
        self.attention = ShardedAttention(self)
        self._ready = Wakeup()
        self._events_added = Wakeup()
        for shard in shards:
            shard.when_open(lambda store: store.hear(ready=self._ready.fire, events=self._events_added.fire))

    @property
    def outbox(self) -> Outbox:
        return self._sharded_outbox

    @property
    def expired(self) -> ExpiredCounts:
        return sum((shard.store.expired for shard in self._shards.values() if shard.is_open), ExpiredCounts())

    async def now(self) -> int:
        """Return the clock of the first shard that responds."""
        failure: Error | None = None
        for shard in self._shards.values():
            try:
                return await shard.run(lambda store: store.now())
            except Error as error:
                failure = failure or error
        assert failure is not None
        raise failure

    async def raise_epoch(self, above: int) -> int:
        """Set the same epoch on all shards, above that of each."""
        raised = await self.all_shards(lambda store: store.raise_epoch(above))
        epoch = max(raised.values())
        for name, value in raised.items():
            if value < epoch:
                await self._shards[name].run(lambda store: store.raise_epoch(epoch - 1))
        return epoch

    async def unreachable(self) -> dict[str, str]:
        """Return the shards known to be down; a call detects a failure, but not immediately."""
        _one_at_least(await self.everywhere("unreachable", lambda store: store.now()))
        return {name: shard.trouble for name, shard in self._shards.items() if shard.trouble is not None}

    def watch(self, tenant: str) -> asyncio.Event:
        for shard in self._shards.values():
            if shard.is_open:
                shard.store.watch(tenant)  # start listening to other processes
        return self._ready.event(tenant)

    def watch_events(self) -> asyncio.Event:
        return self._events_added.event()

    async def facts(self) -> dict[str, str]:
        """Return the facts of all shards; if they differ, list them by shard."""
        results = await self.all_shards(lambda store: store.facts())
        facts: dict[str, str] = {}
        for name in next(iter(results.values())):
            given: dict[str, list[str]] = {}
            for shard, its in results.items():
                given.setdefault(its[name], []).append(shard)
            facts[name] = next(iter(given)) if len(given) == 1 else "; ".join(
                f"{value} ({', '.join(shards)})" for value, shards in given.items()
            )  # fmt: skip
        return facts | {"shards": ", ".join(results)}

    async def faults(self, tenant: str, limit: int) -> list[Fault]:
        return [fault for some in await self.each(tenant, lambda store: store.faults(tenant, limit)) for fault in some]

    async def repair(self, fault: Fault, actor: str) -> str:
        """Repair the fault on its shard."""

        async def found(store: PostgresStore) -> str | None:
            there = fault in await store.faults(fault.tenant, MAX_FAULTS)
            return await store.repair(fault, actor) if there else None

        return await self.first(fault.tenant, found) or "nothing was left to do"

    async def rehearse(self) -> str:
        results = await self.all_shards(lambda store: store.rehearse())
        wrong = [f"{given} ({shard})" for shard, given in results.items() if given != rehearsal.OK]
        return "; ".join(wrong) or rehearsal.OK

    async def fitness(self) -> Fitness:
        results = [one for _, one in _one_at_least(await self.everywhere("fitness", lambda store: store.fitness()))]
        return Fitness(next((one.lacks for one in results if one.lacks), None), all(one.durable for one in results))

    async def close(self) -> None:
        await self._sharded_outbox.drop_late()
        await self._stop()


def _one_at_least(results: list[T]) -> list[T]:
    """Raise if no shard responded in time: an empty result would look like success."""
    if not results:
        raise Unavailable("no shard has answered in time")
    return results
