"""Sharded approvals: each on the shard of its job."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from operator import attrgetter

from interlock.domain.approval import Approval, ApprovalFilter, CastVote, CreateApprovalLink
from interlock.domain.job import Rejected
from interlock.storage.contract import Due
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard


class ShardedApprovals:
    """Routes the calls of approvals."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        return await self._routing.by_job(
            tenant,
            commands,
            attrgetter("id"),
            lambda store, some: store.approvals.decide(tenant, some),
            find=_shards_of_approvals,
        )

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        return await self._routing.by_job(
            tenant,
            link_requests,
            attrgetter("id"),
            lambda store, some: store.approvals.create_link(tenant, some),
            find=_shards_of_approvals,
        )

    async def get(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        return await self._routing.by_job(
            tenant, ids, str, lambda store, some: store.approvals.get(tenant, some), find=_shards_of_approvals
        )

    async def find(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        pages = await self._routing.each(tenant, lambda store: store.approvals.find(tenant, filter))
        found = sorted(itertools.chain(*pages), key=filter.cursor_of, reverse=not filter.urgent)
        return found[: filter.limit]

    async def of_token(self, sha256: bytes) -> tuple[str, str] | None:
        return await self._routing.ask_all(lambda store: store.approvals.of_token(sha256), lambda found: found[0])

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        found: dict[str, list[Approval]] = {}
        for some in await self._routing.each(tenant, lambda store: store.approvals.decisions(tenant, job_ids)):
            found |= some
        return found

    async def due(self, limit: int) -> list[Due]:
        return await self._routing.due("due_approvals", limit, lambda store: store.approvals.due(limit))


async def _shards_of_approvals(tenant: str, ids: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
    """Return the shard of each approval; unknown ones go to the current shard."""
    results = await asyncio.gather(*(shard.run(lambda store: store.approvals.get(tenant, ids)) for shard in shards))
    positions = dict.fromkeys(ids, shards[0])
    for shard, some in zip(shards, results, strict=True):
        positions |= {approval.id: shard for approval in some if approval is not None}
    return positions
