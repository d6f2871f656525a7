"""Redrive: a new job repeats a terminal one, with its progress."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from interlock.domain import digests
from interlock.domain.artifact import STEP_RESULTS
from interlock.domain.digests import StepFields
from interlock.domain.job import Enqueued, Job, NewJob, Rejected
from interlock.domain.operations import START, Past, Redrive, redriven
from interlock.errors import NotFound
from interlock.storage.contract import Terms
from interlock.storage.dialect import Database, Row, Steps, Transaction, reader, statements
from interlock.storage.parts.artifacts import use_bytes

SQL: Final = statements("redrive")
_job: Final = reader(Job)


class Redrives:
    """The methods of a store that redrive jobs; see the contract."""

    _database: Database

    async def redrive(
        self, tenant: str, orders: Sequence[Redrive], *, registry: int = 0, implicit_agents: bool = True
    ) -> list[Enqueued | Rejected]:
        body = partial(_redrive, orders=orders, terms=Terms(registry, implicit_agents))
        answers = await self._database.write(tenant, body, guarded=True)
        self._database.wake(tenant)
        return answers

    async def redriven(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        return {id for id, _, _ in await self._database.rows(tenant, SQL["all_redrives"], ids=list(job_ids))}

    async def redrives(self, tenant: str, job_id: str, *, limit: int) -> list[str]:
        return [id for (id,) in await self._database.rows(tenant, SQL["redrives"], id=job_id, limit=limit)]


def _redrive(tx: Transaction, orders: Sequence[Redrive], terms: Terms) -> Steps[list[Enqueued | Rejected]]:
    """Lock the terminal jobs, add the new ones and copy their progress."""
    ids = [order.id for order in orders]
    yield from tx.lock_jobs(ids)  # a concurrent redrive of the same job waits here
    old = {past.job.id: past for past in map(_past, (yield from tx.rows(SQL["to_redrive"], ids=ids)))}
    again = {id: Enqueued(last, seq, True) for id, last, seq in (yield from tx.rows(SQL["all_redrives"], ids=ids))}
    of = sorted({past.job.parent_id for past in old.values() if past.job.parent_id is not None})
    parents = {id for (id,) in (yield from tx.rows(SQL["open_parents"], ids=of))} if of else set()
    answers: dict[int, Enqueued | Rejected] = {}
    new: dict[int, NewJob] = {}
    for i, order in enumerate(orders):
        if order.id not in old:
            answers[i] = Rejected(NotFound(order.id))
        elif order.once and order.id in again:
            answers[i] = again[order.id]
        else:
            past = old[order.id]
            if order.step is not None:
                past = past._replace(
                    has_step=(yield from tx.one(SQL["has_step"], id=order.id, step=order.step)) is not None
                )
            job = redriven(order, past, under_parent=past.job.parent_id in parents)
            if isinstance(job, NewJob):
                new[i] = job
            else:
                answers[i] = Rejected(job)
    saved = {}
    for i, job in new.items():
        if orders[i].origin != START:
            saved[job.id] = yield from _digests(tx, orders[i])
    added = yield from tx.enqueue([*new.values()], terms, saved)
    for i, answer in zip(new, added, strict=True):
        answers[i] = answer
        if isinstance(answer, Enqueued) and not answer.replayed:
            yield from _copy(tx, orders[i], answer.id)
    return [answers[i] for i in range(len(orders))]


def _past(row: Row) -> Past:
    *values, has_checkpoint = row
    return Past(_job(values), bool(has_checkpoint), has_step=False)


def _digests(tx: Transaction, order: Redrive) -> Steps[dict[str, str | None]]:
    """Return the digests of the checkpoint and steps that the new job starts with."""
    found: dict[str, str | None] = {}
    checkpoint = None if order.step else (yield from tx.one(SQL["checkpoint"], source=order.id))
    if checkpoint is not None:
        found["checkpoint"] = digests.of_fields(*checkpoint)
    rows = yield from tx.rows(SQL["steps"], source=order.id, through=order.step)
    steps = digests.of_steps(map(StepFields._make, rows))
    return found if steps is None else found | {"steps": steps}


def _copy(tx: Transaction, order: Redrive, target: str) -> Steps[None]:
    """Copy what the new job starts with: steps up to the one of the order, or all and the checkpoint."""
    where = {"source": order.id, "target": target}
    yield from tx.run(SQL["copy_effects"], **where)
    if order.origin == START:
        return
    yield from tx.run(SQL["copy_steps"], **where, through=order.step)
    growth = 0
    for id, size in (yield from tx.rows(SQL["large_results"], source=order.id, prefix=STEP_RESULTS)):
        growth += size * (yield from tx.run(SQL["copy_artifact"], **where, id=id, copy=str(uuid4())))
    yield from use_bytes(tx, growth)
    yield from tx.run(SQL["copy_messages"], **where)
    if order.step is None:
        yield from tx.run(SQL["copy_checkpoint"], **where)
