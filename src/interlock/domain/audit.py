"""The hash that chains the rows of a job's history, the same bytes on every engine, and what an audit is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from interlock.domain.job import HistoryRow

Link = Callable[[bytes], bytes]  # from the hash before, or the origin, to the next hash


class Chronicle(NamedTuple):
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
    linked = _common_link if reason is None and metadata is None else link
    fields = (version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at)
    return linked(*fields)(origin(tenant, job_id) if previous is None else previous)


def origin(tenant: str, job_id: str) -> bytes:
    """What the chain of a job begins with."""
    return _tenant_field(tenant) + _field(job_id)


def link(*fields: object) -> Link:
    """The same for any job and hash before: what rows of jobs that move alike have in common is put into words once."""
    row = b"".join(map(_field, fields))
    return lambda before: sha256(before + row).digest()


def _field(value: object) -> bytes:
    if value is None:
        return b"-"
    text = str(value).encode()
    return b"%d:%b" % (len(text), text)


_common_link = lru_cache(1024)(link)
_tenant_field = lru_cache(1024)(_field)
