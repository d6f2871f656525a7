"""Redrive, job trees and prune on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from interlock.domain.artifact import REPLACED_KEPT_SECONDS
from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.domain.operations import START, Child, Past, PruneCommand, PrunedStep, Redrive, redriven
from interlock.domain.progress import SMALLEST_ID
from interlock.errors import NotFound
from interlock.storage.contract import Terms
from interlock.storage.job_columns import JOB, job_of
from interlock.storage.parts.reads import last_redrives
from interlock.storage.postgres import driver, enqueue
from interlock.storage.postgres.connection import Conn, call

T = TypeVar("T")
_FROM_THE_FIRST: Final = (SMALLEST_ID, -1)


class PostgresOperations(ABC):
    """The store methods that redrive and prune jobs."""

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any, repeatable: bool = True) -> list[asyncpg.Record]: ...

    @abstractmethod
    def _stir(self, tenant: str) -> None: ...

    async def redrive(
        self, tenant: str, orders: Sequence[Redrive], *, registry: int = 0, implicit_agents: bool = True
    ) -> list[Enqueued | Rejected]:
        terms = Terms(registry, implicit_agents)
        answers = await self._run(lambda c: _redrive(c, tenant, orders, terms)) if orders else []
        self._stir(tenant)
        return answers

    async def children_after(
        self, tenant: str, parents: Sequence[str], after: tuple[str, int] | None, *, limit: int
    ) -> list[Child]:
        rows = await self._fetch(
            call("children_after", 5), tenant, list(parents), *(after or _FROM_THE_FIRST), limit
        )  # fmt: skip
        return sorted((Child(*row) for row in rows), key=lambda child: (child.parent_id, child.seq))

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        o, most = order, order.step if order.most is None else order.most
        facts = (o.id, o.actor, o.cutoff, o.after_seq, o.step, o.dry_run, most, REPLACED_KEPT_SECONDS)
        (row,) = await self._fetch(call("prune", 9), tenant, *facts, repeatable=False)
        return PrunedStep(*row)


async def _redrive(connection: Conn, tenant: str, orders: Sequence[Redrive], terms: Terms) -> list[Enqueued | Rejected]:
    """Lock the terminal jobs, add the new ones and copy their progress, in one transaction."""
    async with connection.transaction():
        return await _redrive_within(connection, tenant, orders, terms)


async def _redrive_within(
    connection: Conn, tenant: str, orders: Sequence[Redrive], terms: Terms
) -> list[Enqueued | Rejected]:
    ids = [order.id for order in orders]
    rows = await connection.fetch(call("to_redrive", 3), tenant, ids, [order.step for order in orders])
    jobs = {job.id: job for job in map(job_of, await connection.fetch(call("jobs", 2, columns=JOB), tenant, ids))}
    pasts = {row["id"]: Past(jobs[row["id"]], row["has_checkpoint"], row["has_step"]) for row in rows}
    again = await driver.run(connection, tenant, lambda tx: last_redrives(tx, ids))
    parents = sorted({job.parent_id for job in jobs.values() if job.parent_id is not None})
    is_open = {
        row["id"]: row["is_open"] for row in await connection.fetch(call("open_parents", 2), tenant, parents)
    }  # fmt: skip
    answers: dict[int, Enqueued | Rejected] = {}
    new: dict[int, NewJob] = {}
    for i, order in enumerate(orders):
        past = pasts.get(order.id)
        if past is None:
            answers[i] = Rejected(NotFound(order.id))
        elif order.once and order.id in again:
            answers[i] = again[order.id]
        else:
            job = redriven(order, past, under_parent=is_open.get(past.job.parent_id or "", False))
            if isinstance(job, NewJob):
                new[i] = job
            else:
                answers[i] = Rejected(job)
    if new:
        # Use a fresh cache, so that all lookups happen in this transaction.
        saved: dict[str, dict[str, str | None]] = {}
        for i, job in new.items():
            if orders[i].origin != START:
                row = await connection.fetchrow(call("copied_progress", 3), tenant, orders[i].id, orders[i].step)
                saved[job.id] = {name: row[name] for name in ("checkpoint", "steps") if row is not None and row[name]}
        added = await enqueue.enqueue(
            connection, enqueue.EnqueueCache(), tenant, list(new.values()), False, terms, saved
        )
        answers |= zip(new, added, strict=True)
    for i, order in enumerate(orders):
        answer = answers[i]
        if isinstance(answer, Enqueued) and not answer.replayed:
            await connection.execute("select interlock.copy_effects($1, $2, $3)", tenant, order.id, answer.id)
            if order.origin != START:
                await connection.execute(
                    "select interlock.copy_progress($1, $2, $3, $4)", tenant, order.id, answer.id, order.step
                )
    return [answers[i] for i in range(len(orders))]
