"""Column lists and constants in SQL, derived from the table of fields and the domain.

`expand` replaces the marks of `MARKS` in SQLite statements and in the PostgreSQL functions. In them `v` is job_view,
`j` the table job, `b` SQLite's job_body, and `r` a JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from interlock.domain.job import ANY_FENCE, FIELDS, OPTIONS, UNLISTED, Job, Kind, Stored, kind_of
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS

JOB: Final = ", ".join(Job._fields)
AT: Final = {name: position for position, name in enumerate(Job._fields)}
STATUSES: Final = {str(status): status for status in Status}
# Options that most jobs lack, so that enqueue and claim do not transfer them as columns.
RARE: Final = tuple(
    name
    for name in OPTIONS
    if name not in (
        "type", "priority", "max_attempts", "agent_kind", "agent_id", "idempotency_key", "body_sha256", "created_by",
    )
)  # fmt: skip
# The columns that most rows of SQLite's job_body lack.
MORE: Final = tuple(
    name
    for name in OPTIONS
    if (kind_of(name) is None or FIELDS[name].stored is Stored.BODY)
    and name not in ("type", "agent_kind", "agent_id", "created_by", "requires")
)
_STORED: Final = tuple(name for name, field in FIELDS.items() if field.stored is not Stored.VIEW)
_IN_VIEW: Final = (*_STORED, *(name for name in FIELDS if name not in _STORED))
_UNREAD: Final = frozenset(name for name in UNLISTED if FIELDS[name].kind is Kind.JSON)


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


def _from_json(name: str) -> str:
    """Return an option from a JSON object `r` that omits missing options; lists are array literals."""
    value = f"(r ->> '{name}')"
    return {
        Kind.SECONDS: f"{value}::double precision",
        Kind.INTEGER: f"{value}::integer",
        Kind.BOOLEAN: f"{value}::boolean",
        Kind.ID: f"{value}::uuid",
        Kind.TIME: f"interlock.moment({value}::bigint)",
        Kind.NAMES: f"coalesce({value}::text[], '{{}}')",
    }.get(FIELDS[name].kind, value)


def _to_json(name: str) -> str:
    return f"interlock.micros(j.{name})" if FIELDS[name].kind is Kind.TIME else f"j.{name}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"null AS {name}" if name in _UNREAD else f"v.{name}" for name in names)


def _lacks(names: Iterable[str]) -> str:
    """Return the condition that a job of SQLite has none of these options."""
    return " AND ".join(f"{name} = '[]'" if FIELDS[name].kind is Kind.NAMES else f"{name} IS NULL" for name in names)


_RARE_VALUES: Final = [name for name in RARE if FIELDS[name].kind is not Kind.NAMES]
_RARE_LISTS: Final = [name for name in RARE if FIELDS[name].kind is Kind.NAMES]
MARKS: Final = {
    # All fields of a job, in order; for a list, JSON that lists omit is null, so that it is not read.
    "{job}": columns(Job._fields, "v"),
    "{list}": _listed(Job._fields),
    # PostgreSQL: the same in the column order of job_view.
    "{view_list}": _listed(_IN_VIEW),
    # The columns of job_view that it does not compute, in SQLite and in PostgreSQL.
    "{stored}": columns((name for name in _STORED if FIELDS[name].stored is not Stored.RESULT), "j", "b"),
    "{row}": columns(_STORED, "j"),
    # The options in digest order, and the text that PostgreSQL digests.
    "{options}": columns(OPTIONS, "j", "b"),
    "{digest}": " || ".join(map(_digested, OPTIONS)),
    # PostgreSQL: rare options to insert, their values, and how a claim returns them.
    "{rare}": ", ".join(RARE),
    "{rare_values}": ", ".join(map(_from_json, RARE)),
    "{rare_json}": ", ".join(map(_to_json, RARE)),
    "{has_rare}": " or ".join(f"cardinality(j.{name}) > 0" for name in _RARE_LISTS)
    + f" or num_nonnulls({columns(_RARE_VALUES, 'j')}) > 0",
    # SQLite: columns of job_body that most jobs lack, and whether the rows of a job lack all rare options.
    "{more}": ", ".join(MORE),
    "{more_values}": ", ".join("?" * len(MORE)),
    "{plain_job}": _lacks(name for name in RARE if FIELDS[name].stored is Stored.JOB),
    "{plain_body}": _lacks(name for name in MORE if name in FIELDS and name not in ("repository", "affinity_key")),
    # Constants of the domain.
    "{any_fence}": str(ANY_FENCE),
    "{default_lease}": f"{DEFAULT_LEASE_SECONDS:g}",
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
