"""Redrive, child listing and prune on SQLite."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from uuid import uuid4

from interlock.domain import operator_log
from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.domain.operations import START, Child, Past, PruneCommand, PrunedStep, Redrive, redriven
from interlock.errors import NotFound
from interlock.storage import history_chain
from interlock.storage.contract import Terms
from interlock.storage.parts.artifacts import forget
from interlock.storage.parts.reads import last_redrives
from interlock.storage.sql_files import load
from interlock.storage.sqlite import digests, driver, enqueue, job_blocks, log, progress
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys
from interlock.storage.sqlite.job_row import to_job

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "operations.sql")
_OPEN_PARENTS: Final = load("interlock.storage.sqlite", "enqueue.sql")["open_parents"]
# delete_job comes first: triggers reject deleting its other rows while the job exists.
_DELETES: Final = tuple(text for name, text in _SQL.items() if name.startswith("delete_"))
_FROM_THE_FIRST: Final = ("", -1)


class SQLiteOperations(ABC):
    """Redrive and prune methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    def _keys_of(self, tenant: str) -> EligibilityKeys: ...

    @abstractmethod
    def _stir(self, tenant: str) -> None: ...

    async def redrive(
        self, tenant: str, orders: Sequence[Redrive], *, registry: int = 0, implicit_agents: bool = True
    ) -> list[Enqueued | Rejected]:
        terms = Terms(registry, implicit_agents)
        answers = await self._write(lambda c: _redrive(c, self._keys_of(tenant), tenant, orders, terms))
        self._stir(tenant)
        return answers

    async def children_after(
        self, tenant: str, parents: Sequence[str], after: tuple[str, int] | None, *, limit: int
    ) -> list[Child]:
        return await self._read(lambda c: _children(c, tenant, parents, after or _FROM_THE_FIRST, limit))

    async def prune(self, tenant: str, order: PruneCommand) -> PrunedStep:
        return await self._write(lambda c: _prune(c, tenant, order))

    async def extend_history(self) -> int:
        return 0

    async def leave_history(self, cutoff: int) -> int:
        return 0

    async def drop_history(self, cutoff: int) -> int:
        return 0


def _redrive(
    connection: Connection, eligibility_keys: EligibilityKeys, tenant: str, orders: Sequence[Redrive], terms: Terms
) -> list[Enqueued | Rejected]:
    answers: dict[int, Enqueued | Rejected] = {}
    new: dict[int, NewJob] = {}
    again = driver.run(connection, tenant, lambda tx: last_redrives(tx, [order.id for order in orders]), connection.now)
    for i, order in enumerate(orders):
        facts = {"tenant": tenant, "id": order.id, "step": order.step}
        rows = connection.rows(_SQL["to_redrive"], facts)
        if not rows:
            answers[i] = Rejected(NotFound(order.id))
        elif order.once and order.id in again:
            answers[i] = again[order.id]
        else:
            *values, has_checkpoint, has_step = rows[0]
            past = Past(to_job(values), bool(has_checkpoint), bool(has_step))
            job = redriven(order, past, under_parent=_is_open(connection, tenant, past.job.parent_id))
            if isinstance(job, NewJob):
                new[i] = job
            else:
                answers[i] = Rejected(job)
    if new:
        saved = {
            job.id: digests.of_copied_progress(connection, tenant, orders[i].id, orders[i].step)
            for i, job in new.items()
            if orders[i].origin != START
        }
        added = enqueue.enqueue(connection, eligibility_keys, tenant, list(new.values()), False, terms, saved)
        answers |= zip(new, added, strict=True)
    for i, order in enumerate(orders):
        answer = answers[i]
        if isinstance(answer, Enqueued) and not answer.replayed:
            connection.db.execute(_SQL["copy_effects"], {"tenant": tenant, "source": order.id, "target": answer.id})
            if order.origin != START:
                _copy_progress(connection, tenant, order.id, answer.id, order.step)
    return [answers[i] for i in range(len(orders))]


def _copy_progress(connection: Connection, tenant: str, source: str, target: str, through: str | None) -> None:
    """Copy the steps up to the last one named `through`, or all steps and the checkpoint."""
    progress.copy_steps(connection, tenant, source, target, through=through)
    _copy_step_results(connection, tenant, source, target)
    connection.db.execute(_SQL["copy_messages"], {"tenant": tenant, "source": source, "target": target})
    if through is None:
        connection.db.execute(_SQL["copy_checkpoint"], {"tenant": tenant, "source": source, "target": target})


def _copy_step_results(connection: Connection, tenant: str, source: str, target: str) -> None:
    """Copy the artifacts that hold large results of steps."""
    found = connection.rows(_SQL["step_results"], {"tenant": tenant, "source": source})
    for id, _ in found:
        facts = {"tenant": tenant, "source": source, "target": target, "id": id, "copy": str(uuid4())}
        connection.db.execute(_SQL["copy_artifact"], facts)
    if found:
        connection.db.execute(_SQL["use_bytes"], {"tenant": tenant, "growth": sum(size for _, size in found)})


def _is_open(connection: Connection, tenant: str, parent_id: str | None) -> bool:
    if parent_id is None:
        return False
    rows = connection.rows(_OPEN_PARENTS, {"tenant": tenant, "ids": json.dumps([parent_id])})
    return bool(rows and rows[0][1])


def _children(
    connection: Connection, tenant: str, parents: Sequence[str], after: tuple[str, int], limit: int
) -> list[Child]:
    found: list[Child] = []
    for parent in sorted({*parents}):
        if parent < after[0] or len(found) == limit:
            continue
        facts = {
            "tenant": tenant, "parent": parent, "after": after[1] if parent == after[0] else -1,
            "limit": limit - len(found),
        }  # fmt: skip
        rows = connection.rows(_SQL["children_after"], facts)
        found += [Child(id, of, seq, bool(live), bool(asked)) for id, of, seq, live, asked in rows]
    return found


def _prune(connection: Connection, tenant: str, order: PruneCommand) -> PrunedStep:
    rows = connection.rows(_SQL["next_jobs"], {"tenant": tenant, "after": order.after_seq, "step": order.step})
    cutoff = min(order.cutoff, connection.now)
    last_seq = rows[-1][0] if rows else order.after_seq
    # A job created after the cutoff cannot have finished before it, so stop once no job of this step is older.
    at_end = len(rows) < order.step or all(created_at >= cutoff for _, _, created_at, _, _ in rows)
    old = [(seq, id, hash) for seq, id, _, ended, hash in rows if ended is not None and ended < cutoff]
    if order.most is not None and len(old) > order.most:
        old, at_end = old[: order.most], False
        last_seq = old[-1][0] if old else order.after_seq
    if old and not order.dry_run:
        seqs, ids = [seq for seq, _, _ in old], [id for _, id, _ in old]
        ends = sorted((tenant, id, hash) for _, id, hash in old)
        digest = bytes.fromhex(history_chain.head(ends))
        connection.db.execute(
            _SQL["note_prune"],
            (tenant, connection.now, order.id, order.actor, cutoff, len(old), seqs[0], seqs[-1], digest),
        )
        facts = {"tenant": tenant, "seqs": json.dumps(seqs), "ids": json.dumps(ids)}
        for statement in _DELETES:
            connection.db.execute(statement, facts)
        log.append(connection, tenant, operator_log.prune(order, len(old), cutoff))
        driver.run(connection, tenant, lambda tx: forget(tx, ids), connection.now)
        job_blocks.drop_emptied(connection, tenant, seqs[0], seqs[-1])
    return PrunedStep(len(old), last_seq, at_end)
