"""The hash that chains the rows of a job's history, the same bytes on every engine, and what an audit is told."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from interlock.domain.job import HistoryRow


class HistoryExport(NamedTuple):
    """The whole history of one job, and its place in the order of arrival."""

    seq: int
    rows: tuple[HistoryRow, ...]


class VerifiedPart(NamedTuple):
    """What was read of some chains, the first row that does not fit, and where to go on; None at the end."""

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
    """SHA-256 over the hash before and every field as length:text, where a null is a dash; lengths count bytes.

    Whose history it is stands where the first row has no hash before; through that the later ones cover it too.
    """
    put = _put_common if reason is None and metadata is None else fields
    row = put(version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at)
    return sha256((origin(tenant, job_id) if previous is None else previous) + row).digest()


def origin(tenant: str, job_id: str) -> bytes:
    """What the chain of a job begins with."""
    return _tenant_field(tenant) + _field(job_id)


def hash_batch(
    befores: Iterable[bytes], metadatas: Iterable[str | None] | None, at: int, *first: object
) -> list[bytes]:
    """The same for rows that differ in metadata only, from the hash before each or its origin; none has a reason.

    `first` are the fields before the reason, encoded once. Without `metadatas` the rows are alike in everything.
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
    """Values as a hash covers them: each as length:text with the length in bytes, or a dash for null."""
    return b"".join(map(_field, values))


def _field(value: object) -> bytes:
    if value is None:
        return b"-"
    text = str(value).encode()
    return b"%d:%b" % (len(text), text)


_put_common = lru_cache(1024)(fields)
_tenant_field = lru_cache(1024)(_field)
