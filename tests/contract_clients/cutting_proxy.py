"""Something between a client and a server that cuts connections at arbitrary bytes, in either direction."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CuttingProxy:
    """A proxy. Each connection lets some bytes through in each direction and is then cut."""

    def __init__(self, port: int, *, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self.cuts = 0
        self.url = ""

    def budget(self) -> int:
        """How many bytes pass before the cut: often few, so that heads are hit, at times enough for any answer."""
        return int(2 ** self._chance.uniform(0, 17))

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[writer] = task
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
            ways = [
                asyncio.create_task(_pass_on(reader, there_writer, self.budget())),
                asyncio.create_task(_pass_on(there_reader, writer, self.budget())),
            ]
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            self.cuts += any(way.result() for way in done)
            there_writer.transport.abort()
            writer.transport.abort()
            await asyncio.wait(ways)
        finally:
            del self._open[writer]

    async def close(self) -> None:
        tasks = list(self._open.values())
        for writer in self._open:
            writer.transport.abort()
        if tasks:
            await asyncio.wait(tasks)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int) -> bool:
    """Bytes in one direction; whether they were cut off."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data[:budget])
            await writer.drain()
            budget -= len(data)
            if budget <= 0:
                return True
    return False


@asynccontextmanager
async def cutting(port: int, *, seed: int) -> AsyncIterator[CuttingProxy]:
    """A cutter in front of a port for as long as the block lasts; the seed decides where it cuts."""
    cutter = CuttingProxy(port, seed=seed)
    server = await asyncio.start_server(cutter.connected, "127.0.0.1", 0)
    cutter.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
        await server.wait_closed()
