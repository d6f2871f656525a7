"""Chores over several shards: each has a share of what a step may take, and nothing is left behind for that."""

from __future__ import annotations

import hashlib

from interlock.domain.token import NewToken
from interlock.engine.retention import STEP, Retention
from interlock.storage.shards.opening import open_router
from interlock.wire import new_id
from tests.support.shards import resident
from tests.support.stores import ManualClock


async def test_what_is_to_go_goes_although_all_of_it_is_on_one_shard(
    addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_router(addresses, size=2, clock=clock)
    try:
        tenant = resident("b", "many tokens")
        hashes = [hashlib.sha256(f"{number}".encode()).digest() for number in range(STEP + 1)]
        await router.create_tokens(
            tenant, [NewToken(new_id(), hash, ("read",), "user:ada", expires_in_seconds=1.0) for hash in hashes]
        )
        clock.advance(2 * 86_400)
        assert await Retention(router, days=1).forget_tokens() == STEP + 1
        assert await router.tokens(tenant, limit=1) == []
    finally:
        await router.close()
