"""Runs an operation on either engine: its body is a generator of database steps, its SQL has one text per engine.

    def _revoke(tx: Transaction, id: str, actor: str) -> Steps[bool]:
        found = yield from tx.one(SQL["get"], id=id)
        ...

SQLite runs such a body in its writer thread, PostgreSQL on a connection in one transaction of the tenant. The rule is
written once. What differs is in the .sql files of the part, and in the drivers: how values are bound, how jobs are
locked, and how transitions are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.domain.operator_log import Entry
from interlock.domain.transition import JobState, Transition
from interlock.storage.contract import Terms
from interlock.storage.sql_files import load

PACKAGE: Final = "interlock.storage.parts"
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_MARK: Final = re.compile(r"\{([a-z_][a-z0-9_ ]*)\}")
_STATEMENT: Final = re.compile(r"(select|with|insert|update|delete)\b", re.IGNORECASE)
_SQLITE: Final = {"in": "IN (SELECT value FROM json_each(:{}))", "for": "", "by": "INDEXED BY {}"}
_POSTGRES: Final = {"in": "= any(:{})", "for": "for {}", "by": ""}
_SET_TENANT: Final = "(select set_config('interlock.tenant', $1, true) as tenant offset 0) t"

NEWEST: Final = (1 << 62, "ffffffff-ffff-ffff-ffff-ffffffffffff")  # after any time and ID
OLDEST: Final = (0, "00000000-0000-0000-0000-000000000000")

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])
Row: TypeAlias = Any  # a tuple or a record of asyncpg: both are indexed, sliced and iterated alike


class Statement:
    """A named statement in both dialects. `:tenant` and `:now` are supplied by the driver, other values by the caller.

    Lists are JSON text on SQLite (`json_each(:ids)`) and arrays on PostgreSQL (`any(:ids)`). PostgreSQL takes the type
    of a parameter from its first use, so `:x IS NULL` comes after a comparison.
    """

    def __init__(self, name: str, sqlite: str, postgres: str) -> None:
        self.name = name
        self.sqlite = sqlite
        text = _PARAMETER.sub(lambda found: "interlock.clock()" if found[1] == "now" else found[0], postgres)
        self.parameters = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        self._text = text

    @cached_property
    def postgres(self) -> str:
        """The text with numbered parameters, for a transaction that has set its tenant."""
        return _PARAMETER.sub(lambda found: f"${self.parameters.index(found[1]) + 1}", self._text)

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The parameters after the tenant of `postgres_alone`."""
        return tuple(name for name in self.parameters if name != "tenant")

    @cached_property
    def postgres_alone(self) -> str:
        """A query that sets the tenant itself, so that a read is one round trip: $1 is the tenant, then the others.

        The query refers to the subquery that sets the tenant, and neither can be merged into the other (offset 0), so
        the tenant is set before row-level security compares the first row with it.
        """
        numbered = {name: f"${i}" for i, name in enumerate(self.others, 2)} | {"tenant": "t.tenant"}
        query = _PARAMETER.sub(lambda found: numbered[found[1]], self._text)
        return f"select q.* from {_SET_TENANT} cross join lateral ({query} offset 0) q"


def statements(part: str, **texts: str) -> dict[str, Statement]:
    """Load the statements of a part: of `part.sql` for both engines, and of `part.sqlite.sql` and `part.postgres.sql`.

    In a statement, {name} stands for one of the texts or for another statement of the same dialect, {in ids} for
    membership in the list :ids, {for update} for a row lock, which SQLite does not need, and {by index} for the index
    that SQLite must use.
    """
    both = _read(f"{part}.sql")
    sqlite = {name: text.replace("interlock.", "") for name, text in both.items()} | _read(f"{part}.sqlite.sql")
    postgres = both | _read(f"{part}.postgres.sql")
    if missing := sqlite.keys() ^ postgres.keys():
        raise LookupError(f"only one dialect of {part} has the statements {sorted(missing)}")
    return {
        name: Statement(
            name,
            _expanded(sqlite[name], sqlite | texts, _SQLITE),
            _expanded(postgres[name], postgres | texts, _POSTGRES),
        )
        for name in sqlite
        if _STATEMENT.match(sqlite[name])
    }


def _read(file: str) -> dict[str, str]:
    return load(PACKAGE, file) if (files(PACKAGE) / file).is_file() else {}


def _expanded(text: str, parts: Mapping[str, str], words: Mapping[str, str]) -> str:
    while match := _MARK.search(text):
        word, _, name = match[1].partition(" ")
        part = words[word].format(name) if name else parts[word]
        text = text[: match.start()] + part + text[match.end() :]
    return text


class Query(NamedTuple):
    """Answered with the rows."""

    statement: Statement
    values: Mapping[str, Any]


class Change(NamedTuple):
    """Answered with the number of rows that changed."""

    statement: Statement
    values: Mapping[str, Any]


