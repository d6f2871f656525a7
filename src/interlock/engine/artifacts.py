"""Artifacts: uploads by workers, downloads, and garbage collection of orphaned objects."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from interlock import wire
from interlock.domain import artifact as rules
from interlock.domain.artifact import Artifact, Download, File, Holder, Link, NewArtifact, Opening, Stream
from interlock.domain.json_text import is_visible_name
from interlock.engine.results import answered
from interlock.engine.upload import UploadReader
from interlock.errors import ArtifactLost, ArtifactsNotConfigured, Error, Invalid, NotFound
from interlock.storage.contract import Objects, Store
from interlock.wire import Limits

log = logging.getLogger(__name__)

MAX_PAGE_SIZE: Final = 200
BATCH_SIZE: Final = 100
COLLECT_BATCH_SIZE: Final = 500
COLLECT_EVERY_SECONDS: Final = 60.0
MAX_NAME_LENGTH: Final = 200
MAX_NAME_BYTES: Final = 1800  # fits into a PostgreSQL index entry next to the longest tenant name
LARGEST_FENCE: Final = 2**63 - 1


class _Incoming(NamedTuple):
    name: str
    content_type: str
    intake: UploadReader
    chunks: AsyncIterable[bytes]


class Artifacts:
    """Named files and links of jobs; a file becomes visible only after all its bytes are durable."""

    def __init__(self, store: Store, objects: Objects | None, limits: Limits) -> None:
        self._store = store
        self._objects = objects
        self._limits = limits
        self._collecting: asyncio.Task[None] | None = None

    async def put(
        self,
        tenant: str,
        holder: Holder,
        name: str,
        chunks: AsyncIterable[bytes],
        *,
        content_type: str | None = None,
        size: int | None = None,
        sha256: str | None = None,
        max_name_length: int = MAX_NAME_LENGTH,
    ) -> Artifact:
        """Stream a file in; an existing artifact with the same name is replaced.

        A declared size or SHA-256 (hex) must match. An upload that does not complete leaves nothing visible.
        """
        holder = _checked(holder)
        if max_name_length == MAX_NAME_LENGTH:
            wire.name(name, "name")
        elif not is_visible_name(name, limit=max_name_length) or len(name.encode()) > MAX_NAME_BYTES:
            raise Invalid(f"name must be 1 to {max_name_length} visible characters", pointer="/name")
        kind = rules.content_type(content_type)
        intake = UploadReader(self._limits.artifact, size=size, sha256=_hash(sha256))
        return (await self._write(tenant, holder, [_Incoming(name, kind, intake, chunks)], []))[0]

    async def attach(
        self, tenant: str, holder: Holder, things: Sequence[File | Link], *, any_url: bool = False
    ) -> list[Artifact]:
        """Add several small files and links atomically.

        With `any_url`, store link URLs unchanged: relative, of any scheme and length.
        """
        holder = _checked(holder)
        if len(things) > BATCH_SIZE:
            raise Invalid(f"too many artifacts: the limit per call is {BATCH_SIZE}", pointer="/artifacts")
        if len({thing.name for thing in things}) < len(things):
            raise Invalid("two artifacts have the same name", pointer="/artifacts")
        parts = []
        for i, thing in enumerate(things):
            try:
                parts.append(self._checked_part(thing, any_url=any_url))
            except Invalid as error:
                raise error.within(f"/artifacts/{i}") from None
        made = {artifact.name: artifact for artifact in await self._write_parts(tenant, holder, parts)}
        return [made[thing.name] for thing in things]

    async def add(self, tenant: str, holder: Holder, thing: File | Link) -> Artifact:
        """Add one small file or link."""
        return (await self._write_parts(tenant, _checked(holder), [self._checked_part(thing)]))[0]

    async def link(self, tenant: str, holder: Holder, name: str, url: str) -> Artifact:
        """Store a URL under a name; it is never fetched."""
        return await self.add(tenant, holder, Link(name, url))

    async def get(self, tenant: str, job_id: str, artifact_id: str) -> Artifact:
        id = _artifact_id(artifact_id)
        found = await self._store.artifacts.get(tenant, wire.job_id(job_id), id)
        if found is None:
            raise NotFound(artifact_id, resource="artifact")
        return found

    async def home(self, tenant: str, artifact_id: str) -> str:
        """Return the job that an artifact belongs to."""
        found = await self._store.artifacts.job_of(tenant, _artifact_id(artifact_id))
        if found is None:
            raise NotFound(artifact_id, resource="artifact")
        return found

    async def list(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[Artifact]:
        """List artifacts, newest first; `before` is the time and ID of the last one on the previous page."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        id = wire.job_id(job_id)
        found = await self._store.artifacts.page(tenant, id, before=before, limit=limit)
        if not found and await self._store.get(tenant, [id]) == [None]:
            raise NotFound(job_id)
        return found

    async def read(self, tenant: str, job_id: str, artifact_id: str, *, wanted: str | None = None) -> Download:
        """Return the bytes of a file, or the one range that a Range header requests.

        A full download is verified against its hash: if the file is damaged, the last chunk is withheld.
        """
        found = await self.get(tenant, job_id, artifact_id)
        if found.key is None or found.size is None:
            raise Invalid(f"artifact {found.id} is a link; its url leads to the content", pointer="/id")
        part = rules.span(wanted, found.size)
        start, end = part or (0, found.size)
        pieces = self._verified(found, start, end)
        # Read the first chunk now, so that a missing file raises an error instead of breaking off a started response.
        first = await anext(pieces, None)
        return Download(found, start, end, Stream(first, pieces), partial=part is not None)

    async def collect_orphans(self, limit: int = COLLECT_BATCH_SIZE) -> int:
        """Delete orphaned objects that are due; safe to run concurrently and repeatedly."""
        if self._objects is None:
            return 0
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for tenant, key in await self._store.artifacts.due_orphans(limit):
            by_tenant[tenant].append(key)
        return sum([await self._collect(self._objects, tenant, keys) for tenant, keys in by_tenant.items()])

    async def collect_aside(self) -> None:
        """Collect orphans in the background, because deleting from a bucket can be slow."""
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect_all())

    async def stop(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
            self._collecting = None

    async def _collect_all(self) -> None:
        try:
            while await self.collect_orphans() == COLLECT_BATCH_SIZE:
                pass
        except Exception as error:
            log.warning("cannot collect artifact bytes, retrying: %s", error)

    async def _collect(self, objects: Objects, tenant: str, keys: Sequence[str]) -> int:
        condemned = await self._store.artifacts.condemn_orphans(tenant, keys)
        try:
            await objects.delete(condemned)
        except Error as error:
            log.warning("cannot delete artifact bytes, retrying: %s", error)
            return 0
        return await self._store.artifacts.drop_orphans(tenant, condemned)

    def _checked_part(self, thing: File | Link, *, any_url: bool = False) -> _Incoming | Link:
        name = wire.name(thing.name, "name")
        if isinstance(thing, Link):
            return Link(name, thing.url if any_url else rules.link_url(thing.url))
        intake = UploadReader(self._limits.artifact, size=len(thing.content))
        return _Incoming(name, rules.content_type(thing.content_type), intake, _once(thing.content))

    async def _write_parts(self, tenant: str, holder: Holder, parts: Sequence[_Incoming | Link]) -> Sequence[Artifact]:
        links = [part for part in parts if isinstance(part, Link)]
        return await self._write(tenant, holder, [part for part in parts if isinstance(part, _Incoming)], links)

    async def _write(
        self, tenant: str, holder: Holder, files: Sequence[_Incoming], links: Sequence[Link]
    ) -> Sequence[Artifact]:
        """Record the keys, write the bytes, then publish all artifacts in one transaction."""
        quota = self._limits.artifacts_of_tenant
        new = [NewArtifact(*holder, wire.new_id(), link.name, url=link.url) for link in links]
        keys = [secrets.token_hex(16) for _ in files]
        try:
            if files:
                objects = self._object_store()
                openings = [
                    Opening(holder, file.name, key, file.intake.announced)
                    for file, key in zip(files, keys, strict=True)
                ]
                for opened in await self._store.artifacts.open_uploads(tenant, openings, quota=quota):
                    answered(opened)
                for (name, kind, intake, chunks), key in zip(files, keys, strict=True):
                    await objects.put(key, intake.of(chunks))
                    new.append(NewArtifact(*holder, wire.new_id(), name, intake.size, intake.digest, kind, key))
            encoded = await self._store.artifacts.publish(tenant, new, quota=quota, whole=True)
            return [answered(artifact) for artifact in encoded]
        except BaseException:
            # Harmless if the artifact was published after all: its key is then no longer an orphan.
            if keys:
                with contextlib.suppress(Error):
                    await self._store.artifacts.abandon(tenant, keys)
            raise

    async def _verified(self, artifact: Artifact, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a file; withhold the last one until the hash of the whole file matches."""
        assert artifact.key is not None
        whole = (start, end) == (0, artifact.size)
        sum_of_all = hashlib.sha256()
        pending = b""
        try:
            async with aclosing(self._object_store().get(artifact.key, start, end)) as pieces:
                async for piece in pieces:
                    if pending:
                        yield pending
                    pending = piece
                    sum_of_all.update(piece)
        except FileNotFoundError:
            raise ArtifactLost(artifact.id, "its bytes are not there") from None
        if whole and sum_of_all.digest() != artifact.sha256:
            raise ArtifactLost(artifact.id, "its bytes are not those that were stored")
        if pending:
            yield pending

    def _object_store(self) -> Objects:
        if self._objects is None:
            raise ArtifactsNotConfigured
        return self._objects


def _checked(holder: Holder) -> Holder:
    fence = wire.whole(holder.fence, "fence", 0, LARGEST_FENCE)
    return Holder(wire.job_id(holder.job_id), fence, wire.name(holder.worker, "worker"))


def _artifact_id(value: str) -> str:
    try:
        return wire.job_id(value)
    except NotFound:
        raise NotFound(value, resource="artifact") from None


def _hash(value: str | None) -> bytes | None:
    try:
        digest = None if value is None else bytes.fromhex(value)
    except ValueError:
        digest = b""
    if digest is not None and len(digest) != 32:
        raise Invalid("sha256 must be 64 hexadecimal digits", pointer="/sha256")
    return digest


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
