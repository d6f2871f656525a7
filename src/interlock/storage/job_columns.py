"""Column lists of jobs in SQL, derived from the table of fields.

`expand` replaces the marks below in SQLite statements and PostgreSQL functions. `v` is job_view, `j` the table job, and
`b` SQLite's job_body.

| mark           | columns                                                              |
|----------------|----------------------------------------------------------------------|
| `{job}`        | all fields of a job, in order, from `v`                              |
| `{list}`       | the same for a list: JSON that lists omit is null, so it is not read |
| `{options}`    | the options in digest order, from `j` and `b`                        |
| `{digest}`     | PostgreSQL: the text that the digest of the options covers, from `j` |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from interlock.domain.job import FIELDS, OPTIONS, UNLISTED, Job, Kind, Stored, kind_of
from interlock.domain.lifecycle import Status

AT: Final = {name: position for position, name in enumerate(Job._fields)}
NOT_READ: Final = frozenset(name for name in UNLISTED if FIELDS[name].kind is Kind.JSON)
STATUSES: Final = {str(status): status for status in Status}


def columns(names: Iterable[str], alias: str, body: str = "") -> str:
    """Return a select list; with `body`, fields that SQLite stores in job_body have that alias."""
    return ", ".join(f"{body if body and _in_body(name) else alias}.{name}" for name in names)


def _in_body(name: str) -> bool:
    return name not in FIELDS or FIELDS[name].stored is Stored.BODY  # body_sha256 is not a field of a job


def _digested(name: str) -> str:
    """Return the text of an option as PostgreSQL digests it; domain.digests does the same in Python."""
    text = {
        None: f"encode(j.{name}, 'hex')",
        Kind.SECONDS: f"(j.{name} * 1000000)::bigint::text",
        Kind.NAMES: f"interlock.listed(j.{name})",
        Kind.TIME: f"interlock.micros(j.{name})::text",
        Kind.INTEGER: f"j.{name}::text",
        Kind.ID: f"j.{name}::text",
    }.get(kind_of(name), f"j.{name}")
    return f"interlock.field({text})"


MARKS: Final = {
    "{job}": columns(Job._fields, "v"),
    "{list}": ", ".join(f"null AS {name}" if name in NOT_READ else f"v.{name}" for name in Job._fields),
    "{options}": columns(OPTIONS, "j", "b"),
    "{digest}": " || ".join(map(_digested, OPTIONS)),
}


def expand(text: str) -> str:
    """Replace the marks in a statement."""
    for mark, meaning in MARKS.items():
        text = text.replace(mark, meaning)
    return text


def job_of(values: Any) -> Job:
    """Build a job from the values of all its columns; only the status is still a text."""
    row = list(values)
    row[_STATUS] = STATUSES[row[_STATUS]]
    return Job._make(row)


_STATUS: Final = AT["status"]
