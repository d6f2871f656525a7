from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from interlock.storage.contract import Store
from tests.contract_clients.served import served_app
from tests.support.apps import StoreApp
from tests.support.stores import ManualClock


@pytest.fixture(params=["embedded", "over http"])
async def app(request: pytest.FixtureRequest, store: Store, clock: ManualClock) -> AsyncIterator[StoreApp]:
    """An app without tasks on a fresh store of each engine, with a clock that stands still until moved.

    Its jobs are in this process or behind a server; workers behave alike on both.
    """
    if request.param == "over http":
        async with served_app(store, clock) as made:
            yield made
        return
    made = StoreApp(store)
    yield made
    await made.close()
