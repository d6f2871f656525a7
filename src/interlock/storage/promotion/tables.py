"""Which rows of SQLite become which rows of PostgreSQL.

A table that both engines have with the same columns is carried without being named here. Only what differs is listed:
tables that are derived from others, columns that are computed, and tables that stay behind. A table or column that is
neither carried nor listed is an error, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.errors import SchemaMismatch

_JOB: Final = "job j"
_OF_JOB: Final = "{0}.tenant = j.tenant AND {0}.seq = j.seq"
_DEADLINE: Final = "(SELECT j.deadline FROM job j WHERE j.tenant = t.tenant AND j.id = t.job_id)"
_LIKE_KEY: Final = (
    "{0}.tenant = {1}.tenant AND {0}.type = {1}.type AND {0}.priority = {1}.priority AND {0}.requires = {1}.requires"
)
_WIDER: Final = (
    f"(SELECT w.no FROM eligibility_key w WHERE {_LIKE_KEY.format('w', 'k')}"
    " AND w.flow = k.flow AND w.repository IS {} AND w.affinity_key IS {})"
)
_UNBOUND: Final = f"CASE WHEN k.repository IS NOT NULL THEN {_WIDER.format('NULL', 'k.affinity_key')} END"
_FREE: Final = f"CASE WHEN k.affinity_key IS NOT NULL THEN {_WIDER.format('k.repository', 'NULL')} END"
# A parked job has another key in the file, with a mark before its buckets. It arrives with the key by which claims find
# it, and not parked: claims park those again that do not fit. The keys of parked jobs stay behind.
_PARKED: Final = "{}.flow LIKE '[[],%'"
_SHOWN: Final = (
    " CROSS JOIN eligibility_key p ON p.tenant = j.tenant AND p.no = j.eligibility_key"
    " CROSS JOIN eligibility_key k ON k.tenant = j.tenant AND k.no = CASE WHEN " + _PARKED.format("p") + " THEN"
    f" (SELECT x.no FROM eligibility_key x WHERE {_LIKE_KEY.format('x', 'p')}"
    " AND x.flow = '[' || substr(p.flow, 5) AND x.repository IS p.repository AND x.affinity_key IS p.affinity_key)"
    " ELSE p.no END"
)
_LEASED: Final = (
    "(SELECT json_group_array({} ORDER BY v.key) FROM json_each(t.leased) v"
    " JOIN job j ON j.tenant = t.tenant AND j.seq = v.value ->> 0)"
)
_COUNTED: Final = "(SELECT k.type FROM eligibility_key k WHERE k.tenant = t.tenant AND k.no = t.base)"


class Rule(NamedTuple):
    """How the rows of one PostgreSQL table are read from SQLite, where that is not the table of the same name.

    `columns` are SQL expressions. Every other column is that of the first of `tables`, by alias, that has it.
    """

    tables: Mapping[str, str]
    source: str
    where: str = "true"
    columns: Mapping[str, str] = {}


RULES: Final[Mapping[str, Rule]] = {
    "ready": Rule(
        {"j": "job"},
        _JOB + _SHOWN,
        "j.status IN ('queued', 'retry') AND j.awaiting = 0",
        {
            "job_id": "j.id",
            "eligibility_key": "k.no",
            "base": "k.base",
            "across_repositories": _UNBOUND,
            "across_keys": _FREE,
            "parked": "0",
            "limit_name": "NULL",
            "limit_key": "NULL",
        },
    ),
    "flow_bucket": Rule(
        {"t": "flow_bucket"}, "flow_bucket t", columns={"parked": "0", "wake_at": "NULL", "turn": "NULL"}
    ),
    "lease": Rule(
        {"j": "job"},
        _JOB,
        "j.status = 'running'",
        {
            "job_id": "j.id",
            "seconds": f"coalesce(j.lease_seconds, {DEFAULT_LEASE_SECONDS})",
            "expires_at": "j.lease_expires_at",
            "run_ends_at": "CAST(j.run_started_at + j.timeout_seconds * 1000000 AS INTEGER)",
        },
    ),
    "unsuccessful_job": Rule(
        {"j": "job", "b": "job_body"},
        f"job j CROSS JOIN job_body b ON {_OF_JOB.format('b')}",
        "j.status IN ('retry', 'failed', 'dead_letter', 'cancelled')",
        {"job_id": "j.id", "acknowledged": "j.acknowledged_at IS NOT NULL"},
    ),
    "job_history": Rule(
        {"h": "job_history"}, f"job j CROSS JOIN job_history h ON {_OF_JOB.format('h')}", columns={"job_id": "j.id"}
    ),
    "job": Rule(
        {"j": "job", "b": "job_body", "r": "job_result"},
        f"job j CROSS JOIN job_body b ON {_OF_JOB.format('b')}"
        f" CROSS JOIN job_history h ON {_OF_JOB.format('h')} AND h.version = j.version"
        f" LEFT JOIN job_result r ON {_OF_JOB.format('r')}" + _SHOWN,
        columns={
            "eligibility_key": "k.no",
            "base": "k.base",
            "previous": "h.from_status",
            "metadata": "h.metadata",
            "sanitized": "j.sanitized OR coalesce(r.sanitized, 0)",
        },
    ),
    "approval": Rule({"t": "approval"}, "approval t", columns={"deadline": _DEADLINE}),
    "job_await": Rule({"t": "job_await"}, "job_await t", columns={"deadline": _DEADLINE}),
    "claim_result": Rule(
        {"t": "claim_result"},
        "claim_result t",
        columns={"job_ids": _LEASED.format("j.id"), "fences": _LEASED.format("v.value ->> 1")},
    ),
    "eligibility_key": Rule(
        {"k": "eligibility_key"},
        "eligibility_key k",
        "NOT " + _PARKED.format("k"),
        {"across_repositories": _UNBOUND, "across_keys": _FREE, "parks": "NULL"},
    ),
    "queue_counter": Rule(
        {"t": "queue_counter"},
        "queue_counter t",
        columns={
            "type": _COUNTED,
            "from_status": "nullif(t.from_status, '')",
            "to_status": "nullif(t.to_status, '')",
            "folded": "0",
        },
    ),
    "tenant": Rule({"t": "tenant"}, "tenant t", columns={"state": "'here'"}),
}
# These tables hold the rows of jobs, found by the jobs' tenant and seq. The first ones are found on the target by the
# job as it was copied before, so they come before it.
OF_JOBS: Final = ("ready", "unsuccessful_job", "lease", "job_history", "job")
JOBS: Final = "job"
# Small or derived tables, copied as a whole when the rest is complete.
WHOLE: Final = ("tenant", "queue_counter", "job_await")
# One row each, which the new database has already.
SINGLE: Final = ("epoch", "signing_key")
# Tables that stay behind: the index of job blocks is made again, and the others describe one engine or one database.
LEFT_IN_SQLITE: Final = frozenset(
    {"event_commit_seq", "job_block", "job_block_term", "promotion", "promotion_change", "schema_migration"}
)
NOT_FILLED: Final = frozenset(
    {"history_partition", "job_block", "job_block_term", "move_delta", "placement", "promotion", "promotion_progress",
     "schema_migration", "shard"}
)  # fmt: skip
# Columns that become rows of another table, or that PostgreSQL does not need.
USED_OTHERWISE: Final[Mapping[str, frozenset[str]]] = {
    "job": frozenset(
        {
            "awaiting",
            "blocked",
            "parked",
            "across_repositories",
            "across_keys",
            "limit_name",
            "limit_key",
            "heartbeat_at",
            "metadata",
        }
    ),
    "claim_result": frozenset({"leased"}),
    "queue_counter": frozenset({"base"}),
    "tenant": frozenset({"next_seq"}),
    "job_history": frozenset({"seq"}),
}
ADVICE: Final = "state in storage/promotion/tables.py how promote carries it, or list it there as staying behind"

Convert = Callable[[Any], Any]


def _items(text: str) -> Any:
    return json.loads(text)


_CONVERSIONS: Final[Mapping[str, Convert]] = {
    "boolean": bool,
    "double precision": float,
    "bytea": lambda value: value.encode() if isinstance(value, str) else bytes(value),
    "text[]": _items,
    "uuid[]": _items,
    "bigint[]": _items,
}
_AS_THEY_ARE: Final = frozenset({"text", "uuid", "bigint", "integer", "timestamp with time zone", "interlock.status"})


class Table(NamedTuple):
    """One table of the target: its columns with their types, and the query for its rows."""

    name: str
    columns: Mapping[str, str]
    select: str
    source: str
    where: str
    alias: str  # of the table whose key selects rows

    def query(self, condition: str = "true") -> str:
        return f"SELECT {self.select} FROM {self.source} WHERE {self.where} AND {condition}"

    @property
    def counting(self) -> str:
        """The number of rows; if all of a table are carried, counted there, so that none can be lost by a join."""
        if self.where == "true":
            return f"SELECT count(*) FROM {self.name}"
        return f"SELECT count(*) FROM {self.source} WHERE {self.where}"

    def convert(self, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Return the rows with the values that the driver of PostgreSQL expects."""
        converters = [_CONVERSIONS.get(type) for type in self.columns.values()]
        return [
            tuple(
                value if value is None or convert is None else convert(value)
                for convert, value in zip(converters, row, strict=True)
            )
            for row in rows
        ]

    def convert_key(self, column: str, values: Sequence[Any]) -> list[Any]:
        """Return the values of one column of a key like `convert`."""
        convert = _CONVERSIONS.get(self.columns[column])
        return [*values] if convert is None else [*map(convert, values)]


