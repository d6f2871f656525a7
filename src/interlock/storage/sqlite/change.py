"""Every change of a job on SQLite: read under the write lock, decided in the domain, written with its history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import random
from typing import Any, Final, NamedTuple

from interlock.domain.audit import history_hash
from interlock.domain.decide import (
    CancelAck,
    Change,
    Complete,
    Fail,
    Finish,
    Order,
    Release,
    Standing,
    Unchanged,
    answer_repeat,
    decide,
    holds,
    receipt_of,
)  # fmt: skip
from interlock.domain.job import Beat, Checkpoint, HistoryRow, Pulse, Receipt, Refused
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.retry import SECOND
from interlock.errors import CheckpointConflict, Error, Invalid, NotFound
from interlock.storage.sqlite.connection import Connection
from interlock.storage.statements import load
from interlock.storage.turns import turns

_SQL: Final = load("interlock.storage.sqlite", "change.sql")
_INSERT_HISTORY: Final = load("interlock.storage.sqlite", "enqueue.sql")["insert_history"]
_FINISHES: Final = (Fail, Release, CancelAck)


class _Found(NamedTuple):
    standing: Standing
    seq: int
    head: bytes


def carry_out(connection: Connection, tenant: str, orders: Sequence[Order]) -> list[Receipt | Refused]:
    """Decide and write each order; two orders for one job follow each other."""
    answers: dict[int, Receipt | Refused] = {}
    for turn in turns(orders):
        plain = {i: order for i in turn if isinstance(order := orders[i], Complete)}
        others = {i: orders[i] for i in turn if i not in plain}
        if plain:
            answers |= zip(plain, _complete(connection, tenant, list(plain.values())), strict=True)
        if others:
            answers |= zip(others, _one_each(connection, tenant, list(others.values())), strict=True)
    return [answers[i] for i in range(len(orders))]


def _complete(connection: Connection, tenant: str, orders: Sequence[Complete]) -> list[Receipt | Refused]:
    """The hot finish: nothing to decide, the grant only has to be the current one."""
    db, now = connection.db, connection.now
    rows = connection.rows(_SQL["held_to_complete"], {"tenant": tenant, "ids": json.dumps([o.id for o in orders])})
    found = {row[0]: row for row in rows}
    answers: list[Receipt | Refused] = []
    seqs, history_rows, ended = [], [], []
    results: list[tuple[object, ...]] = []
    for order in orders:
        row = found.get(order.id)
        if row is None:
            answers.append(Refused(NotFound(order.id)))
            continue
        id, seq, status, fence, worker, version, attempt, head = row
        if status != "running" or fence != order.fence or worker != order.worker:
            answers.append(_repeated(connection, tenant, order))
            continue
        actor = f"worker:{worker}"
        move = ("running", "succeeded", "complete", actor, attempt, fence, None, None, now)
        hash = history_hash(head, tenant, id, version + 1, *move)
        if order.result is not None or order.result_summary is not None or order.usage is not None:
            results.append((tenant, seq, order.result, order.result_summary, order.usage, order.sanitized))
        seqs.append(seq)
        history_rows.append((tenant, seq, version + 1, *move, hash))
        answers.append(Receipt(id, fence, Status.SUCCEEDED, attempt, version + 1, None, now))
        ended.append(id)
    db.execute(_SQL["complete"], {"tenant": tenant, "seqs": json.dumps(seqs), "now": now})
    db.executemany(_SQL["insert_result"], results)
    db.executemany(_INSERT_HISTORY, history_rows)
    _tell_parents(connection, tenant, ended)
    return answers


def _repeated(connection: Connection, tenant: str, order: Finish) -> Receipt | Refused:
    ended = grant_end(connection, tenant, order.id, order.fence)
    answer = answer_repeat(ended, order.verb, order.id, order.fence, order.worker)
    return Refused(answer) if isinstance(answer, Error) else answer


def _one_each(connection: Connection, tenant: str, orders: Sequence[Order]) -> list[Receipt | Refused]:
    found = _standings(connection, tenant, [order.id for order in orders])
    answers: list[Receipt | Refused] = []
    changes: list[tuple[Change, _Found]] = []
    for order in orders:
        here = found.get(order.id)
        outcome: Change | Unchanged | Error
        if here is None:
            outcome = NotFound(order.id)
        elif isinstance(order, _FINISHES) and not holds(here.standing, order.fence, order.worker):
            answers.append(_repeated(connection, tenant, order))
            continue
        else:
            outcome = decide(order, here.standing, now=connection.now, chance=random())
            if isinstance(outcome, Change) and outcome.children:
                outcome = _still_open(connection, tenant, outcome)
        if isinstance(outcome, Change):
            assert here is not None
            changes.append((outcome, here))
            answers.append(_receipt(outcome, here, connection.now))
        elif isinstance(outcome, Unchanged):
            answers.append(_last_receipt(connection, tenant, order.id))
        else:
            answers.append(Refused(outcome))
    _write(connection, tenant, changes)
    return answers


def _standings(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, _Found]:
    rows = connection.rows(_SQL["standings"], {"tenant": tenant, "ids": json.dumps(ids)})
    return {row[0]: _Found(Standing(row[0], Status(row[1]), *row[2:18]), row[18], row[19]) for row in rows}


def _still_open(connection: Connection, tenant: str, change: Change) -> Change | Error:
    """The change with only those children that have not ended yet, or a refusal of a stranger."""
    rows = connection.rows(_SQL["children"], {"tenant": tenant, "ids": json.dumps(change.children)})
    children = {id: (ended, parent) for id, ended, parent in rows}
    for child in change.children:
        if child not in children or children[child][1] != change.id:
            return Invalid(f"job {child} is not a child of job {change.id}", pointer="/children")
    return change._replace(children=tuple(sorted({c for c in change.children if not children[c][0]})))


def _receipt(change: Change, here: _Found, now: int) -> Receipt:
    return Receipt(
        change.id, here.standing.fence, change.status, change.attempt, change.version + 1, change.run_at,
        now if change.status in TERMINAL else None,
    )  # fmt: skip


def _last_receipt(connection: Connection, tenant: str, job_id: str) -> Receipt:
    return receipt_of(history(connection, tenant, job_id)[-1])


def history(connection: Connection, tenant: str, job_id: str) -> list[HistoryRow]:
    return [_row(r) for r in connection.rows(_HISTORY, {"tenant": tenant, "id": job_id})]


def grant_end(connection: Connection, tenant: str, job_id: str, fence: int) -> HistoryRow | None:
    """The row that ended the grant with this fence, if it has ended."""
    rows = connection.rows(_SQL["grant_end"], {"tenant": tenant, "id": job_id, "fence": fence})
    return _row(rows[0]) if rows else None


def _row(r: tuple[Any, ...]) -> HistoryRow:
    return HistoryRow(r[0], r[1], r[2] and Status(r[2]), Status(r[3]), Verb(r[4]), *r[5:])


_HISTORY: Final = load("interlock.storage.sqlite", "read.sql")["history"]


def _write(connection: Connection, tenant: str, changes: Sequence[tuple[Change, _Found]]) -> None:
    if not changes:
        return
    db, now = connection.db, connection.now
    updates, rows = [], []
    for change, (standing, seq, head) in changes:
        version = change.version + 1
        move = (
            standing.status, change.status, change.verb, change.actor, standing.attempt, standing.fence,
            change.reason, change.metadata, now,
        )  # fmt: skip
        hash = history_hash(head, tenant, change.id, version, *move)
        updates.append(change._asdict() | {
            "tenant": tenant, "seq": seq, "now": now, "awaiting": len(change.children),
            "finished_at": now if change.status in TERMINAL else None,
        })  # fmt: skip
        rows.append((tenant, seq, version, *move, hash))
    db.executemany(_SQL["change"], updates)
    db.executemany(_INSERT_HISTORY, rows)
    db.executemany(_SQL["await_child"], [(tenant, child, c.id) for c, _ in changes for child in c.children])
    _tell_parents(connection, tenant, [c.id for c, _ in changes if c.status in TERMINAL])


def _tell_parents(connection: Connection, tenant: str, ended: Sequence[str]) -> None:
    """Children that ended are waited for no more; a job that ended waits for nobody."""
    db = connection.db
    ((anyone,),) = connection.rows(_SQL["anyone_awaits"], {"tenant": tenant})
    if not anyone:
        return
    facts = {"tenant": tenant, "ids": json.dumps(ended)}
    db.execute(_SQL["await_no_more"], facts)
    parents = connection.rows(_SQL["child_ended"], facts)
    db.executemany(_SQL["one_child_less"], [(tenant, parent) for (parent,) in parents])


def heartbeat(connection: Connection, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
    """Extend each lease that its worker still holds."""
    held = _held(connection, tenant, [beat.id for beat in beats])
    now = connection.now
    answers: list[Pulse | Refused] = []
    moves, saves = [], []
    for beat in beats:
        job = held.get(beat.id)
        error = _fault(connection, tenant, job, beat.id, beat.fence, beat.worker)
        if error is None and beat.checkpoint is not None:
            error = _checkpoint_fault(job, beat.checkpoint)
        if error is not None or job is None:
            answers.append(Refused(error or NotFound(beat.id)))
            continue
        expires = now + round((beat.lease_seconds or job.lease_seconds) * SECOND)
        if job.timeout_seconds is not None:
            expires = min(expires, job.run_started_at + round(job.timeout_seconds * SECOND))
        moves.append((expires, now, now, tenant, job.seq))
        if beat.checkpoint is not None and _is_newer(job, beat.checkpoint):
            saves.append(beat.checkpoint)
            held[beat.id] = job._replace(checkpoint_seq=beat.checkpoint.seq, checkpoint=beat.checkpoint.data)
        answers.append(
            Pulse(beat.id, expires, job.cancel_requested_at is not None, job.cancel_reason, bool(job.paused))
        )
    connection.db.executemany(_SQL["beat"], moves)
    _save(connection, tenant, saves)
    return answers


def checkpoint(connection: Connection, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
    """Save each checkpoint that is newer than what its job has."""
    held = _held(connection, tenant, [c.id for c in checkpoints])
    answers: list[int | Refused] = []
    saves = []
    for c in checkpoints:
        job = held.get(c.id)
        error = _fault(connection, tenant, job, c.id, c.fence, c.worker) or _checkpoint_fault(job, c)
        if error is not None or job is None:
            answers.append(Refused(error or NotFound(c.id)))
            continue
        if _is_newer(job, c):
            saves.append(c)
            held[c.id] = job._replace(checkpoint_seq=c.seq, checkpoint=c.data)
        answers.append(c.seq)
    _save(connection, tenant, saves)
    return answers


class _Held(NamedTuple):
    id: str
    seq: int
    status: str
    fence: int
    worker: str | None
    lease_seconds: float
    run_started_at: int
    timeout_seconds: float | None
    cancel_requested_at: int | None
    cancel_reason: str | None
    checkpoint_seq: int | None
    checkpoint: str | None
    paused: int


def _held(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, _Held]:
    rows = connection.rows(_SQL["held"], {"tenant": tenant, "ids": json.dumps(sorted(set(ids)))})
    return {row[0]: _Held._make(row) for row in rows}


def _fault(connection: Connection, tenant: str, job: _Held | None, id: str, fence: int, worker: str) -> Error | None:
    if job is None:
        return NotFound(id)
    if job.status == Status.RUNNING and job.fence == fence and job.worker == worker:
        return None
    answer = answer_repeat(grant_end(connection, tenant, id, fence), None, id, fence, worker)
    assert isinstance(answer, Error)
    return answer


def _checkpoint_fault(job: _Held | None, c: Checkpoint) -> Error | None:
    if job is None or job.checkpoint_seq is None or _is_newer(job, c):
        return None
    if c.seq == job.checkpoint_seq and c.data == job.checkpoint:
        return None
    return CheckpointConflict(c.id, c.seq, job.checkpoint_seq)


def _is_newer(job: _Held, c: Checkpoint) -> bool:
    return job.checkpoint_seq is None or c.seq > job.checkpoint_seq


def _save(connection: Connection, tenant: str, saves: Sequence[Checkpoint]) -> None:
    rows = [(tenant, c.id, c.seq, c.data, c.sanitized, connection.now) for c in saves]
    connection.db.executemany(_SQL["save_checkpoint"], rows)
