"""The driver of the parts on PostgreSQL: a body is one transaction of its tenant, a query one round trip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from interlock.domain.transition import JobState, Transition
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
from interlock.storage.postgres import enqueue
from interlock.storage.postgres.connection import Conn

T = TypeVar("T")

_BEGIN: Final = (
    "select set_config('interlock.tenant', $1, true), set_config('interlock.verb', $2, true), interlock.clock()"
)
_GUARD: Final = "select set_config('interlock.verb', 'on', true)"
_FILL_SLOTS: Final = "select interlock.fill_slots($1)"
_LOG: Final = "select interlock.log($1, $2, $3, $4, $5)"


class _Run(Protocol):
    def __call__(self, verb: Callable[[Conn], Awaitable[T]], /, *, repeatable: bool = True) -> Awaitable[T]: ...


class Jobs(Protocol):
    """Locks jobs, and writes the transitions of locked jobs."""

    async def job_states(
        self, connection: Conn, tenant: str, ids: Sequence[str]
    ) -> tuple[dict[str, JobState], int]: ...

    async def write(self, connection: Conn, tenant: str, changes: Sequence[Transition]) -> None: ...


class PostgresDatabase:
    """Runs the parts on the connections of a store."""

    def __init__(self, run: _Run, jobs: Jobs, wake: Callable[[str], None]) -> None:
        self._run = run
        self._jobs = jobs
        self._wake = wake

    async def rows(self, tenant: str | None, statement: Statement, **values: Any) -> list[Row]:
        if tenant is None:
            text, bound = statement.postgres, _bound(statement.parameters, values)
        else:
            text, bound = statement.postgres_alone, [tenant, *_bound(statement.others, values)]
        return await self._run(lambda c: c.fetch(text, *bound))

    async def read(self, tenant: str, body: Body[T]) -> T:
        async def work(connection: Conn) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await run(connection, tenant, body)

        return await self._run(work)

    async def write(self, tenant: str, body: Body[T], *, guarded: bool = False, repeatable: bool = True) -> T:
        async def work(connection: Conn) -> T:
            async with connection.transaction():
                return await run(connection, tenant, body, self._jobs, guarded=guarded)

        return await self._run(work, repeatable=repeatable)

    async def now(self) -> int:
        return int(await self._run(lambda c: c.fetchval("select interlock.clock()")))

    def wake(self, tenant: str) -> None:
        self._wake(tenant)


async def run(connection: Conn, tenant: str, body: Body[T], jobs: Jobs | None = None, *, guarded: bool = False) -> T:
    """Run a body in the open transaction."""
    started = await connection.fetchrow(_BEGIN, tenant, "on" if guarded else "")
    assert started is not None
    steps = body(Transaction(tenant, started[2]))
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = await _perform(connection, tenant, jobs, step)
        if guarded and not isinstance(step, (Query, Change)):  # our functions reset the flag
            await connection.execute(_GUARD)


async def _perform(connection: Conn, tenant: str, jobs: Jobs | None, step: Step) -> Any:
    if isinstance(step, Query | Change):
        statement = step.statement
        bound = _bound(statement.parameters, {**step.values, "tenant": tenant})
        if isinstance(step, Query):
            return await connection.fetch(statement.postgres, *bound)
        return int((await connection.execute(statement.postgres, *bound)).rpartition(" ")[2])
    if isinstance(step, LockJobs | WriteTransitions):
        assert jobs is not None
        if isinstance(step, LockJobs):
            return (await jobs.job_states(connection, tenant, step.ids))[0]
        return await jobs.write(connection, tenant, step.changes)
    if isinstance(step, EnqueueJobs):  # with a fresh cache, so that all lookups happen in this transaction
        known = enqueue.EnqueueCache()
        return await enqueue.enqueue(connection, known, tenant, step.jobs, False, step.terms, step.progress)
    if isinstance(step, FillSlots):
        return await connection.execute(_FILL_SLOTS, tenant)
    return await connection.execute(_LOG, tenant, *step.entry)


def _bound(names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
    """Return values in order as asyncpg takes them: enums as text."""
    return [str(value) if isinstance(value := values[name], Enum) else value for name in names]
