"""Every client there is: in process and over HTTP, each on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.api.options import Options
from interlock.client.http import HttpClient
from interlock.client.local import LocalClient
from interlock.domain.principal import local
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from tests.api.conftest import store  # noqa: F401 - a fixture
from tests.api.rig import Api, serving
from tests.contract.conftest import database, place  # noqa: F401 - fixtures
from tests.contract_clients.remote_cli import ClientUnderTest
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock

_numbers = itertools.count(1)


@pytest.fixture
def tenant() -> str:
    """One that no other test has used."""
    return f"client-{next(_numbers)}"


@pytest.fixture
async def api(store: Store, clock: ManualClock, tenant: str, tmp_path: Path) -> AsyncIterator[Api]:  # noqa: F811
    """A server without auth."""
    async with serving(store, clock, Options(tenant=tenant), objects=FileObjects(tmp_path / "files")) as served:
        yield served


@pytest.fixture
async def guarded(store: Store, clock: ManualClock, tenant: str, tmp_path: Path) -> AsyncIterator[Api]:  # noqa: F811
    """A server that asks for a token."""
    options = Options(auth=True, tenant=tenant)
    async with serving(store, clock, options, objects=FileObjects(tmp_path / "files")) as served:
        yield served


@pytest.fixture
async def http(api: Api, clock: ManualClock, tenant: str) -> AsyncIterator[ClientUnderTest]:
    """A client that talks to a server."""
    client = HttpClient(api.url, retry_seconds=RETRY_SECONDS)
    yield ClientUnderTest(client, api.engine, clock, tenant)
    await client.close()


@pytest.fixture(params=["in process", "over http"])
async def remote(
    request: pytest.FixtureRequest, api: Api, clock: ManualClock, tenant: str
) -> AsyncIterator[ClientUnderTest]:
    """A client of every kind. The one in process shares the engine of the server, so that both see one queue."""
    if request.param == "over http":
        client = HttpClient(api.url, retry_seconds=RETRY_SECONDS)
        yield ClientUnderTest(client, api.engine, clock, tenant)
        await client.close()
    else:
        yield ClientUnderTest(LocalClient(api.engine, local(tenant)), api.engine, clock, tenant)
