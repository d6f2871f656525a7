"""Sharded tokens: new ones go to the shard for new jobs of their tenant."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from interlock.domain.job import Rejected
from interlock.domain.token import NewToken, Token, TokenUse
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard

PAGE: Final = 500


class ShardedTokens:
    """Routes the calls of tokens."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def create(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        return await self._routing.home(tenant, lambda store: store.tokens.create(tenant, tokens))

    async def find(self, hash: bytes) -> TokenUse | None:
        return await self._routing.ask_all(lambda store: store.tokens.find(hash), lambda seen: seen.token.tenant)

    async def page(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        async def go(shards: list[Shard]) -> list[Token]:
            if len(shards) == 1:
                return await shards[0].run(lambda store: store.tokens.page(tenant, before=before, limit=limit))
            lists = await asyncio.gather(*(shard.run(lambda store: _every_token(store, tenant)) for shard in shards))
            every = sorted(itertools.chain(*lists), key=attrgetter("created_at", "id"), reverse=True)
            ids = [token.id for token in every]
            first = 0 if before is None else ids.index(before) + 1 if before in ids else len(ids)
            return every[first : first + limit]

        return await self._routing.routed(tenant, go)

    async def revoke(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        results = await self._routing.each(
            tenant, lambda store: store.tokens.revoke(tenant, ids, actor=actor, of_workers=of_workers)
        )
        return [next((a for a in some if isinstance(a, Token)), some[0]) for some in zip(*results, strict=True)]

    async def forget(self, older_than_seconds: float, limit: int) -> int:
        return await self._routing.share(
            "forget_tokens", limit, lambda store, some: store.tokens.forget(older_than_seconds, some)
        )

    async def touch(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        return sum(
            await self._routing.each(
                tenant, lambda store: store.tokens.touch(tenant, ids, older_than_seconds=older_than_seconds)
            )
        )

    async def signing_key(self) -> bytes:
        return await self._routing.on_first_shard(lambda store: store.tokens.signing_key())


async def _every_token(store: PostgresStore, tenant: str) -> list[Token]:
    """Read all tokens: only a token's own shard can resume a list after it, so pages of two shards cannot be merged."""
    found: list[Token] = []
    while page := await store.tokens.page(tenant, before=found[-1].id if found else None, limit=PAGE):
        found += page
    return found