class Group(NamedTuple):
    """Tables whose rows are replaced together, by the key of one SQLite table."""

    name: str
    key: Sequence[str]
    tables: Sequence[Table]


class Plan(NamedTuple):
    """Everything that is carried: by key, and as a whole at the end."""

    groups: Mapping[str, Group]
    whole: Sequence[Table]

    @property
    def tables(self) -> list[Table]:
        return [*(table for group in self.groups.values() for table in group.tables), *self.whole]


class Source(NamedTuple):
    """A table of SQLite: its columns, and those of its primary key in order."""

    columns: Sequence[str]
    key: Sequence[str]


def plan(sqlite: Mapping[str, Source], postgres: Mapping[str, Mapping[str, str]]) -> Plan:
    """Return what is carried from these tables; raise if a table or a column of either engine is forgotten."""
    used = {name: set(USED_OTHERWISE.get(name, ())) for name in sqlite}
    tables: dict[str, Table] = {}
    for name, columns in postgres.items():
        if name not in NOT_FILLED and name not in SINGLE:
            tables[name] = _table(name, columns, sqlite, used)
    for name, source in sqlite.items():
        if name in LEFT_IN_SQLITE or name in SINGLE:
            continue
        if missed := [column for column in source.columns if column not in used[name]]:
            raise _forgotten(f"{', '.join(missed)} of the SQLite table {name}")
    groups = {JOBS: Group(JOBS, ("tenant", "seq"), [tables[name] for name in OF_JOBS])}
    for name, table in tables.items():
        if name in OF_JOBS or name in WHOLE:
            continue
        key = sqlite[name].key
        if not key or not set(key) <= table.columns.keys():
            raise _forgotten(f"the primary key of {name}, which is not the same on both engines,")
        groups[name] = Group(name, key, [table])
    return Plan(groups, [tables[name] for name in WHOLE])


