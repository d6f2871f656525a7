"""Every change of a job on SQLite: read under the write lock, decided in the domain, written with its history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import random
from typing import Any, Final, NamedTuple

from interlock.domain.approval import OpenGate
from interlock.domain.audit import history_hash
from interlock.domain.change import Change, Standing, Unchanged
from interlock.domain.decide import (
    CancelAck,
    Complete,
    Ending,
    Fail,
    Order,
    Release,
    answer_repeat,
    decide,
    holds,
    receipt_of,
)  # fmt: skip
from interlock.domain.edit import Edit
from interlock.domain.job import ANY_FENCE, Receipt, Refused
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Error, Invalid, NotFound
from interlock.storage.sqlite import approvals, beats, edits, history, moves
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.routes import Routes
from interlock.storage.statements import load
from interlock.storage.turns import turns

_SQL: Final = load("interlock.storage.sqlite", "change.sql")
_ENDINGS: Final = (Fail, Release, CancelAck, OpenGate)


class Found(NamedTuple):
    """A job as decisions see it, and where its history ends."""

    standing: Standing
    seq: int
    head: bytes
    base: int
    line: int | None
    placed: int


def carry_out(
    connection: Connection, tenant: str, orders: Sequence[Order], routes: Routes | None = None
) -> list[Receipt | Refused]:
    """Decide and write each order; two orders for one job follow each other."""
    answers: dict[int, Receipt | Refused] = {}
    for turn in turns(orders):
        plain = {i: order for i in turn if isinstance(order := orders[i], Complete)}
        others = {i: orders[i] for i in turn if i not in plain}
        if plain:
            answers |= zip(plain, _complete(connection, tenant, list(plain.values())), strict=True)
        if others:
            answers |= zip(
                others, _one_each(connection, tenant, list(others.values()), routes or Routes(tenant)), strict=True
            )
    return [answers[i] for i in range(len(orders))]


def _complete(connection: Connection, tenant: str, orders: Sequence[Complete]) -> list[Receipt | Refused]:
    """The hot finish: nothing to decide, the grant only has to be the current one."""
    now = connection.now
    rows = connection.rows(_SQL["held_to_complete"], {"tenant": tenant, "ids": json.dumps([o.id for o in orders])})
    found = {row[0]: row for row in rows}
    answers: list[Receipt | Refused] = []
    ended, seqs, bases, lines, history_rows = [], [], [], [], []
    results: list[tuple[object, ...]] = []
    for order in orders:
        row = found.get(order.id)
        if row is None:
            answers.append(Refused(NotFound(order.id)))
            continue
        id, seq, status, fence, worker, version, attempt, head, base, line = row
        if status != "running" or order.fence not in (fence, ANY_FENCE) or worker != order.worker:
            answers.append(_repeated(connection, tenant, order))
            continue
        actor = f"worker:{worker}"
        version += 1
        hash = history_hash(
            head, tenant, id, version, "running", "succeeded", "complete", actor, attempt, fence, None, None, now
        )
        if order.result is not None or order.result_summary is not None or order.usage is not None:
            results.append((seq, order.result, order.result_summary, order.usage, order.sanitized))
        history_rows.append((seq, version, actor, attempt, fence, hash))
        answers.append(Receipt(id, fence, Status.SUCCEEDED, attempt, version, None, now))
        ended.append(id)
        seqs.append(seq)
        bases.append(base)
        lines.append(line)
    connection.update(_SQL["complete"], {"tenant": tenant, "now": now}, seqs)
    connection.insert(_SQL["insert_result"], (tenant,), results)
    connection.insert(_SQL["insert_success"], (tenant, now), history_rows)
    moves.tell_succeeded(connection, tenant, seqs, bases, lines)
    _tell_parents(connection, tenant, ended)
    return answers


def _repeated(connection: Connection, tenant: str, order: Ending) -> Receipt | Refused:
    ended = history.grant_end(connection, tenant, order.id, order.fence)
    answer = answer_repeat(ended, order.verb, order.id, order.fence, order.worker)
    return Refused(answer) if isinstance(answer, Error) else answer


def _one_each(connection: Connection, tenant: str, orders: Sequence[Order], routes: Routes) -> list[Receipt | Refused]:
    found = standings(connection, tenant, [order.id for order in orders])
    answers: list[Receipt | Refused] = []
    changes: list[tuple[Change, Found]] = []
    gates: list[OpenGate] = []
    for order in orders:
        here = found.get(order.id)
        if here is None:
            answers.append(Refused(NotFound(order.id)))
            continue
        if isinstance(order, _ENDINGS) and not holds(here.standing, order.fence, order.worker):
            answers.append(_repeated(connection, tenant, order))
            continue
        outcome = _outcome(connection, tenant, order, here.standing)
        if isinstance(outcome, Change):
            changes.append((outcome, here))
            answers.append(_receipt(outcome, here, connection.now))
            if isinstance(order, OpenGate) and outcome.gate_id is not None:
                gates.append(order)
        elif isinstance(outcome, Unchanged):
            answers.append(_last_receipt(connection, tenant, order.id))
        else:
            answers.append(Refused(outcome))
    approvals.open_gates(connection, tenant, gates)
    for change, here in changes:
        if change.edited is not None:
            edits.write(connection, routes, tenant, change, here.seq)
    write(connection, tenant, changes)
    return answers


def _outcome(connection: Connection, tenant: str, order: Order, job: Standing) -> Change | Unchanged | Error:
    """The decision, after what came with the order was saved and what it looks at was read."""
    if isinstance(order, OpenGate) and order.checkpoint is not None:
        (saved,) = beats.checkpoint(connection, tenant, [order.checkpoint])
        if isinstance(saved, Refused):
            return saved.error
    if isinstance(order, Edit):
        job = edits.with_what_can_be_edited(connection, tenant, [job])[job.id]
    outcome = decide(order, job, now=connection.now, chance=random())
    if isinstance(outcome, Change) and outcome.children:
        return _still_open(connection, tenant, outcome)
    return outcome


def standings(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Found]:
    """Jobs as they are, in the transaction that holds the write lock."""
    rows = connection.rows(_SQL["standings"], {"tenant": tenant, "ids": json.dumps(ids)})
    return {row[0]: Found(_standing(row), *row[18:23]) for row in rows}


def _standing(row: tuple[Any, ...]) -> Standing:
    return Standing(row[0], Status(row[1]), *row[2:18])._replace(gate_id=row[23], gate_expires_at=row[24])


def _still_open(connection: Connection, tenant: str, change: Change) -> Change | Error:
    """The change with only those children that have not ended yet, or a refusal of a stranger."""
    rows = connection.rows(_SQL["children"], {"tenant": tenant, "ids": json.dumps(change.children)})
    children = {id: (ended, parent) for id, ended, parent in rows}
    for child in change.children:
        if child not in children or children[child][1] != change.id:
            return Invalid(f"job {child} is not a child of job {change.id}", pointer="/children")
    return change._replace(children=tuple(sorted({c for c in change.children if not children[c][0]})))


def _receipt(change: Change, here: Found, now: int) -> Receipt:
    return Receipt(
        change.id, here.standing.fence, change.status, change.attempt, change.version + 1, change.run_at,
        now if change.status in TERMINAL else None,
    )  # fmt: skip


def _last_receipt(connection: Connection, tenant: str, job_id: str) -> Receipt:
    return receipt_of(history.of_job(connection, tenant, job_id)[-1])


def write(connection: Connection, tenant: str, changes: Sequence[tuple[Change, Found]]) -> None:
    """Write decided changes with their history."""
    if not changes:
        return
    db, now = connection.db, connection.now
    updates, rows = [], []
    for change, (standing, seq, head, *_) in changes:
        version = change.version + 1
        move = (
            standing.status, change.status, change.verb, change.actor, standing.attempt, standing.fence,
            change.reason, change.metadata,
        )  # fmt: skip
        hash = history_hash(head, tenant, change.id, version, *move, now)
        if change.edited is None:
            updates.append(change._asdict() | {
                "tenant": tenant, "seq": seq, "now": now, "awaiting": len(change.children),
                "finished_at": now if change.status in TERMINAL else None,
            })  # fmt: skip
        rows.append((seq, version, *move, hash))
    db.executemany(_SQL["change"], updates)
    connection.insert(_SQL["insert_history"], (tenant, now), rows)
    db.executemany(_SQL["await_child"], [(tenant, child, c.id) for c, _ in changes for child in c.children])
    moves.tell(connection, tenant, [
        moves.Move(f.seq, f.base, f.line, f.standing.status, c.status, bool(f.placed))
        for c, f in changes
    ])  # fmt: skip
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
    woken = {"tenant": tenant, "ids": json.dumps([parent for (parent,) in parents])}
    lines = moves.limited(connection, tenant, [line for (line,) in connection.rows(_SQL["lines_of"], woken)])
    moves.deal(connection, tenant, [(line, 0) for line in lines])
