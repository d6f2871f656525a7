"""The store interface for artifacts, and for the objects that hold their bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from interlock.domain.artifact import Artifact, NewArtifact, Opening, Orphan
from interlock.domain.job import Rejected


class ArtifactStore(Protocol):
    """The part of a store for artifact metadata; Objects stores the bytes."""

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        """Record keys before writing, so that no object is leaked; only for lease holders with free quota."""
        ...

    async def publish(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        """Publish links, and files whose bytes are durable, under the fence; with `whole`, one rejection means none."""
        ...

    async def abandon(self, tenant: str, keys: Sequence[str]) -> None:
        """Make objects that did not become artifacts collectable now."""
        ...

    async def get(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None: ...

    async def job_of(self, tenant: str, artifact_id: str) -> str | None:
        """Return the job that an artifact belongs to."""
        ...

    async def page(self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int) -> list[Artifact]:
        """List artifacts, newest first; `before` is the time and ID where the last page ended."""
        ...

    async def forget(self, tenant: str, job_ids: Sequence[str]) -> int:
        """Delete the artifacts of jobs and leave their objects to be collected; return their number."""
        ...

    async def total_bytes(self, tenant: str) -> int:
        """Return the total size of all files of a tenant."""
        ...

    async def due_orphans(self, limit: int) -> list[Orphan]: ...

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        """Return the keys that are due, now unusable by any upload; the caller deletes their bytes and drops them."""
        ...

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        """Delete condemned keys whose bytes are deleted."""
        ...


class Objects(Protocol):
    """Storage of artifact bytes, each object under a key that is written once."""

    @property
    def where(self) -> str: ...

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Write an object, durable on return; an error may leave a partial object, deleted like a complete one."""
        ...

    def get(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from start to end; raise FileNotFoundError if any are missing."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; ignore missing ones."""
        ...

    async def close(self) -> None: ...