class LockJobs(NamedTuple):
    """Lock jobs in one order; answered with the job states by ID."""

    ids: Sequence[str]


class WriteTransitions(NamedTuple):
    """Write decided transitions of locked jobs, with their history and everything that follows."""

    changes: Sequence[Transition]


class FillSlots(NamedTuple):
    """Give free concurrency slots to jobs that have become due."""


class EnqueueJobs(NamedTuple):
    """Add jobs; answered with a result for each. `progress` has digests of the progress that they start with."""

    jobs: Sequence[NewJob]
    terms: Terms
    progress: Mapping[str, dict[str, str | None]]


class WriteLog(NamedTuple):
    """Add a row to the audit log of operator actions."""

    entry: Entry


Step: TypeAlias = Query | Change | LockJobs | WriteTransitions | FillSlots | EnqueueJobs | WriteLog
Steps: TypeAlias = Generator[Step, Any, T]


class Transaction:
    """What the body of an operation may do. `now` is the store's clock, read once."""

    def __init__(self, tenant: str, now: int) -> None:
        self.tenant = tenant
        self.now = now

    def rows(self, statement: Statement, **values: Any) -> Steps[list[Row]]:
        rows: list[Row] = yield Query(statement, values)
        return rows

    def one(self, statement: Statement, **values: Any) -> Steps[Row | None]:
        rows = yield from self.rows(statement, **values)
        return rows[0] if rows else None

    def run(self, statement: Statement, **values: Any) -> Steps[int]:
        changed: int = yield Change(statement, values)
        return changed

    def lock_jobs(self, ids: Sequence[str]) -> Steps[dict[str, JobState]]:
        jobs: dict[str, JobState] = yield LockJobs(ids)
        return jobs

    def transition(self, changes: Sequence[Transition]) -> Steps[None]:
        if changes:
            yield WriteTransitions(changes)

    def enqueue(
        self, jobs: Sequence[NewJob], terms: Terms, progress: Mapping[str, dict[str, str | None]]
    ) -> Steps[list[Enqueued | Rejected]]:
        if not jobs:
            return []
        added: list[Enqueued | Rejected] = yield EnqueueJobs(jobs, terms, progress)
        return added

    def fill_slots(self) -> Steps[None]:
        yield FillSlots()

    def log(self, entry: Entry) -> Steps[None]:
        yield WriteLog(entry)


Body: TypeAlias = Callable[[Transaction], Steps[T]]


class Database(Protocol):
    """What an engine supplies to the parts."""

    async def rows(self, tenant: str | None, statement: Statement, **values: Any) -> list[Row]:
        """Run one query for a tenant; None only for functions that may search all tenants."""
        ...

    async def read(self, tenant: str, body: Body[T]) -> T:
        """Run queries on one snapshot."""
        ...

    async def write(self, tenant: str, body: Body[T], *, guarded: bool = False, repeatable: bool = True) -> T:
        """Run one transaction; `guarded` for changes that the database refuses to direct SQL.

        A repeatable operation is run again if the connection is lost during its commit.
        """
        ...

    async def now(self) -> int: ...

    def wake(self, tenant: str) -> None:
        """Announce that a job of the tenant may have become claimable."""
        ...


def columns(kind: type[tuple[Any, ...]], prefix: str = "", **instead: str) -> str:
    """Return the column list of a record; `instead` has expressions for columns that are not stored as such."""
    return ", ".join(instead.get(field, f"{prefix}{field}") for field in kind._fields)  # type: ignore[attr-defined]


def reader(kind: type[R], **special: Callable[[Any], Any]) -> Callable[[Row], R]:
    """Return a function that makes a record from a row of either engine, with its booleans, enums and lists."""
    hints = get_type_hints(kind)
    found = {name: special.get(name) or _unless_none(_converter(hint)) for name, hint in hints.items()}
    converters = [(i, convert) for i, convert in enumerate(found.values()) if convert is not None]
    make: Callable[[Sequence[Any]], R] = kind._make  # type: ignore[attr-defined]

    def read(row: Row) -> R:
        if not converters:
            return make(row)
        values = list(row)
        for i, convert in converters:
            values[i] = convert(values[i])
        return make(values)

    return read


def by_tenant(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Group the second column of rows that a sweep has found by the first, their tenant."""
    found: dict[str, list[Any]] = {}
    for tenant, value in rows:
        found.setdefault(tenant, []).append(value)
    return found


def names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return a list of texts, which is JSON on SQLite and an array on PostgreSQL."""
    return tuple(json.loads(value) if isinstance(value, str) else value)


def _unless_none(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return convert and (lambda value: None if value is None else convert(value))


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    if get_origin(hint) in (Union, UnionType):
        hint = next(arm for arm in get_args(hint) if arm is not NoneType)
    if hint is bool or (isinstance(hint, type) and issubclass(hint, Enum)):
        return hint
    return names if get_origin(hint) in (tuple, Sequence) else None
