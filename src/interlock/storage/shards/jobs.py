"""Sharded jobs: target shards of new jobs, claims in rotation, and merged lists."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from interlock.domain.decide import Command
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    LeaseState,
    NewJob,
    Receipt,
    Rejected,
    TextSearch,
)  # fmt: skip
from interlock.domain.policy import ClaimFilter
from interlock.domain.retry import SECOND
from interlock.errors import IdempotencyKeyReuse, Indeterminate, Invalid, TenantMoved, Unavailable
from interlock.storage.contract import NO_TERMS, Terms
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard


class ShardedJobs(Routing):
    """The part of a sharded store that enqueues jobs, claims them, and executes commands."""

    _next_shard: itertools.count[int]

    async def new_job_shard(self, tenant: str, type: str | None = None) -> int:
        return (await self.homes(tenant, type))[0].no

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        async def go(shards: list[Shard]) -> list[Enqueued | Rejected]:
            if len(shards) == 1:
                return await shards[0].run(lambda s: s.enqueue(tenant, jobs, whole=whole, terms=terms))
            return await self._enqueue_apart(tenant, jobs, whole, terms)

        return await self.routed(tenant, go)

    async def enqueue_within(
        self, connection: object, tenant: str, jobs: Sequence[NewJob], *, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        """Enqueue in the caller's connection; its database rejects the jobs unless it is the tenant's shard."""
        types: list[str | None] = [*sorted({job.type for job in jobs})]
        first, *others = [(await self.homes(tenant, type))[0] for type in types or [None]]
        if any(other is not first for other in others):
            raise Invalid("these jobs live on several shards, and one transaction reaches only one of them")
        await first.run(lambda store: store.admit(tenant))
        here = terms._replace(registry=await self.registry_of(tenant, first.store, terms.registry))
        return await first.store.enqueue_within(connection, tenant, jobs, terms=here)

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        async def go(shards: list[Shard]) -> list[Job]:
            if len(shards) == 1:
                return await shards[0].run(lambda store: store.claim(tenant, ask, claimants=claimants))
            return await self._claim_in_rotation(tenant, ask, claimants, shards)

        return await self.routed(tenant, go)

    async def heartbeat(self, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        return await self.by_job(
            tenant, heartbeats, attrgetter("id"), lambda store, some: store.heartbeat(tenant, some)
        )

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
        return await self.by_job(
            tenant, checkpoints, attrgetter("id"), lambda store, some: store.checkpoint(tenant, some)
        )

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        return await self.by_job(tenant, orders, attrgetter("id"), lambda store, some: store.carry_out(tenant, some))

    async def lease_states(self, tenant: str, job_ids: Sequence[str]) -> list[LeaseState | None]:
        return await self.by_job(tenant, job_ids, str, lambda store, some: store.lease_states(tenant, some))

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]:
        return await self.by_job(tenant, job_ids, str, lambda store, some: store.get(tenant, some))

    async def find(self, tenant: str, filter: Filter) -> list[Job]:
        pages = await self.each(tenant, lambda store: store.find(tenant, filter))
        return sorted(itertools.chain(*pages), key=lambda job: -job.seq)[: filter.limit]

    async def search(self, tenant: str, text: str, id_end: str | None, limit: int) -> list[str]:
        pages = await self.each(tenant, lambda store: store.search(tenant, text, id_end, limit))
        return list(dict.fromkeys(itertools.chain(*pages)))[:limit]

    async def search_text(self, tenant: str, wanted: TextSearch) -> list[str]:
        pages = await self.each(tenant, lambda store: store.search_text(tenant, wanted))
        return sorted(itertools.chain(*pages), reverse=True)[: wanted.limit]

    async def history(self, tenant: str, job_id: str, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        return await self.of_job(tenant, job_id, lambda store: store.history(tenant, job_id, after=after, limit=limit))

    async def _enqueue_apart(
        self, tenant: str, jobs: Sequence[NewJob], whole: bool, terms: Terms
    ) -> list[Enqueued | Rejected]:
        """Enqueue for a tenant with several shards: on the current one of their type, children on their parent's."""
        homes = {type: await self.homes(tenant, type) for type in sorted({job.type for job in jobs})}
        named = [job.parent_id for job in jobs if job.parent_id is not None]
        parents = await self.where(tenant, named, await self.homes(tenant)) if named else {}
        targets = [homes[job.type][0] if job.parent_id is None else parents[job.parent_id] for job in jobs]
        answers = await self._holders_elsewhere(tenant, jobs, targets, homes)
        parts: dict[Shard, list[int]] = defaultdict(list)
        for i, target in enumerate(targets):
            if i not in answers:
                parts[target].append(i)
        if whole and len(parts) > 1:
            raise Invalid("these jobs live on several shards; a batch that is added whole or not at all needs one")
        if whole and any(isinstance(answer, Rejected) for answer in answers.values()):
            return [answers.get(i, Rejected(Invalid("another job of the batch was refused"))) for i in range(len(jobs))]
        for shard, positions in parts.items():
            some = [jobs[i] for i in positions]
            here = terms._replace(registry=await self.registry_of(tenant, shard.store, terms.registry))
            add = partial(PostgresStore.enqueue, tenant=tenant, jobs=some, whole=whole, terms=here)
            answers |= zip(positions, await shard.run(add), strict=True)
        return [answers[i] for i in range(len(jobs))]

    async def _holders_elsewhere(
        self, tenant: str, jobs: Sequence[NewJob], targets: Sequence[Shard], homes: dict[str, list[Shard]]
    ) -> dict[int, Enqueued | Rejected]:
        """Return results for idempotency keys in use on other shards; only the current shard accepts new ones."""
        keys = [job.idempotency_key for job in jobs if job.idempotency_key is not None]
        if not keys:
            return {}
        shards = list(dict.fromkeys(itertools.chain(*homes.values())))
        results = await asyncio.gather(*(shard.run(lambda store: store.holders(tenant, keys, [])) for shard in shards))
        leased = {
            (shard.name, holder.key, holder.key_generation > 0): holder
            for shard, some in zip(shards, results, strict=True)
            for holder in some
        }
        ends = any(job.key_lifetime_seconds is not None for job in jobs)
        now = await shards[0].run(PostgresStore.now) if ends else 0
        answers: dict[int, Enqueued | Rejected] = {}
        for i, (job, target) in enumerate(zip(jobs, targets, strict=True)):
            for shard in homes[job.type]:
                lifetime = job.key_lifetime_seconds
                holder = leased.get((shard.name, job.idempotency_key, lifetime is not None))
                if shard is target or holder is None or job.idempotency_key is None:
                    continue
                if lifetime is not None and holder.created_at <= now - round(lifetime * SECOND):
                    continue
                same = holder.body_sha256 == job.body_sha256
                reuse = IdempotencyKeyReuse(job.idempotency_key, holder.id)
                answers[i] = Enqueued(holder.id, holder.seq, True) if same else Rejected(reuse)
        return answers

    async def _claim_in_rotation(
        self, tenant: str, ask: ClaimFilter, claimants: Sequence[str], shards: Sequence[Shard]
    ) -> list[Job]:
        """Claim from one shard after another up to the limit, starting at the next each time; skip failed shards."""
        first = next(self._next_shard) % len(shards)
        order = [*shards[first:], *shards[:first]]
        if ask.claim_id is not None:
            name = ask.claim_id
            known = await asyncio.gather(*(self._remembers(shard, tenant, ask.worker, name) for shard in order))
            order = [shard for shard, knows in zip(order, known, strict=True) if knows] or order
        leased: list[Job] = []
        failed: list[Unavailable] = []
        for shard in order:
            left = ask._replace(limit=ask.limit - len(leased))
            if left.limit > 0:
                try:
                    leased += await self._claim_on(shard, tenant, left, claimants[len(leased) :])
                except Unavailable as error:
                    failed.append(error)
        if len(failed) == len(order):
            raise failed[0]
        unsure = [error for error in failed if isinstance(error, Indeterminate)]
        if unsure and not leased:  # raise, so that a repeated claim returns the jobs that may be leased there
            raise unsure[0]
        return leased

    async def _remembers(self, shard: Shard, tenant: str, worker: str, claim_id: str) -> bool:
        """Return whether a shard has leased jobs under this claim ID; a failed shard must not block the others."""
        try:
            return await shard.run(lambda store: store.remembers_claim(tenant, worker, claim_id))
        except Unavailable:
            return False

    async def _claim_on(self, shard: Shard, tenant: str, ask: ClaimFilter, claimants: Sequence[str]) -> list[Job]:
        try:
            return await shard.run(lambda store: store.claim(tenant, ask, claimants=claimants))
        except TenantMoved:  # the tenant is not admitted there yet; raising would lose the jobs leased on other shards
            await shard.run(lambda store: store.admit(tenant))
            return await shard.run(lambda store: store.claim(tenant, ask, claimants=claimants))
