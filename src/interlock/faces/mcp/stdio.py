"""Messages on standard input and output, for one client that has started this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from mcp import types
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from interlock.faces.mcp.api_client import Api
from interlock.faces.mcp.arguments import CANCELLED, message
from interlock.faces.mcp.server import server_for

LAST_ANSWERS_SECONDS: Final = 30.0  # for open requests when the input ends
READ_BYTES: Final = 64 * 1024


async def serve(native: Api, roles: frozenset[str], stop: asyncio.Event) -> None:
    """Serve until the input ends, which sets `stop`, or until `stop` is set; then answer the requests still open."""
    server = server_for(native, roles)
    open_requests = OpenRequests()
    lines: Any = StdinReader(sys.stdin.fileno(), open_requests, stop)
    async with stdio_server(stdin=lines) as (reading, writing):
        answers = _Answers(writing, open_requests)
        await server.run(reading, answers, server.create_initialization_options())


class OpenRequests:
    """The requests without a response."""

    def __init__(self) -> None:
        self._ids: set[int | str] = set()
        self._all_answered = asyncio.Event()

    def hear(self, text: str) -> None:
        """Record a request or its cancellation as the library will read it; unreadable messages get no response."""
        try:
            given = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValueError:
            return
        if isinstance(given, types.JSONRPCRequest):
            self._ids.add(given.id)
        elif isinstance(given, types.JSONRPCNotification) and given.method == CANCELLED:
            self.ends((given.params or {}).get("requestId"))

    def ends(self, id: Any) -> None:
        """Remove a request that was answered or cancelled; unknown IDs are ignored."""
        with contextlib.suppress(TypeError):
            self._ids.discard(id)
        if not self._ids:
            self._all_answered.set()

    async def answered(self) -> None:
        while self._ids:
            self._all_answered.clear()
            await self._all_answered.wait()


class StdinReader:
    """Lines from the client, read by a daemon thread, because a blocked read must not delay shutdown."""

    def __init__(self, fd: int, open_requests: OpenRequests, stop: asyncio.Event) -> None:
        self._fd = fd
        self._open = open_requests
        self._stop = stop

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

        def read() -> None:
            try:
                for line in _lines(self._fd):
                    asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
                asyncio.run_coroutine_threadsafe(lines.put(None), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # the event loop has ended

        threading.Thread(target=read, name="interlock-mcp-input", daemon=True).start()
        while (line := await self._next(lines)) is not None:
            given = message(line.decode(errors="replace"))
            self._open.hear(given.text)
            yield given.text
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                await self._open.answered()

    async def _next(self, lines: asyncio.Queue[bytes | None]) -> bytes | None:
        """Return the next line; None at the end of the input or on shutdown."""
        coming, stopping = asyncio.create_task(lines.get()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()


def _lines(fd: int) -> Iterator[bytes]:
    """Read without the interpreter's buffer: its lock would block interpreter exit while the thread is reading."""
    rest = b""
    while piece := os.read(fd, READ_BYTES):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


class _Answers:
    """The stream to the client; it records which requests have been answered."""

    def __init__(self, stream: Any, open_requests: OpenRequests) -> None:
        self._stream = stream
        self._open = open_requests

    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        self._open.ends(getattr(item.message, "id", None))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Answers:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._stream.__aexit__(*exception)
