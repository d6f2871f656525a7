"""An app whose jobs are behind a server, for tests that must not depend on that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from interlock.api.options import Options
from interlock.client.http import HttpClient
from interlock.client.port import Client
from interlock.storage.contract import Objects, Store
from tests.api.rig import serving
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock


@asynccontextmanager
async def served_app(store: Store, clock: ManualClock, objects: Objects | None = None) -> AsyncIterator[StoreApp]:
    """The app of the tests of workers, connected over HTTP; the server runs maintenance."""
    async with serving(store, clock, Options(tenant=TENANT), objects=objects) as api:

        async def connect() -> Client:
            return HttpClient(api.url, retry_seconds=RETRY_SECONDS)

        app = StoreApp(store, objects)
        app._connect_by(connect)
        api.engine.maintenance.start()
        try:
            yield app
        finally:
            await app.close()
            await api.engine.maintenance.stop()
