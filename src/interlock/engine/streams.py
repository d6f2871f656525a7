"""Streams of jobs: appended by lease holders, read by the tenant while the job runs and afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from interlock import wire
from interlock.domain.progress import LARGEST_NUMBER
from interlock.domain.stream import MAX_CHUNK_BYTES, Append, Chunk, StreamInfo
from interlock.engine.results import answered
from interlock.errors import Invalid, NotFound, TooLarge
from interlock.storage.contract import Store, streams_of
from interlock.wire import Limits

MAX_PAGE_SIZE: Final = 200
POLL_SECONDS: Final = 0.25  # for hints that were lost, and for the end of the job
QUIET_SECONDS: Final = 15.0


class StreamPage(NamedTuple):
    """Chunks in order; `next` is the `after` of the next page, `ended` is true if no chunk can follow."""

    chunks: list[Chunk]
    next: int
    ended: bool


class Streams:
    """Streams: written under the fence of a lease, readable by the whole tenant."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def append(self, tenant: str, append: Append) -> int:
        """Append chunks and return the next offset; the same append again returns the same offset."""
        wire.whole(append.fence, "fence", 0, LARGEST_NUMBER)
        wire.whole(append.offset, "offset", 0, LARGEST_NUMBER)
        wire.check_batch(append.chunks, self._limits, field="chunks")
        for i, chunk in enumerate(append.chunks):
            if not chunk.data:
                raise Invalid("chunk is empty: expected at least one byte", pointer=f"/chunks/{i}")
            if len(chunk.data) > MAX_CHUNK_BYTES:
                raise TooLarge("chunk", len(chunk.data), MAX_CHUNK_BYTES)
        checked = append._replace(
            id=wire.job_id(append.id), worker=wire.name(append.worker, "worker"), name=wire.name(append.name, "name")
        )
        return answered(await self._store.streams.append(tenant, checked, limit=self._limits.streams))

    async def of_job(self, tenant: str, job_id: str) -> list[StreamInfo]:
        """List the streams of a job by name."""
        id = wire.job_id(job_id)
        found = await self._store.streams.of_job(tenant, id)
        if not found and await self._store.has_ended(tenant, id) is None:
            raise NotFound(id)
        return found

    async def page(
        self, tenant: str, job_id: str, name: str, *, after: int = -1, limit: int = MAX_PAGE_SIZE
    ) -> StreamPage:
        """Read chunks with an offset above `after`."""
        wire.whole(after, "after", -1, LARGEST_NUMBER)
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        id = wire.job_id(job_id)
        ended = await self._store.has_ended(tenant, id)  # before the chunks: none can follow the end
        if ended is None:
            raise NotFound(id)
        chunks = await self._store.streams.chunks(
            tenant, id, wire.name(name, "name"), after=after, limit=limit
        )  # fmt: skip
        return StreamPage(chunks, chunks[-1].offset if chunks else after, ended and len(chunks) < limit)

    async def follow(self, tenant: str, job_id: str, name: str, *, after: int = -1) -> AsyncIterator[list[Chunk]]:
        """Yield pages of chunks as they arrive until the job is terminal; an empty page after a long silence."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            added = self._store.watch(streams_of(tenant, wire.job_id(job_id)))
            page = await self.page(tenant, job_id, name, after=after)
            after = page.next
            if page.chunks or clock() - heard >= QUIET_SECONDS:
                yield page.chunks
                heard = clock()
            if page.ended:
                return
            if not page.chunks:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await added.wait()
