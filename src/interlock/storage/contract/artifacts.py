"""What every engine offers for artifacts: a part of the contract of a store, and where their bytes are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from interlock.domain.artifact import Artifact, NewArtifact, Opening, Orphan
from interlock.domain.job import Rejected


class ArtifactStore(Protocol):
    """The part of a store that keeps what is known of artifacts; Objects keeps their bytes."""

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        """Note keys before a byte is written under them, so that none is left for good; only for holders with room."""
        ...

    async def show_artifacts(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        """Show files whose bytes are safe, and links, under the fence; with `whole` a single refusal means none."""
        ...

    async def abandon_objects(self, tenant: str, keys: Sequence[str]) -> None:
        """Let what became no artifact be collected now."""
        ...

    async def artifact(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None: ...

    async def artifact_home(self, tenant: str, artifact_id: str) -> str | None:
        """The job that an artifact belongs to."""
        ...

    async def artifacts(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int
    ) -> list[Artifact]:
        """Newest first; `before` is the time and id where the last page ended."""
        ...

    async def forget_artifacts(self, tenant: str, job_ids: Sequence[str]) -> int:
        """Take the artifacts of jobs away and leave their bytes to be collected; how many there were."""
        ...

    async def artifact_bytes(self, tenant: str) -> int:
        """The sizes of all files of a tenant together."""
        ...

    async def due_orphans(self, limit: int) -> list[Orphan]: ...

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        """Those that are due, now lost to any upload; the caller deletes their bytes and drops them."""
        ...

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        """Forget condemned keys whose bytes are gone."""
        ...


class Objects(Protocol):
    """Where the bytes of artifacts are, each under a key that is written once."""

    @property
    def where(self) -> str: ...

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Durable when it returns; what raises may leave a part behind, which is deleted like the whole."""
        ...

    def get(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from start up to end; FileNotFoundError if they are not all there."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """What is not there need not be deleted."""
        ...

    async def close(self) -> None: ...
