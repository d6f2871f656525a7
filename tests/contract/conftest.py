"""Fixtures of the contract suite: a store of either engine, a tenant per test, and direct SQL connections.

Tests of one file share a PostgreSQL database, each under its own tenant, and the connections to it: to make either costs
more than most tests. Over shards they share two, and by their names about half of the tenants live on each. What is
about history runs once more over a database where it is partitioned.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from interlock.domain.shards import first_shard
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import TenantQueue
from tests.contract.connections import MASTER, SqlConnection, open_connection
from tests.support.emptied import lent_database
from tests.support.loops import share_the_loop_of_their_file
from tests.support.partitions import partitioned_database
from tests.support.postgres import Postgres
from tests.support.shards import SHARDS, copied_shards, resident
from tests.support.stores import APP_LOGIN, ENGINES, TEMPLATE, ManualClock, migrated_file, opened

PARTITIONED: Final = "partitioned"
ABOUT_HISTORY: Final = frozenset(
    {
        "test_audit",
        "test_audit_parts",
        "test_catalog",
        "test_chains",
        "test_edges_by_verbs",
        "test_history",
        "test_prune",
    }
)
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that use the store of a file run in the event loop of that file."""
    items[:] = [item for item in items if _engine_of(item) != PARTITIONED or _is_about_history(item)]
    ours = (item for item in items if Path(__file__).parent in item.path.parents)
    share_the_loop_of_their_file(item for item in ours if "store" in getattr(item, "fixturenames", ()))


def _is_about_history(item: pytest.Item) -> bool:
    return item.path.stem in ABOUT_HISTORY and "store" in getattr(item, "fixturenames", ())


def _engine_of(item: pytest.Item) -> object:
    """The engine that a test is to run over, if it is one of several."""
    return (
        item.callspec.params.get("engine") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    """The name of a PostgreSQL database for the tests of one file."""
    with lent_database(postgres, TEMPLATE) as name:
        yield name


@pytest.fixture(params=(*ENGINES, "shards", PARTITIONED))
def engine(request: pytest.FixtureRequest) -> str:
    """The name of the engine under test; shards are two databases of PostgreSQL, partitioned is one."""
    return str(request.param)


@pytest.fixture(scope="module")
def shards(postgres: Postgres) -> Iterator[dict[str, str]]:
    """The databases of the shards for the tests of one file, by name."""
    with copied_shards(postgres) as databases:
        yield databases


@pytest.fixture(scope="module")
def partitioned(postgres: Postgres) -> Iterator[str]:
    """The same, with history partitioned."""
    with partitioned_database(postgres) as name:
        yield name


@pytest.fixture
def place(engine: str, tenant: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the tenant's jobs are kept: the path of a file, or the name of a database."""
    if engine == "sqlite":
        return migrated_file(tmp_path / "interlock.db")
    if engine == "shards":
        return str(request.getfixturevalue("shards")[first_shard(tenant, SHARDS)])
    return str(request.getfixturevalue(PARTITIONED if engine == PARTITIONED else "database"))


class Watch:
    """Returns the time of the running test, for stores that outlive one test."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    def __call__(self) -> int:
        return self.clock.now


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest_asyncio.fixture(loop_scope="module")
async def sqlite_store(place: str, clock: ManualClock) -> AsyncIterator[Store]:
    async with opened(SQLiteStore.open(place, clock=clock)) as store:
        yield store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def postgres_store(database: str, watch: Watch, postgres: Postgres) -> AsyncIterator[Store]:
    async with opened(PostgresStore.open(postgres.dsn(database, user=APP_LOGIN), size=2, clock=watch)) as store:
        yield store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def partitioned_store(partitioned: str, watch: Watch, postgres: Postgres) -> AsyncIterator[Store]:
    async with opened(PostgresStore.open(postgres.dsn(partitioned, user=APP_LOGIN), size=2, clock=watch)) as store:
        yield store


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shards_store(shards: dict[str, str], watch: Watch, postgres: Postgres) -> AsyncIterator[Store]:
    addresses = {name: postgres.dsn(database, user=APP_LOGIN) for name, database in shards.items()}
    async with opened(open_sharded_store(addresses, size=2, clock=watch)) as store:
        yield store


@pytest.fixture
def store(engine: str, clock: ManualClock, watch: Watch, request: pytest.FixtureRequest) -> Store:
    """A store on either engine, on PostgreSQL as the app role, with a clock that stands still until moved."""
    watch.clock = clock
    opened: Store = request.getfixturevalue(f"{engine}_store")
    return opened


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test has used."""
    return f"tenant-{next(_numbers)}"


@pytest.fixture
def queue(store: Store, tenant: str, clock: ManualClock) -> TenantQueue:
    return TenantQueue(store, tenant, clock)


@pytest.fixture
def rival(store: Store, tenant: str, clock: ManualClock) -> TenantQueue:
    """Another tenant of the same store; where there are two shards, it lives on the other one."""
    other = SHARDS[first_shard(tenant, SHARDS) == SHARDS[0]]
    return TenantQueue(store, resident(other, f"{tenant}-rival"), clock)


@pytest.fixture
def neighbour(store: Store, tenant: str, clock: ManualClock) -> TenantQueue:
    """Another tenant in the same database."""
    return TenantQueue(store, resident(first_shard(tenant, SHARDS), f"{tenant}-neighbour"), clock)


@pytest.fixture
def connection_name(engine: str) -> str:
    """The connection to try."""
    return MASTER[engine]


@pytest_asyncio.fixture(loop_scope="module")
async def sql(
    connection_name: str, place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[SqlConnection]:
    """Direct SQL, by default as a user with all rights."""
    async with open_connection(connection_name, place=place, tenant=tenant, clock=clock, postgres=postgres) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def master(
    engine: str, place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[SqlConnection]:
    """The connection that brings a job into a status that no operation leads to."""
    async with open_connection(MASTER[engine], place=place, tenant=tenant, clock=clock, postgres=postgres) as opened:
        yield opened
