"""A real HTTP receiver on a port of this machine that behaves as a test prescribes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from interlock.domain.webhook_url import Allowance


class Seen(NamedTuple):
    """One request as it came in."""

    line: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


def responds(status: int, headers: str = "", body: bytes = b"") -> Answer:
    """Answer with a status code."""

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


def sends(raw: bytes) -> Answer:
    """Respond with exactly these bytes."""

    async def answer(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return answer


async def hang(_seen: Seen, _writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


class Receiver:
    """Keeps everything it gets; `answer` may be changed at any time."""

    def __init__(self, scheme: str, host: str, port: int) -> None:
        self.address, self.port = host, port
        self.url = f"{scheme}://{host}:{port}/hook"
        self.allowance = Allowance.of([f"{host}:{port}"])
        self.answer: Answer = responds(200)
        self.connections = 0
        self.under_way = 0
        self.most_at_once = 0
        self.seen: list[Seen] = []

    @property
    def ids(self) -> list[str]:
        return [seen.headers["webhook-id"] for seen in self.seen]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            seen = await self._request(reader)
            self.seen.append(seen)
            await self.answer(seen, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            self.under_way -= 1
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _request(self, reader: asyncio.StreamReader) -> Seen:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest if row)}
        return Seen(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@asynccontextmanager
async def receiver(
    *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver for as long as the block lasts."""
    calls: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Known from its first moment, so that none is left open at the end; one may still come after it."""
        if not server.is_serving():
            writer.transport.abort()
            return
        task = asyncio.create_task(made.serve(reader, writer))
        calls[task] = writer
        task.add_done_callback(calls.pop)

    server = await asyncio.start_server(begin, host, port, ssl=tls)
    made = Receiver("http" if tls is None else "https", host, server.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        # A server that is closed while asyncio accepts a connection leaves it open, so the listener is closed first.
        for adapter in server.sockets:
            asyncio.get_running_loop().remove_reader(adapter)
        for _ in range(3):
            await asyncio.sleep(0)
        server.close()
        left = dict(calls)
        for task, writer in left.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*left, *(writer.wait_closed() for writer in left.values()), return_exceptions=True)
        await server.wait_closed()
