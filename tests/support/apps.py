"""An app over a store that a test has opened, and workers on it that end with the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.domain.job import Job
from interlock.domain.principal import local
from interlock.engine.engine import Engine
from interlock.sdk.app import App
from interlock.storage.batching import batched
from interlock.storage.contract import Objects, Store
from interlock.wire import LIMITS, Limits
from interlock.worker.loop import Worker
from tests.support.eventually import eventually

TENANT = "acme"
HEARTBEAT_SECONDS = 0.02


class BorrowedStoreClient(LocalClient):
    """A client of a store that its test will close."""

    async def close(self) -> None:
        await self.engine.maintenance.stop()
        await self.engine.waits.stop()
        await self.engine.workers.stop()


class StoreApp(App):
    """Tasks whose jobs live in the store under test."""

    def __init__(self, store: Store, objects: Objects | None = None, limits: Limits = LIMITS) -> None:
        self.store = store
        self.engine = Engine(batched(store), objects=objects, limits=limits)
        super().__init__(self._lodge)

    async def _lodge(self) -> Client:
        return BorrowedStoreClient(self.engine, local(TENANT))

    async def drain(self, **options: Any) -> int:
        """Run what is due; how many runs that took."""
        return await self.worker(**options).run(drain=True)

    def worker(self, **options: Any) -> Worker:
        return Worker(self, **{"heartbeat_interval": HEARTBEAT_SECONDS, "name": "w1", **options})

    @contextlib.asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker for as long as the block lasts; its own errors fail the test."""
        worker = self.worker(**options)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop(now=True)
            await running

    async def job(self, id: str) -> Job:  # type: ignore[override]
        (job,) = await self.store.get(TENANT, [id])
        assert job is not None
        return job

    async def until(self, id: str, *statuses: str) -> Job:
        """The job, once it has come to one of these statuses."""

        async def there() -> bool:
            return (await self.job(id)).status in statuses

        await eventually(there)
        return await self.job(id)
