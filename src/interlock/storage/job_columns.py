"""Column lists and constants in SQL, derived from the table of fields and the domain.

`expand` replaces the marks of `MARKS` in the statements and schemas of both engines. In them `v` is job_view,
`j` the table job, `b` SQLite's job_body, `l` the lease, `g` the approval, and `r` a JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from interlock.domain.job import ANY_FENCE, FIELDS, OPTIONS, UNLISTED, Job, Kind, Stored, kind_of
from interlock.domain.lifecycle import EDGES, Status, is_named
from interlock.domain.limits import MAX_AMOUNT, SHOWN_AT_ONCE
from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.domain.transition import READ_FOR_DECISIONS

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


def _state(**instead: str) -> str:
    """Return the columns of a job state, besides those of an edit; `instead` has those that are not as stored."""
    return ", ".join(instead.get(name) or columns([name], "j", instead.get("body", "")) for name in READ_FOR_DECISIONS)


def _legal(found: re.Match[str]) -> str:
    """Return the condition that a job may go from one status to another, of {legal STATUS CHANGED}."""
    origin, changed = found[1], found[2]

    def condition(left: Status) -> str:
        targets = {target: verbs for (status, target), verbs in EDGES.items() if status is left}
        if targets.keys() == {*Status}:
            return "true"
        return " OR ".join(
            f"({changed}.status = '{target}' AND {changed}.verb = '{min(verbs)}')"
            if is_named(verbs)
            else f"{changed}.status = '{target}'"
            for target, verbs in targets.items()
        )

    origins = dict.fromkeys(status for status, _ in EDGES if status is not None)
    whens = " ".join(f"WHEN '{status}' THEN {condition(status)}" for status in origins)
    return f"(CASE {origin} {whens} ELSE false END)"  # in parentheses, because PL/pgSQL reads a condition up to THEN


_LEGAL: Final = re.compile(r"\{legal (\S+) (\w+)\}")
_RARE_VALUES: Final = [name for name in RARE if FIELDS[name].kind is not Kind.NAMES and name != "limits"]
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
    "{rare_values}": ", ".join("n.limits" if name == "limits" else _from_json(name) for name in RARE),
    "{rare_lists}": ", ".join(_RARE_LISTS),
    "{no_rare_lists}": ", ".join("'{}'" for _ in _RARE_LISTS),
    "{rare_json}": ", ".join(map(_to_json, RARE)),
    "{has_rare}": " or ".join(f"cardinality(j.{name}) > 0" for name in _RARE_LISTS)
    + f" or num_nonnulls({columns(_RARE_VALUES, 'j')}) > 0",
    # SQLite: columns of job_body that most jobs lack, and whether the rows of a job lack all rare options.
    "{more}": ", ".join(MORE),
    "{more_values}": ", ".join("?" * len(MORE)),
    "{plain_job}": _lacks(name for name in RARE if FIELDS[name].stored is Stored.JOB),
    "{plain_body}": _lacks(
        name for name in MORE if name in FIELDS and name not in ("repository", "affinity_key", "limits")
    ),
    # The job state that decisions read, in SQLite; in PostgreSQL with the types that a function returns.
    "{state}": _state(
        body="b",
        backoff="coalesce(b.backoff, (SELECT a.backoff FROM agent a WHERE a.tenant = j.tenant AND a.no = j.agent_no), "
        "(SELECT y.backoff FROM job_type y WHERE y.tenant = j.tenant AND y.name = b.type))",
        approval_expires_at="g.expires_at",
    ),
    "{state_row}": _state(
        lease_expires_at="coalesce(l.expires_at, j.lease_expires_at)",
        backoff="interlock.backoff_of(j)",
        approval_expires_at="g.expires_at",
    ),
    "{state_types}": ", ".join(
        f"{name} interlock.{'approval.expires_at' if name == 'approval_expires_at' else f'job.{name}'}%type"
        for name in READ_FOR_DECISIONS
    ),
    # Constants of the domain.
    "{any_fence}": str(ANY_FENCE),
    "{default_lease}": f"{DEFAULT_LEASE_SECONDS:g}",
    "{most}": f"{MAX_AMOUNT:f}",
    "{shown}": f"{SHOWN_AT_ONCE}",
}


def expand(text: str) -> str:
    """Replace the marks in a statement."""
    for mark, meaning in MARKS.items():
        text = text.replace(mark, meaning)
    return _LEGAL.sub(_legal, text)


def job_of(values: Any) -> Job:
    """Build a job from the values of all its columns; only the status is still a text."""
    row = list(values)
    row[_STATUS] = STATUSES[row[_STATUS]]
    return Job._make(row)


_STATUS: Final = AT["status"]
