"""Connections between the programs of a cluster that can drop everything: no side is notified, and none is closed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tests.api.toxic_proxy import Toxic, ToxicProxy


class Proxies:
    """Proxies by the name of their owner, in a separate thread: a cluster starts while the test waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._lines: dict[str, dict[int, ToxicProxy]] = defaultdict(dict)
        self._servers: list[asyncio.Server] = []

    def way(self, owner: str, port: int) -> int:
        """The port of a line to a port of this machine; the same one when asked again."""
        if port not in self._lines[owner]:
            self._lines[owner][port] = self._do(self._open(port)).result()
        return self._lines[owner][port].port

    def drop_all(self, owner: str) -> None:
        """Drop all data on the connections of one owner, in both directions, as if a cable had been pulled."""
        self._become(owner, Toxic.SILENCE)

    def restore(self, owner: str) -> None:
        self._become(owner, Toxic.NONE)

    def close(self) -> None:
        self._do(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _become(self, owner: str, toxic: Toxic) -> None:
        async def become() -> None:
            for line in self._lines[owner].values():
                line.become(toxic)

        self._do(become()).result()

    async def _open(self, port: int) -> ToxicProxy:
        line = ToxicProxy(f"postgresql://nobody@127.0.0.1:{port}/")
        server = await asyncio.start_server(line.connected, "127.0.0.1", 0)
        line.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return line

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for lines in self._lines.values():
            for line in lines.values():
                await line.close()

    def _do(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


@contextmanager
def lines() -> Iterator[Proxies]:
    made = Proxies()
    try:
        yield made
    finally:
        made.close()
