from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.tokens import Tokens
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import Limits
from tests.engine.deliveries import HERE
from tests.engine.issuers import World
from tests.engine.watched import Ticks, Watched
from tests.support.artifacts import LIMITS
from tests.support.eventually import RETRY_SECONDS
from tests.support.receiver import Receiver, receiver


@pytest.fixture
def who() -> Principal:
    return local("acme")


@pytest.fixture
async def interlock_engine(store: Store) -> AsyncIterator[Engine]:
    """An engine over a fresh store of each kind; the store closes itself."""
    engine = Engine(batched(store))
    yield engine
    await engine.maintenance.stop()
    await engine.workers.stop()


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[FileObjects]:
    objects = FileObjects(tmp_path / "artifacts")
    yield objects
    await objects.close()


@pytest.fixture
def files(store: Store, directory: FileObjects) -> Engine:
    """An engine on each kind of store, with artifacts in a directory; both are closed by their own fixtures."""
    return Engine(batched(store), LIMITS, objects=directory)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the artifacts, looked at from outside."""
    return tmp_path / "artifacts"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A trusted issuer, with its own site and clock."""
    made = World()
    yield made
    await made.issuers.close()


@pytest.fixture
async def queue(store: Store) -> AsyncIterator[Engine]:
    """An engine whose webhooks may reach this machine."""
    engine = Engine(store, Limits(webhooks=HERE), outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS))
    yield engine
    await engine.maintenance.stop()
    await engine.sender.stop()
    await engine.outside.close()


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def watched(store: Store) -> Watched:
    return Watched(store.tokens)


@pytest.fixture
async def tokens(watched: Watched, ticks: Ticks) -> AsyncIterator[Tokens]:
    made = Tokens(watched, ticks=ticks)
    yield made
    await made.close()
