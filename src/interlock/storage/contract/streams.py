"""The store interface for streams."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.job import Rejected
from interlock.domain.stream import Append, Chunk, StreamInfo


def streams_of(tenant: str, job_id: str) -> str:
    """Return the key to watch for new chunks of a job; no tenant has such a name."""
    return f"\x00stream {tenant} {job_id}"


class StreamStore(Protocol):
    """The part of a store for the streams of jobs."""

    async def append(self, tenant: str, append: Append, *, limit: int) -> int | Rejected:
        """Append chunks under the current fence and return the next offset; a repeated append changes nothing."""
        ...

    async def of_job(self, tenant: str, job_id: str) -> list[StreamInfo]:
        """List the streams of a job by name."""
        ...

    async def chunks(self, tenant: str, job_id: str, name: str, *, after: int = -1, limit: int) -> list[Chunk]:
        """List chunks with a higher offset, in order."""
        ...
