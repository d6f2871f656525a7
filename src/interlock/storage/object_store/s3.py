"""Objects in an S3-compatible bucket or in memory, accessed with obstore."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, S3Store

from interlock.errors import Invalid, Unavailable

PART: Final = 5 * 1024 * 1024  # the smallest part that S3 accepts in a multipart upload
PARTS_BATCH_SIZE: Final = 2
READ_BATCH_SIZE: Final = 2 * 1024 * 1024
_TIMEOUTS: Final = timedelta(seconds=30)


class S3Objects:
    """One object per key, under a prefix; credentials, region and endpoint come from the AWS_* variables."""

    def __init__(self, store: S3Store | MemoryStore, where: str) -> None:
        self.where = where
        self._store = store

    @classmethod
    def s3(cls, url: str) -> S3Objects:
        """Use the bucket and prefix of an s3:// URL."""
        try:
            store = S3Store.from_url(
                url,
                client_options={
                    "timeout": _TIMEOUTS,
                    "connect_timeout": timedelta(seconds=5),
                    "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
                },
                retry_config={"max_retries": 3, "retry_timeout": _TIMEOUTS},
            )
        except (BaseError, ValueError) as error:
            raise Invalid(f"artifacts cannot be kept in {url}: {_summary(error)}", pointer="/artifacts") from error
        return cls(store, url)

    @classmethod
    def in_memory(cls) -> S3Objects:
        """Use memory: objects are lost with the process, like an in-memory database."""
        return cls(MemoryStore(), "memory")

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        start = bytearray()
        async for chunk in chunks:
            start += chunk
            if len(start) > PART:
                break
        with self._explained(FileNotFoundError):
            if len(start) <= PART:
                await self._store.put_async(key, bytes(start), use_multipart=False)
            else:
                await self._store.put_async(
                    key, _chained(bytes(start), chunks), chunk_size=PART, max_concurrency=PARTS_BATCH_SIZE
                )

    async def get(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the object in chunks, one request each, so that a slow reader does not hold a connection."""
        while start < end:
            with self._explained():
                piece = bytes(
                    await self._store.get_range_async(key, start=start, end=min(end, start + READ_BATCH_SIZE))
                )
            if not piece:
                raise FileNotFoundError(f"object {key} ends at byte {start}")
            yield piece
            start += len(piece)

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            with self._explained(FileNotFoundError):  # the bucket is missing: a missing object does not raise
                await self._store.delete_async(list(keys))

    async def close(self) -> None:
        """Do nothing: there are no open connections."""

    @contextmanager
    def _explained(self, *also: type[Exception]) -> Iterator[None]:
        try:
            yield
        except (BaseError, *also) as error:  # type: ignore[misc]
            raise Unavailable(
                f"{self.where} is unavailable: {_summary(error)}", public="the artifact storage is unavailable"
            ) from error


async def _chained(start: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for chunk in rest:
        yield chunk


def _summary(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
