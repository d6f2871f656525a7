"""Something between the service and its database that cuts, delays, refuses or swallows what passes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from urllib.parse import urlsplit


class Toxic(Enum):
    """What the connection does to data that passes while it is set."""

    NONE = "none"
    CUT = "cut"  # every connection breaks after some bytes, at any position
    SLICES = "slices"  # a byte or a few at a time
    REFUSE = "refuse"  # no server is there
    SILENCE = "silence"  # connections stay open and nothing passes, as when a cable is pulled
    HALF_OPEN = "half-open"  # the caller's side breaks; the other stays open and gets neither data nor an end


class ToxicProxy:
    """A proxy in front of a database; what it does can be changed at any time, also to open connections."""

    def __init__(self, dsn: str, *, seed: int = 1) -> None:
        self._parts = urlsplit(dsn)
        self._chance = random.Random(seed)
        self._toxic = Toxic.NONE
        self._changed = asyncio.Event()
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self.cuts = 0
        self.port = 0

    @property
    def dsn(self) -> str:
        login = self._parts.netloc.rpartition("@")[0]
        return self._parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    def become(self, toxic: Toxic) -> None:
        """From now on; what was swallowed is lost, and its connections with it."""
        if toxic in (Toxic.REFUSE, Toxic.HALF_OPEN) or self._toxic in (Toxic.REFUSE, Toxic.SILENCE):
            self.cut_all()
        self._toxic = toxic
        self._changed.set()
        self._changed = asyncio.Event()

    def cut_all(self) -> None:
        self.cuts += len(self._open)
        for writer in self._open:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._toxic is Toxic.REFUSE:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[writer] = task
        there: asyncio.StreamWriter | None = None
        try:
            try:
                back, there = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            except OSError:  # no server is there, and the client learns that, too
                writer.transport.abort()
                return
            ways = [asyncio.create_task(self._pass_on(reader, there)), asyncio.create_task(self._pass_on(back, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            while self._toxic is Toxic.HALF_OPEN:
                await self._changed.wait()
            there.transport.abort()
        finally:
            del self._open[writer]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                while self._toxic is Toxic.SILENCE:
                    await self._changed.wait()
                if self._toxic is Toxic.CUT and self._chance.random() < 0.2:
                    self.cuts += 1
                    writer.write(data[: self._chance.randrange(len(data))])
                    return
                size = self._chance.randint(1, 40) if self._toxic is Toxic.SLICES else len(data)
                for start in range(0, len(data), size):
                    writer.write(data[start : start + size])
                    await writer.drain()
                    await asyncio.sleep(0)

    async def close(self) -> None:
        self.become(Toxic.REFUSE)
        if tasks := list(self._open.values()):
            await asyncio.wait(tasks)


@asynccontextmanager
async def toxic_proxy(dsn: str) -> AsyncIterator[ToxicProxy]:
    line = ToxicProxy(dsn)
    server = await asyncio.start_server(line.connected, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        server.close()
        await line.close()
        await server.wait_closed()
