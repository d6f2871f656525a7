from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.storage.contract import Store
from interlock.storage.merged import merged


@pytest.fixture
def who() -> Principal:
    return local("acme")


@pytest.fixture
async def interlock_engine(store: Store) -> AsyncIterator[Engine]:
    """An engine over a fresh store of each kind; the store closes itself."""
    engine = Engine(merged(store))
    yield engine
    await engine.upkeep.stop()
