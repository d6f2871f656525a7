"""Something between a client and a server that cuts connections at arbitrary bytes, in either direction."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cutter:
    """A proxy. Each connection lets some bytes through in each direction and is then cut, or lives on."""

    def __init__(self, port: int, *, seed: int, spared: float, most_bytes: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._spared = spared
        self._most_bytes = most_bytes
        self._open: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.url = ""

    def budget(self) -> int | None:
        """How many bytes pass before the cut; None for all."""
        return None if self._chance.random() < self._spared else self._chance.randrange(self._most_bytes)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(_pass_on(reader, there_writer, self.budget())),
            asyncio.create_task(_pass_on(there_reader, writer, self.budget())),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            self.cuts += any(way.result() for way in done)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            there_writer.transport.abort()
            self._open.discard(task)

    async def close(self) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> bool:
    """Bytes in one direction; whether they were cut off."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            if budget is not None and len(data) >= budget:
                writer.write(data[:budget])
                await writer.drain()
                return True
            budget = None if budget is None else budget - len(data)
            writer.write(data)
            await writer.drain()
    return False


@asynccontextmanager
async def cutting(port: int, *, seed: int, spared: float = 0.5, most_bytes: int = 4000) -> AsyncIterator[Cutter]:
    """A cutter in front of a port for as long as the block lasts; the seed decides where it cuts."""
    cutter = Cutter(port, seed=seed, spared=spared, most_bytes=most_bytes)
    server = await asyncio.start_server(cutter.connected, "127.0.0.1", 0)
    cutter.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
        await server.wait_closed()
