"""Sharded audit: a chain is on the shard of its job and is verified there."""

from __future__ import annotations

import itertools

from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.operator_log import LogRow
from interlock.storage import history_chain
from interlock.storage.contract import ChainVerification
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard


class ShardedAudit:
    """Routes the calls of audits."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        pages = await self._routing.each(tenant, lambda store: store.audit.histories(tenant, after=after, jobs=jobs))
        return sorted(itertools.chain(*pages), key=lambda export: export.seq)[:jobs]

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        """Verify several shards one after another; the cursor then names the shard."""

        async def go(shards: list[Shard]) -> VerifiedPart:
            if len(shards) == 1:
                return await shards[0].run(lambda store: store.audit.verify_part(tenant, after=after, jobs=jobs))
            name, _, cursor = (after or "").rpartition("/")
            shard = next((shard for shard in shards if shard.name == name), shards[0] if not name else None)
            if shard is None:
                raise history_chain.invalid_cursor(after or "")
            part = await shard.run(lambda store: store.audit.verify_part(tenant, after=cursor or None, jobs=jobs))
            if part.next is not None:
                return part._replace(next=f"{shard.name}/{part.next}")
            rest = shards[shards.index(shard) + 1 :]
            return part._replace(next=f"{rest[0].name}/" if rest else None)

        return await self._routing.routed(tenant, go)

    async def verify(self, tenant: str | None = None) -> ChainVerification:
        return await history_chain.verify_all(
            [tenant] if tenant is not None else await self._all_tenants(),
            lambda tenant, after: self.verify_part(tenant, after=after, jobs=history_chain.VERIFIED_BATCH_SIZE),
        )

    async def head(self, tenant: str | None = None) -> str:
        return await history_chain.head_of(
            await self._all_tenants() if tenant is None else [tenant], self._chain_ends, self._log_end
        )

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        """Read the log of the current shard: operator actions are recorded on every shard of a tenant."""
        return await self._routing.home(tenant, lambda store: store.audit.log(tenant, after=after, limit=limit))

    async def tenants(self) -> list[str]:
        results = await self._routing.everywhere("tenants", lambda store: store.audit.tenants())
        return sorted(set(itertools.chain(*(tenants for _, tenants in results))))

    async def _log_end(self, tenant: str) -> bytes | None:
        return await self._routing.home(tenant, lambda store: store.audit.log_end(tenant))

    async def _chain_ends(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Merge the chain heads of all shards of a tenant; the first of each include the first of all."""
        pages = await self._routing.each(tenant, lambda store: store.audit.chain_ends(tenant, after, limit))
        return sorted(itertools.chain(*pages))[:limit]

    async def _all_tenants(self) -> list[str]:
        """List the tenants of all shards; unlike `tenants`, fail if one does not respond."""
        results = await self._routing.all_shards(lambda store: store.audit.tenants())
        return sorted(set(itertools.chain(*results.values())))
