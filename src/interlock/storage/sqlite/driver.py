"""The driver of the parts on SQLite: bodies run in the writer thread, queries on a reader."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from interlock.storage.dialect import (
    Body,
    Change,
    EnqueueJobs,
    FillSlots,
    LockJobs,
    Query,
    Row,
    Statement,
    Step,
    Transaction,
    WriteTransitions,
)
from interlock.storage.sqlite import enqueue, log, transition_effects
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys

T = TypeVar("T")


class _Run(Protocol):
    def __call__(self, verb: Callable[[Connection], T], /) -> Awaitable[T]: ...


class Jobs(Protocol):
    """Reads the states of jobs, and writes the transitions of jobs that were read."""

    def job_states(self, connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Any]: ...

    def write(
        self, connection: Connection, tenant: str, changes: Sequence[tuple[Any, Any]], eligibility_keys: EligibilityKeys
    ) -> None: ...


class SQLiteDatabase:
    """Runs the parts on the connections of a store."""

    def __init__(
        self, write: _Run, read: _Run, jobs: Jobs, clock: Callable[[], int], wake: Callable[[str], None]
    ) -> None:
        self._write = write
        self._read = read
        self._jobs = jobs
        self._clock = clock
        self._wake = wake

    async def rows(self, tenant: str | None, statement: Statement, **values: Any) -> list[Row]:
        return await self._read(lambda c: _rows(c, statement, {**values, "tenant": tenant, "now": c.read_clock()}))

    async def read(self, tenant: str, body: Body[T]) -> T:
        return await self._read(lambda c: _on_a_snapshot(c, tenant, body))

    async def write(self, tenant: str, body: Body[T], *, guarded: bool = False, repeatable: bool = True) -> T:
        return await self._write(lambda c: run(c, tenant, body, c.now, self._jobs))

    async def now(self) -> int:
        return self._clock()

    def wake(self, tenant: str) -> None:
        self._wake(tenant)


def _on_a_snapshot(connection: Connection, tenant: str, body: Body[T]) -> T:
    if connection.db.in_transaction:  # of the writer: a database in memory has no readers
        return run(connection, tenant, body, connection.now)
    connection.db.execute("BEGIN")
    try:
        return run(connection, tenant, body, connection.read_clock())
    finally:
        connection.db.execute("ROLLBACK")


def run(connection: Connection, tenant: str, body: Body[T], now: int, jobs: Jobs | None = None) -> T:
    """Run a body in the open transaction."""
    found: dict[str, Any] = {}
    steps = body(Transaction(tenant, now))
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = _perform(connection, tenant, now, jobs, found, step)


def _perform(
    connection: Connection, tenant: str, now: int, jobs: Jobs | None, found: dict[str, Any], step: Step
) -> Any:
    if isinstance(step, Query):
        return _rows(connection, step.statement, {**step.values, "tenant": tenant, "now": now})
    if isinstance(step, Change):
        connection.db.execute(step.statement.sqlite, _bound({**step.values, "tenant": tenant, "now": now}))
        return connection.db.changes()
    if isinstance(step, LockJobs | WriteTransitions):
        assert jobs is not None
        if isinstance(step, LockJobs):
            found |= jobs.job_states(connection, tenant, step.ids)
            return {id: found[id].state for id in step.ids if id in found}
        changes = [(change, found[change.id]) for change in step.changes]
        return jobs.write(connection, tenant, changes, EligibilityKeys(tenant))
    if isinstance(step, EnqueueJobs):
        return enqueue.enqueue(connection, EligibilityKeys(tenant), tenant, step.jobs, False, step.terms, step.progress)
    if isinstance(step, FillSlots):
        return transition_effects.fill_slots(connection, tenant)
    return log.append(connection, tenant, step.entry)


def _rows(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
    return list(connection.rows(statement.sqlite, _bound(values)))


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as SQLite takes them: lists as JSON."""
    return {
        name: json.dumps(value, separators=(",", ":")) if isinstance(value, (list, tuple)) else value
        for name, value in values.items()
    }
