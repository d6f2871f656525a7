"""Where workers are measured: a fresh database of one engine, with apps over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import msgspec

from bench.plan import EngineName
from bench.workload import LOAD_BATCH_SIZE, payload
from interlock import wire
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.domain.principal import local
from interlock.engine.engine import Engine
from interlock.sdk.app import App
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import JobRequest
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, fresh_database

TYPE = "noop"
WORKERS = "default"
STORE = "store"
"""The tenant of the jobs that no worker takes: they are claimed and completed straight on the store."""


@dataclass
class Home:
    """One database: the store a worker uses, another one for producers elsewhere, and what tidies up after loading."""

    store: Store
    elsewhere: Store
    settle: Callable[[], Awaitable[None]]
    engines: list[Engine] = field(default_factory=list)

    def app(self) -> App:
        """An app on the store of workers."""
        client = self.client(self.store)

        async def connect() -> Client:
            return client

        return App(connect)

    def client(self, store: Store) -> LocalClient:
        engine = Engine(batched(store))
        self.engines.append(engine)
        return LocalClient(engine, local(WORKERS))

    async def load(self, count: int, *, tenant: str = WORKERS, type: str = TYPE, delay: float | None = None) -> None:
        """Add jobs, a thousand at a time; with a delay they are not due yet."""
        now = await self.store.now() if delay is not None else 0
        for start in range(0, count, LOAD_BATCH_SIZE):
            bodies = (msgspec.Raw(payload(i).encode()) for i in range(start, min(start + LOAD_BATCH_SIZE, count)))
            asked = [JobRequest(type=type, payload=body, delay_seconds=delay) for body in bodies]
            await self.store.enqueue(tenant, [wire.new_job(one, created_by="bench", now=now) for one in asked])

    async def rest(self) -> None:
        """Stop the chores that workers have started."""
        for engine in self.engines:
            await engine.maintenance.stop()
            await engine.workers.stop()


@asynccontextmanager
async def opened(engine: EngineName, server: Postgres | None) -> AsyncIterator[Home]:
    """A home on a fresh file, or on a fresh database of the server as the app role."""
    if server is None:
        async with _on_sqlite() as home:
            yield home
    else:
        async with _on_postgres(server) as home:
            yield home


@asynccontextmanager
async def _on_sqlite() -> AsyncIterator[Home]:
    async def nothing() -> None:
        pass

    with TemporaryDirectory(prefix="interlock-bench-") as directory:
        store = await SQLiteStore.open(str(Path(directory) / "bench.db"))
        home = Home(store, store, nothing)  # embedded: producers and workers are one process
        try:
            yield home
        finally:
            await home.rest()
            await store.close()


@asynccontextmanager
async def _on_postgres(server: Postgres) -> AsyncIterator[Home]:
    async with fresh_database(server) as name:

        async def vacuum() -> None:
            connection = await asyncpg.connect(server.dsn(name, user=OWNER))
            try:
                await connection.execute("vacuum analyze")
            finally:
                await connection.close()

        login = server.dsn(name, user=APP_LOGIN)
        store, elsewhere = await PostgresStore.open(login), await PostgresStore.open(login, size=2)
        home = Home(store, elsewhere, vacuum)
        try:
            yield home
        finally:
            await home.rest()
            await store.close()
            await elsewhere.close()
