"""Sharded operations and maintenance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from interlock.domain.job import Enqueued, Rejected
from interlock.domain.operations import Child, Prune, PruneCommand, PrunedStep, Redrive
from interlock.storage.contract import Due
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard


class ShardedOperations(Routing):
    """The part of a sharded store that redrives jobs, walks job trees, and prunes."""

    async def redrive(
        self, tenant: str, orders: Sequence[Redrive], *, registry: int = 0, implicit_agents: bool = True
    ) -> list[Enqueued | Rejected]:
        """Redrive each job on its own shard."""

        async def again(store: PostgresStore, some: Sequence[Redrive]) -> list[Enqueued | Rejected]:
            own = await self.registry_of(tenant, store, registry)
            return await store.redrive(tenant, some, registry=own, implicit_agents=implicit_agents)

        return await self.by_job(tenant, orders, attrgetter("id"), again)

    async def redriven(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        return set().union(*await self.each(tenant, lambda store: store.redriven(tenant, job_ids)))

    async def parents(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        return set().union(*await self.each(tenant, lambda store: store.parents(tenant, job_ids)))

    async def redrives(self, tenant: str, job_id: str, *, limit: int) -> list[str]:
        return await self.of_job(tenant, job_id, lambda store: store.redrives(tenant, job_id, limit=limit))

    async def retrying_after(self, tenant: str, text: str, *, limit: int) -> list[str]:
        pages = await self.each(tenant, lambda store: store.retrying_after(tenant, text, limit=limit))
        return sorted(itertools.chain(*pages), reverse=True)[:limit]

    async def children_after(
        self, tenant: str, parents: Sequence[str], after: tuple[str, int] | None, *, limit: int
    ) -> list[Child]:
        pages = await self.each(tenant, lambda store: store.children_after(tenant, parents, after, limit=limit))
        return sorted(itertools.chain(*pages), key=lambda child: (child.parent_id, child.seq))[:limit]

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        async def go(shards: list[Shard]) -> PrunedStep:
            steps: list[PrunedStep] = []
            for shard in shards:
                left = order.most if order.most is None else order.most - sum(step.deleted for step in steps)
                steps.append(await self._prune_on(shard, tenant, order._replace(most=left), to_the_end=len(shards) > 1))
            ahead = [step.last_seq for step in steps if not step.at_end]
            last = min(ahead) if ahead else max(step.last_seq for step in steps)
            return PrunedStep(sum(step.deleted for step in steps), last, not ahead)

        return await self.routed(tenant, go)

    async def _prune_on(self, shard: Shard, tenant: str, order: PruneCommand, *, to_the_end: bool) -> PrunedStep:
        """Prune one step; a dry run on several shards counts to the end, or the next step would recount some jobs."""
        done = await shard.run(partial(PostgresStore.prune, tenant=tenant, order=order))
        while order.dry_run and to_the_end and not done.at_end and (order.most is None or done.deleted < order.most):
            rest = order._replace(
                after_seq=done.last_seq, most=None if order.most is None else order.most - done.deleted
            )
            step = await shard.run(partial(PostgresStore.prune, tenant=tenant, order=rest))
            done = step._replace(deleted=done.deleted + step.deleted)
        return done

    async def prunes(self, tenant: str, *, limit: int = 50) -> list[Prune]:
        pages = await self.each(tenant, lambda store: store.prunes(tenant, limit=limit))
        return sorted(itertools.chain(*pages), key=lambda prune: (prune.at, prune.id), reverse=True)[:limit]

    async def extend_history(self) -> int:
        return sum(n for _, n in await self.everywhere("extend_history", lambda store: store.extend_history()))

    async def leave_history(self, cutoff: int) -> int:
        return sum(n for _, n in await self.everywhere("leave_history", lambda store: store.leave_history(cutoff)))

    async def drop_history(self, cutoff: int) -> int:
        return sum(n for _, n in await self.everywhere("drop_history", lambda store: store.drop_history(cutoff)))


class ShardedMaintenance(Routing):
    """The part of a sharded store for maintenance: each shard separately, so that none waits for another."""

    async def index_job_blocks(self, jobs: int, limit: int) -> int:
        return await self.share("index_job_blocks", limit, lambda store, some: store.index_job_blocks(jobs, some))

    async def forget_claims(self, older_than_seconds: float, limit: int) -> int:
        return await self.share(
            "forget_claims", limit, lambda store, some: store.forget_claims(older_than_seconds, some)
        )

    async def due_leases(self, limit: int) -> list[Due]:
        return await self.due("due_leases", limit, lambda store: store.due_leases(limit))

    async def due_deadlines(self, limit: int) -> list[Due]:
        return await self.due("due_deadlines", limit, lambda store: store.due_deadlines(limit))
