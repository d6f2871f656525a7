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
    text = (
        f"{_often(tenant)}36:{job_id}{_number(version)}{_move(from_status, to_status, verb, actor)}{_number(attempt)}"
        f"{_number(fence)}{'-' if reason is None else _field(reason)}"
        f"{'-' if metadata is None else _field(metadata)}{_time(at)}"
    )
    return sha256(text.encode() if previous is None else previous + text.encode()).digest()


def _field(value: object) -> str:
    text = str(value)
    return f"{len(text.encode())}:{text}"


# The same few values come back in row after row; their text is made once.
_often = lru_cache(256)(_field)
_number = lru_cache(4096)(_field)
_time = lru_cache(8)(_field)


@lru_cache(4096)
def _move(from_status: str | None, to_status: str, verb: str, actor: str) -> str:
    origin = "-" if from_status is None else _field(from_status)
    return f"{origin}{_field(to_status)}{_field(verb)}{_field(actor)}"
