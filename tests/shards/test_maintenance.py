"""Chores over several shards: each has a share of what a step may take, and nothing is left behind for that."""

from __future__ import annotations

import hashlib

import pytest

from interlock.domain.token import NewToken
from interlock.engine.retention import STEP, Retention
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.tenant_move import Mover
from interlock.wire import new_id
from tests.contract.builders import Desk, complete
from tests.support.shards import resident
from tests.support.stores import ManualClock


async def test_what_is_to_go_goes_although_all_of_it_is_on_one_shard(
    addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_sharded_store(addresses, size=2, clock=clock)
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


async def test_a_tenant_on_its_way_keeps_nobody_elses_jobs_from_being_deleted(
    addresses: dict[str, str], owners: dict[str, str], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(point: str) -> None:
        if point == "leaving":
            raise Stop

    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        moving, staying = (Desk(router, resident("a", name), clock) for name in ("kept, as it moves", "let go"))
        for remote in (moving, staying):
            await remote.do(complete(await remote.running()))
        with pytest.raises(Stop):
            await Mover(owners, stale_seconds=0.02, at=stop).move(moving.tenant, "b")
        monkeypatch.setattr("interlock.storage.shards.routing.MOVE_SECONDS", 0.0)
        clock.advance(2 * 86_400)
        assert await Retention(router, days=1).retain() == 1
        await Mover(owners, stale_seconds=0.02).move(moving.tenant, "b")
        assert await Retention(router, days=1).retain() == 1
    finally:
        await router.close()
