"""Upload stream: counted, hashed, and aborted when it is too large, too slow, or differs from its declaration."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

from interlock.domain.artifact import STALLED_SECONDS, UPLOAD_SECONDS
from interlock.errors import Invalid, TooLarge, Unavailable

PIECE: Final = 256 * 1024  # hashed in one call; small enough not to block the event loop


class UploadReader:
    """One upload. Its size and digest are valid once the stream has ended."""

    def __init__(self, limit: int, *, size: int | None = None, sha256: bytes | None = None) -> None:
        if size is not None and size < 0:
            raise Invalid("size must not be negative", pointer="/size")
        self.size = 0
        self.announced = size or 0
        self._limit = limit
        self._wanted_size, self._wanted_sha256 = size, sha256
        self._hash = hashlib.sha256()
        self._refuse_beyond(size or 0)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    async def of(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yield the same bytes in chunks, checking all limits and declared values."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UPLOAD_SECONDS
        source = aiter(chunks)
        while True:
            try:
                # Raise inside the stream, so that its consumer sees the error and cleans up.
                async with asyncio.timeout_at(min(deadline, loop.time() + STALLED_SECONDS)):
                    chunk = await anext(source)
            except StopAsyncIteration:
                break
            except TimeoutError:
                stalled = "the upload has stalled or takes too long; nothing was kept, try again"
                raise Unavailable(stalled, public=stalled) from None
            self._count(len(chunk))
            for start in range(0, len(chunk), PIECE):
                piece = chunk[start : start + PIECE]
                self._hash.update(piece)
                yield piece
        self._compare()

    def _count(self, more: int) -> None:
        self.size += more
        self._refuse_beyond(self.size)
        if self._wanted_size is not None and self.size > self._wanted_size:
            raise Invalid(f"more than the {self._wanted_size} bytes that were announced came", pointer="/size")

    def _refuse_beyond(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge("the artifact", size, self._limit)

    def _compare(self) -> None:
        if self._wanted_size is not None and self.size != self._wanted_size:
            raise Invalid(f"{self._wanted_size} bytes were announced, {self.size} came", pointer="/size")
        if self._wanted_sha256 is not None and self.digest != self._wanted_sha256:
            raise Invalid("the bytes that came do not have the SHA-256 that was announced", pointer="/sha256")
