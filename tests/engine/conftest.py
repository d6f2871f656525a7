from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.storage.contract import Store
from interlock.storage.merged import merged
from interlock.storage.objects.directory import Directory
from tests.engine.issuers import World
from tests.support.artifacts import LIMITS


@pytest.fixture
def who() -> Principal:
    return local("acme")


@pytest.fixture
async def interlock_engine(store: Store) -> AsyncIterator[Engine]:
    """An engine over a fresh store of each kind; the store closes itself."""
    engine = Engine(merged(store))
    yield engine
    await engine.upkeep.stop()
    await engine.workers.stop()


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    objects = Directory(tmp_path / "artifacts")
    yield objects
    await objects.close()


@pytest.fixture
def files(store: Store, directory: Directory) -> Engine:
    """An engine on each kind of store, with artifacts in a directory; both are closed by their own fixtures."""
    return Engine(merged(store), LIMITS, objects=directory)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the artifacts, looked at from outside."""
    return tmp_path / "artifacts"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An issuer that is trusted, with a site and a time of its own."""
    made = World()
    yield made
    await made.issuers.close()
