"""Fixtures of the contract suite: a store of either engine, a tenant of one's own, and doors beside the verbs.

Tests of one file share a PostgreSQL database, each under its own tenant: making a database costs more than most tests.
Over shards they share two, and by their names about half of the tenants live on each.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from interlock.domain.shards import first_home
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.opening import open_router
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import Desk
from tests.contract.doors import MASTER, Door, open_door
from tests.support.postgres import Postgres
from tests.support.shards import SHARDS, copied_shards, resident
from tests.support.stores import APP_LOGIN, ENGINES, TEMPLATE, ManualClock

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    """The name of a PostgreSQL database for the tests of one file."""
    name = f"interlock_contract_{os.getpid()}_{next(_numbers)}"

    async def admin(statement: str) -> None:
        connection = await asyncpg.connect(postgres.dsn())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(admin(f"create database {name} template {TEMPLATE}"))
    yield name
    asyncio.run(admin(f"drop database {name} with (force)"))


@pytest.fixture(params=(*ENGINES, "shards"))
def engine(request: pytest.FixtureRequest) -> str:
    """The name of the engine under test; shards are two databases of PostgreSQL."""
    return str(request.param)


@pytest.fixture(scope="module")
def shards(postgres: Postgres) -> Iterator[dict[str, str]]:
    """The databases of the shards for the tests of one file, by name."""
    with copied_shards(postgres) as databases:
        yield databases


@pytest.fixture
def place(engine: str, tenant: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the tenant's jobs are kept: the path of a file, or the name of a database."""
    if engine == "sqlite":
        return str(tmp_path / "interlock.db")
    if engine == "shards":
        return str(request.getfixturevalue("shards")[first_home(tenant, SHARDS)])
    return str(request.getfixturevalue("database"))


@pytest.fixture
async def store(
    engine: str, place: str, clock: ManualClock, postgres: Postgres, request: pytest.FixtureRequest
) -> AsyncIterator[Store]:
    """A store on either engine, on PostgreSQL as the app role, with a clock that stands still until moved."""
    opened: Store
    if engine == "sqlite":
        opened = await SQLiteStore.open(place, clock=clock)
    elif engine == "shards":
        databases = request.getfixturevalue("shards")
        addresses = {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
        opened = await open_router(addresses, size=2, clock=clock)
    else:
        opened = await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=2, clock=clock)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test has used."""
    return f"tenant-{next(_numbers)}"


@pytest.fixture
def desk(store: Store, tenant: str, clock: ManualClock) -> Desk:
    return Desk(store, tenant, clock)


@pytest.fixture
def rival(store: Store, tenant: str, clock: ManualClock) -> Desk:
    """Another tenant of the same store; where there are two shards, it lives on the other one."""
    other = SHARDS[first_home(tenant, SHARDS) == SHARDS[0]]
    return Desk(store, resident(other, f"{tenant}-rival"), clock)


@pytest.fixture
def neighbour(store: Store, tenant: str, clock: ManualClock) -> Desk:
    """Another tenant in the same database."""
    return Desk(store, resident(first_home(tenant, SHARDS), f"{tenant}-neighbour"), clock)


@pytest.fixture
async def door(
    engine: str, place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[Door]:
    """Direct SQL as somebody who may do everything."""
    async with open_door(MASTER[engine], place=place, tenant=tenant, clock=clock, postgres=postgres) as opened:
        yield opened
