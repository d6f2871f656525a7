"""The hash that chains the rows of a job's history, the same bytes on every engine, and what an audit is told."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from interlock.domain.job import HistoryRow


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
    """SHA-256 over the hash before and every field as length:text, where a null is a dash; lengths count bytes."""
    around = _around if reason is None and metadata is None else _fields_around
    before, after = around(
        tenant, version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at
    )  # fmt: skip
    return sha256(b"%b%b36:%b%b" % (previous or b"", before, job_id.encode(), after)).digest()


def _fields_around(tenant: str, *fields: object) -> tuple[bytes, bytes]:
    """What comes before and after the id of the job."""
    return _field(tenant), b"".join(map(_field, fields))


def _field(value: object) -> bytes:
    if value is None:
        return b"-"
    text = str(value).encode()
    return b"%d:%b" % (len(text), text)


# Most jobs of a batch make the same move: what their rows have in common is put into words once.
_around = lru_cache(1024)(_fields_around)
