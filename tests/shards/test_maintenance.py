"""Maintenance over several shards: each has a share of the limit of a step, and nothing is left behind."""

from __future__ import annotations

import hashlib

import pytest

from interlock.domain.token import NewToken
from interlock.engine.retention import STEP, Retention
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.tenant_move import Mover
from interlock.wire import new_id
from tests.contract.builders import TenantQueue, complete
from tests.support.shards import resident
from tests.support.stores import ManualClock


async def test_a_prune_reaches_its_limit_although_all_jobs_are_on_one_shard(
    addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_sharded_store(addresses, size=2, clock=clock)
    try:
        tenant = resident("b", "many tokens")
        hashes = [hashlib.sha256(f"{number}".encode()).digest() for number in range(STEP + 1)]
        await router.tokens.create(
            tenant, [NewToken(new_id(), hash, ("read",), "user:ada", expires_in_seconds=1.0) for hash in hashes]
        )
        clock.advance(2 * 86_400)
        assert await Retention(router, days=1).forget_tokens() == STEP + 1
        assert await router.tokens.page(tenant, limit=1) == []
    finally:
        await router.close()


async def test_a_moving_tenant_does_not_block_the_deletion_of_other_tenants_jobs(
    addresses: dict[str, str], owners: dict[str, str], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(point: str) -> None:
        if point == "leaving":
            raise Stop

    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        moving, staying = (TenantQueue(router, resident("a", name), clock) for name in ("kept, as it moves", "let go"))
        for queue in (moving, staying):
            await queue.do(complete(await queue.running()))
        with pytest.raises(Stop):
            await Mover(owners, stale_seconds=0.02, at=stop).move(moving.tenant, "b")
        monkeypatch.setattr("interlock.storage.shards.routing.MOVE_SECONDS", 0.0)
        clock.advance(2 * 86_400)
        assert await Retention(router, days=1).retain() == 1
        await Mover(owners, stale_seconds=0.02).move(moving.tenant, "b")
        assert await Retention(router, days=1).retain() == 1
    finally:
        await router.close()
