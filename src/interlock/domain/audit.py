"""The hash chain of a job's history, identical on every engine, and the results of verifying it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from interlock.domain.job import HistoryRow


class HistoryExport(NamedTuple):
    """The complete history of one job, and its `seq` in enqueue order."""

    seq: int
    rows: tuple[HistoryRow, ...]


class VerifiedPart(NamedTuple):
    """The result of verifying some chains: the counts, the first invalid row, and the next cursor (None at the end)."""

    jobs: int
    rows: int
    first_bad: str | None
    next: str | None


def history_hash(
    previous: bytes | None,
    tenant: str,
    job_id: str,
    version: int,
    from_status: str | None,
    to_status: str,
    verb: str,
    actor: str,
    attempt: int,
    fence: int,
    reason: str | None,
    metadata: str | None,
    at: int,
) -> bytes:
    """Return the SHA-256 of the previous hash and every field as length:text in bytes, or a dash for null.

    The first row hashes the tenant and job ID in place of a previous hash, so that later rows cover them too.
    """
    put = _put_common if reason is None and metadata is None else fields
    row = put(version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at)
    return sha256((origin(tenant, job_id) if previous is None else previous) + row).digest()


def origin(tenant: str, job_id: str) -> bytes:
    """Return the bytes that replace the previous hash in the first row of a job."""
    return _tenant_field(tenant) + _field(job_id)


def origins(tenant: str, job_ids: Iterable[str]) -> list[bytes]:
    """Return `origin` of many jobs."""
    start = _field(tenant)
    return [b"%b%d:%b" % (start, len(id), id) for id in map(str.encode, job_ids)]


def hash_batch(
    befores: Iterable[bytes], metadatas: Iterable[str | None] | None, at: int, *first: object
) -> list[bytes]:
    """Return `history_hash` for rows that differ only in metadata and previous hash (or origin) and have no reason.

    `first` are the fields before the reason, encoded once. Without `metadatas` no row has metadata.
    """
    if metadatas is None:
        row = fields(*first, None, None, at)
        return [sha256(before + row).digest() for before in befores]
    head, tail = fields(*first, None), _field(at)
    bare = b"%b-%b" % (head, tail)
    texts = (None if metadata is None else metadata.encode() for metadata in metadatas)
    return [
        sha256(before + bare if text is None else b"%b%b%d:%b%b" % (before, head, len(text), text, tail)).digest()
        for before, text in zip(befores, texts, strict=True)
    ]


def fields(*values: object) -> bytes:
    """Encode values for hashing: each as length:text with the length in bytes, or a dash for null."""
    return b"".join(map(_field, values))


def _field(value: object) -> bytes:
    if value is None:
        return b"-"
    text = str(value).encode()
    return b"%d:%b" % (len(text), text)


_put_common = lru_cache(1024)(fields)
_tenant_field = lru_cache(1024)(_field)
