"""Sharded operations, audit and maintenance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.job import Enqueued, Rejected
from interlock.domain.operations import Child, Prune, PruneCommand, PrunedStep, Redrive
from interlock.domain.operator_log import LogRow
from interlock.storage import history_chain
from interlock.storage.contract import ChainVerification, Due
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

    async def dead_letters(self, tenant: str, *, limit: int) -> list[str]:
        """Merge by ID: job IDs start with their time, so they sort by age across shards."""
        pages = await self.each(tenant, lambda store: store.dead_letters(tenant, limit=limit))
        found = sorted({id for page in pages for id in page}, reverse=True)[:limit]
        again = await self.redriven(tenant, found) if len(pages) > 1 else set()
        return [id for id in found if id not in again]

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

    async def tenants(self) -> list[str]:
        results = await self.everywhere("tenants", lambda store: store.tenants())
        return sorted(set(itertools.chain(*(tenants for _, tenants in results))))


class ShardedAudit(Routing):
    """The part of a sharded store for audit: a chain is on the shard of its job and is verified there."""

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        pages = await self.each(tenant, lambda store: store.histories(tenant, after=after, jobs=jobs))
        return sorted(itertools.chain(*pages), key=lambda export: export.seq)[:jobs]

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        """Verify several shards one after another; the cursor then names the shard."""

        async def go(shards: list[Shard]) -> VerifiedPart:
            if len(shards) == 1:
                return await shards[0].run(lambda store: store.verify_part(tenant, after=after, jobs=jobs))
            name, _, cursor = (after or "").rpartition("/")
            shard = next((shard for shard in shards if shard.name == name), shards[0] if not name else None)
            if shard is None:
                raise history_chain.invalid_cursor(after or "")
            part = await shard.run(lambda store: store.verify_part(tenant, after=cursor or None, jobs=jobs))
            if part.next is not None:
                return part._replace(next=f"{shard.name}/{part.next}")
            rest = shards[shards.index(shard) + 1 :]
            return part._replace(next=f"{rest[0].name}/" if rest else None)

        return await self.routed(tenant, go)

    async def verify(self, tenant: str | None = None) -> ChainVerification:
        total = ChainVerification(0, 0, None)
        for name in [tenant] if tenant is not None else await self._all_tenants():
            for part in await self.each(name, partial(PostgresStore.verify, tenant=name)):
                total = ChainVerification(
                    total.jobs + part.jobs, total.rows + part.rows, total.first_bad or part.first_bad
                )
        return total

    async def head(self, tenant: str | None = None) -> str:
        return await history_chain.head_of(
            await self._all_tenants() if tenant is None else [tenant], self._chain_ends, self._log_end
        )

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        """Read the log of the current shard: operator actions are recorded on every shard of a tenant."""
        return await self.home(tenant, lambda store: store.log(tenant, after=after, limit=limit))

    async def _log_end(self, tenant: str) -> bytes | None:
        return await self.home(tenant, lambda store: store.log_end(tenant))

    async def _chain_ends(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Merge the chain heads of all shards of a tenant; the first of each include the first of all."""
        pages = await self.each(tenant, lambda store: store.chain_ends(tenant, after, limit))
        return sorted(itertools.chain(*pages))[:limit]

    async def raise_epoch(self, above: int) -> int:
        """Set the same epoch on all shards, above that of each."""
        raised = await self.all_shards(lambda store: store.raise_epoch(above))
        epoch = max(raised.values())
        for name, value in raised.items():
            if value < epoch:
                await self._shards[name].run(lambda store: store.raise_epoch(epoch - 1))
        return epoch

    async def _all_tenants(self) -> list[str]:
        return sorted(set(itertools.chain(*(await self.all_shards(lambda store: store.tenants())).values())))


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