def _table(name: str, columns: Mapping[str, str], sqlite: Mapping[str, Source], used: Mapping[str, set[str]]) -> Table:
    rule = RULES.get(name) or Rule({"t": name}, f"{name} t")
    if missing := [table for table in rule.tables.values() if table not in sqlite]:
        raise _forgotten(f"the PostgreSQL table {missing[0]}")
    select = []
    for column, type in columns.items():
        if type not in _AS_THEY_ARE and type not in _CONVERSIONS:
            raise _forgotten(f"the type {type} of {name}.{column}")
        alias = next((alias for alias, table in rule.tables.items() if column in sqlite[table].columns), None)
        if alias is not None:
            used[rule.tables[alias]].add(column)
        if column in rule.columns:
            select.append(rule.columns[column])
        elif alias is not None:
            select.append(f'{alias}."{column}"')
        else:
            raise _forgotten(f"{column} of the PostgreSQL table {name}")
    if name == JOBS:  # where two of its tables have the same column, the rule has chosen
        for table in rule.tables.values():
            used[table] |= columns.keys() & set(sqlite[table].columns)
    alias = "j" if name in OF_JOBS else next(iter(rule.tables))
    return Table(name, columns, ", ".join(select), rule.source, rule.where, alias)


def _forgotten(what: str) -> SchemaMismatch:
    return SchemaMismatch(f"promote does not know {what}: {ADVICE}")
