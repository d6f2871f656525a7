"""A tenant of two shards, and the superusers of their databases, who alone may move it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from interlock.storage.shards.factory import open_sharded_store
from tests.contract.builders import TenantQueue
from tests.support.postgres import Postgres
from tests.support.shards import resident
from tests.support.stores import APP_LOGIN, ManualClock


@pytest.fixture
def owners(shards: dict[str, str], postgres: Postgres) -> dict[str, str]:
    return {name: postgres.dsn(database) for name, database in shards.items()}


@pytest.fixture
def addresses(shards: dict[str, str], postgres: Postgres) -> dict[str, str]:
    return {name: postgres.dsn(database, user=APP_LOGIN) for name, database in shards.items()}


@pytest.fixture
async def queue(addresses: dict[str, str], clock: ManualClock, tenant: str) -> AsyncIterator[TenantQueue]:
    """A tenant that lives on shard a, through a router that hardly remembers."""
    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        yield TenantQueue(router, resident("a", tenant), clock)
    finally:
        await router.close()
