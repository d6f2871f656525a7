"""A server that returns what a test prescribes, and records the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

LOST = b""  # hang up without an answer


@dataclass
class Scripted:
    """Responses in order, the last one repeatedly."""

    answers: list[bytes]
    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                text = head.decode().lower()
                length = int(text.partition("content-length: ")[2].partition("\r")[0] or 0)
                self.heads.append(text)
                self.bodies.append(await reader.readexactly(length))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer == LOST:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() == 0 else writer.close()


@dataclass
class Disconnecting(Scripted):
    """Aborts the first request without a response; one that expects 100-continue gets a response to its head alone."""

    gone: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.heads.append(head)
        if "expect: 100-continue" in head:
            writer.write(self.answers[0])
        elif len(self.heads) == 1:
            await reader.readexactly(1000)
        else:
            await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r")[0]))
            writer.write(self.answers[1])
        if len(self.heads) > 1:
            await reader.read()  # until they hang up
        writer.transport.abort()
        self.gone.release()


def answer(status: int, body: str = "{}", **headers: str) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def hanging_up(asked: bytes, then: bytes = LOST) -> AsyncIterator[Scripted]:
    script = Disconnecting([asked, then])
    async with _listening(script):
        yield script
        for _ in script.heads:
            await script.gone.acquire()


@asynccontextmanager
async def scripted(answers: Sequence[bytes]) -> AsyncIterator[Scripted]:
    async with _listening(Scripted(list(answers))) as script:
        yield script


@asynccontextmanager
async def _listening(script: Scripted) -> AsyncIterator[Scripted]:
    server = await asyncio.start_server(script.connected, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
        await server.wait_closed()
