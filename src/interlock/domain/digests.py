"""SHA-256 digests of the data of a transition, identical on every engine.

A history row stores them in its metadata, so that its hash covers them. A text is digested as stored. Several values
are digested like the fields of a history row: `length:text`, or `-` for null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final, NamedTuple

from interlock.domain.audit import fields
from interlock.domain.job import FIELDS, OPTIONS, Kind, NewJob


class StepFields(NamedTuple):
    """The fields of a saved step that its digest covers."""

    seq: int
    name: str
    occurrence: int
    function: str | None
    fence: int
    at: int
    sanitized: int
    result: str  # its own digest


def of_text(text: str) -> str:
    """Return the digest of one stored text: a payload, result, usage or error."""
    return sha256(text.encode()).hexdigest()


def of_fields(*values: object) -> str:
    """Return the digest of several values."""
    return sha256(fields(*values)).hexdigest()


def of_options(values: Sequence[Any]) -> str:
    """Return the digest of the options of a job, in the order of OPTIONS."""
    given = list(values)
    for i, convert in _CONVERSIONS:
        if given[i] is not None:
            given[i] = convert(given[i])
    return of_fields(*given)


def of_creation(job: NewJob, progress: Mapping[str, str | None] | None = None) -> str:
    """Return the metadata of the row that creates a job; a redriven job may start with progress of another."""
    given = options_of(job)
    # Many jobs differ only in their payload.
    options = of_options(given) if job.idempotency_key or job.parent_id else _options_once(given)
    return metadata_of_creation(options, job.payload, progress)


def metadata_of_creation(options: str, payload: str, progress: Mapping[str, str | None] | None) -> str:
    """Return the same, given the digest of the options."""
    digest = of_text(payload)
    if progress:
        return str(merge(None, {"options": options, "payload": digest, **progress}))
    return f'{{"digests":{{"options":"{options}","payload":"{digest}"}}}}'


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _listed(values: Sequence[str]) -> str:
    return fields(*values).decode() if values else ""


def _hex(value: bytes) -> str:
    return bytes(value).hex()


options_of: Final = itemgetter(*map(NewJob._fields.index, OPTIONS))
_options_once = lru_cache(1024)(of_options)
# Durations are digested in microseconds, and lists as fields; storage.job_columns does the same in SQL.
_BY_KIND: Final[Mapping[Kind, Callable[[Any], object]]] = {Kind.SECONDS: _micros, Kind.NAMES: _listed}
_CONVERSIONS: Final = tuple(
    (i, _BY_KIND[FIELDS[name].kind] if name in FIELDS else _hex)
    for i, name in enumerate(OPTIONS)
    if name not in FIELDS or FIELDS[name].kind in _BY_KIND
)


def of_result(result: str | None, summary: str | None, usage: str | None) -> dict[str, str | None]:
    """Return the digests of the result, summary and usage that are present."""
    texts = {"result": result, "summary": summary, "usage": usage}
    return {name: of_text(text) for name, text in texts.items() if text is not None}


def of_steps(steps: Iterable[StepFields]) -> str | None:
    """Return the digest of steps in order, or None if there are none."""
    parts = [fields(*step) for step in steps]
    return sha256(b"".join(parts)).hexdigest() if parts else None


def of_request(
    id: str, fence: int, prompt: str, details: str | None, risk: str | None, schema: str | None, digest: str,
    required: int, on_deny: str, kind: str, opened_by: str, opened_at: int, expires_at: int, name: str | None,
    occurrence: int,
) -> str:  # fmt: skip
    """Return the digest of an approval request."""
    return of_fields(
        id, fence, prompt, details, risk, schema, digest, required, on_deny, kind, opened_by, opened_at, expires_at,
        name, occurrence,
    )  # fmt: skip


def of_decision(
    status: str, closed_by: str | None, comment: str | None, data: str | None,
    votes: Iterable[tuple[str, str, str | None, int]],
) -> str:  # fmt: skip
    """Return the digest of a closed approval; each vote is (voter, decision, comment, time), by time, then voter."""
    return of_fields(status, closed_by, comment, data, *(value for vote in votes for value in vote))


def merge(metadata: str | None, digests: Mapping[str, str | None]) -> str | None:
    """Append digests to metadata; a null digest means that the value no longer exists."""
    if not digests:
        return metadata
    if len(digests) == 1 and metadata is None and (only := digests.get("result")) is not None:
        return f'{{"digests":{{"result":"{only}"}}}}'  # the common case of a completion
    each = [f'"{name}":null' if d is None else f'"{name}":"{d}"' for name, d in sorted(digests.items())]
    text = f'"digests":{{{",".join(each)}}}}}'
    return "{" + text if metadata is None or metadata == "{}" else metadata[:-1] + "," + text


def carried(metadata: str | None) -> dict[str, str | None]:
    """Return the digests in the metadata of a history row."""
    if metadata is None or '"digests":' not in metadata:
        return {}
    try:
        facts = json.loads(metadata)
    except ValueError:
        return {}
    found = facts.get("digests") if isinstance(facts, dict) else None
    return found if isinstance(found, dict) else {}


class Kept(NamedTuple):
    """The digests of the current rows of one job; those of steps and approvals are keyed by fence."""

    values: Mapping[str, str | None]
    checkpoint_at: int | None
    steps: Mapping[int, str]
    requests: Mapping[int, str]
    decisions: Mapping[int, str]
