from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from interlock.storage.contract import Store
from interlock.testing import interlock_app as interlock_app
from tests.support.apps import StoreApp


@pytest.fixture
async def app(store: Store) -> AsyncIterator[StoreApp]:
    """An app without tasks on a fresh store of each engine, with a clock that stands still until moved."""
    made = StoreApp(store)
    yield made
    await made.close()
