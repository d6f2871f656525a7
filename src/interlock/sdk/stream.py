"""The writer of a stream: it buffers what a run writes and sends it in batches."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from interlock.domain.json_text import sanitize_text
from interlock.domain.stream import MAX_CHUNK_BYTES, NewChunk
from interlock.errors import Error
from interlock.sdk.sync import sync_version

INTERVAL_SECONDS: Final = 0.1  # between two batches
MAX_BATCH_BYTES: Final = 2 * MAX_CHUNK_BYTES  # fits into a request, also if each character needs an escape

Append = Callable[[str, int, tuple[NewChunk, ...]], Awaitable[int]]


class StreamWriter:
    """A stream of the running job. Writes are buffered and sent at most 0.1 s later, in order."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        append: Append,
        begin: Callable[[str], Awaitable[int]],
        check: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        self.name = name
        self._loop = loop
        self._append = append
        self._begin = begin
        self._check = check
        self._lock = threading.Lock()
        self._written: list[NewChunk] = []
        self._batch: list[NewChunk] = []  # taken from the buffer, not yet confirmed
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_scheduled = False
        self._next: int | None = None
        self._sent_at: float | None = None
        self._error: Error | None = None

    def write(self, data: str | bytes) -> None:
        """Append text or bytes. Returns immediately; an error of an earlier write is raised by the next one.

        Writes within 0.1 s become one chunk, and a chunk above 64 KiB is split.
        """
        if isinstance(data, str):
            chunk = NewChunk(sanitize_text(data)[0].encode(), True)
        elif isinstance(data, (bytes, bytearray, memoryview)):
            chunk = NewChunk(bytes(data), False)
        else:
            raise TypeError(f"data is {type(data).__name__}: expected str or bytes")
        with self._lock:
            if self._error is not None:
                raise self._error
            if not chunk.data:
                return
            self._written.append(chunk)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._loop.call_soon_threadsafe(self._start)

    async def flush(self) -> None:
        """Send what has been written, and return when it is stored."""
        async with self._sending:
            while self._error is None and self._take():
                self._sent_at = self._loop.time()
                try:
                    if self._next is None:
                        self._next = await self._begin(self.name)
                    self._next = await self._append(self.name, self._next, tuple(self._batch))
                except Error as error:
                    self._error = error
                self._batch.clear()
            if self._error is not None:
                raise self._error

    flush_sync = sync_version(flush)

    def _take(self) -> bool:
        """Move writes from the buffer to the batch; one that was interrupted is sent again as it was."""
        if not self._batch:
            with self._lock:
                written, self._written = self._written, []
            chunks, size = list(_chunks(written)), 0
            while chunks and (not self._batch or size + len(chunks[0].data) <= MAX_BATCH_BYTES):
                size += len(chunks[0].data)
                self._batch.append(chunks.pop(0))
            with self._lock:
                self._written[:0] = chunks
        return bool(self._batch)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._send())

    async def _send(self) -> None:
        """Send until the buffer is empty, a batch in each interval."""
        while True:
            if self._sent_at is not None:
                await asyncio.sleep(self._sent_at + INTERVAL_SECONDS - self._loop.time())
            with contextlib.suppress(Error):  # the next write raises it
                await self.flush()
            with self._lock:
                if not self._written or self._error is not None:
                    self._is_scheduled = False
                    return

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return self._check()


def _chunks(written: list[NewChunk]) -> Iterator[NewChunk]:
    """Join writes of one kind that follow each other, and split what is too large; text between characters."""
    i = 0
    while i < len(written):
        kind, parts = written[i].is_text, []
        while i < len(written) and written[i].is_text == kind:
            parts.append(written[i].data)
            i += 1
        data, start = b"".join(parts), 0
        while start < len(data):
            end = min(start + MAX_CHUNK_BYTES, len(data))
            while kind and end < len(data) and data[end] & 0xC0 == 0x80:
                end -= 1
            yield NewChunk(data[start:end], kind)
            start = end
