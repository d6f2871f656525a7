"""Databases that are shards of one service: created once per process, and copied for each test that needs them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from urllib.parse import urlsplit

from interlock.domain.shards import first_shard
from interlock.storage.shards.add_shard import add_shard
from tests.support.emptied import copy_database, lent_database
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import TEMPLATE

SHARDS: Final = ("a", "b")

_made: set[str] = set()


def resident(shard: str, name: str) -> str:
    """A tenant of about this name that is placed on a shard."""
    names = (name if i == 0 else f"{name}-{i}" for i in itertools.count())
    return next(tenant for tenant in names if first_shard(tenant, SHARDS) == shard)


@contextmanager
def copied_shards(postgres: Postgres) -> Iterator[dict[str, str]]:
    """Two migrated databases by the names of their shards."""
    templates = asyncio.run(_templates(postgres))
    with contextlib.ExitStack() as lent:
        yield {shard: lent.enter_context(lent_database(postgres, templates[shard])) for shard in SHARDS}


async def _templates(postgres: Postgres) -> dict[str, str]:
    templates = {shard: f"{TEMPLATE}_{shard}" for shard in SHARDS}
    if TEMPLATE not in _made:
        for template in templates.values():
            await copy_database(postgres, template, TEMPLATE)
        for shard in SHARDS:
            await add_shard({name: postgres.dsn(template, user=OWNER) for name, template in templates.items()}, shard)
        _made.add(TEMPLATE)
    return templates


class Link:
    """The connection to a server: it can be cut (no client gets through) or stalled (none gets a response)."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._cut = True
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        self._flows.clear()

    def restore(self) -> None:
        self._cut = False
        self._flows.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, there_writer}
        try:
            await asyncio.gather(self._pass_on(reader, there_writer), self._pass_on(there_reader, writer))
        finally:
            self._open -= {writer, there_writer}
            self._tasks.discard(task)

    async def close(self) -> None:
        self.restore()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def wire_to(address: str) -> AsyncIterator[tuple[Link, str]]:
    """A wire to the server of an address, and the address of its near end."""
    parts = urlsplit(address)
    wire = Link(parts.port or 5432)
    server = await asyncio.start_server(wire.connected, "127.0.0.1", 0)
    login, at, _ = parts.netloc.rpartition("@")
    near = parts._replace(netloc=f"{login}{at}127.0.0.1:{server.sockets[0].getsockname()[1]}").geturl()
    try:
        yield wire, near
    finally:
        server.close()
        await wire.close()
        await server.wait_closed()
