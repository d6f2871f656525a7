"""Every change of a job on SQLite: read under the write lock, decided in the domain, written with its history."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from random import random
from typing import Any, Final, NamedTuple, cast

from interlock.domain import principal
from interlock.domain.approval import OpenGate
from interlock.domain.audit import history_hash
from interlock.domain.deadlock import Question, Rows, starved_child
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
from interlock.domain.digests import merge, of_result, of_text
from interlock.domain.edit import Edit
from interlock.domain.job import ANY_FENCE, Receipt, Refused
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.transition import Change, Standing, Unchanged
from interlock.errors import Error, Invalid, NotFound, WouldDeadlock
from interlock.storage import broken
from interlock.storage.batch_split import are_distinct, id_of, turns
from interlock.storage.sql_files import load
from interlock.storage.sqlite import approvals, digests, edit, heartbeats, history, transition_effects
from interlock.storage.sqlite.connection import Connection, of_a_row
from interlock.storage.sqlite.eligibility_keys import Routes
from interlock.storage.sqlite.history_hash import move_alike
from interlock.storage.sqlite.lease_cache import Grant, Held

_SQL: Final = load("interlock.storage.sqlite", "transition.sql")
_SUCCEEDED: Final = Status.SUCCEEDED
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
    if {*map(type, orders)} == {Complete} and are_distinct(orders):
        return _complete(connection, tenant, cast("Sequence[Complete]", orders))
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


def carry_out_apart(
    connection: Connection, tenant: str, orders: Sequence[Order], routes: Routes | None = None
) -> list[Receipt | Refused]:
    """The same as a part of a transaction that goes on; a row that breaks a rule stops none but itself."""
    if not orders:
        return []
    try:
        return connection.alone(lambda: carry_out(connection, tenant, orders, routes))
    except Exception as error:
        if not of_a_row(error):
            raise
        if len(orders) == 1:
            return [broken.refused(orders[0].id, error)]
    return [answer for order in orders for answer in carry_out_apart(connection, tenant, [order], routes)]


def _complete(connection: Connection, tenant: str, orders: Sequence[Complete]) -> list[Receipt | Refused]:
    """The hot finish: nothing to decide, the grant only has to be the current one."""
    now = connection.now
    held = _held(connection, tenant, [*map(id_of, orders)])
    answers: list[Receipt | Refused] = []
    results: list[tuple[object, ...]] = []
    found: dict[int, digests.Digests] = {}
    ended: dict[Grant, list[Held]] = {}
    alike: list[Held] = []
    last: Grant | None = None
    for order in orders:
        id, given, by, result, summary, usage, sanitized, _ = order
        job = held.get(id)
        if job is None:
            answers.append(Refused(NotFound(id)))
            continue
        status, attempt, fence, worker, version = grant = job[5]
        if status != "running" or (given != fence and given != ANY_FENCE) or worker != by:
            answers.append(_repeated(connection, tenant, order))
            continue
        if grant is not last:  # jobs that were granted together mostly end together
            last, alike = grant, ended.setdefault(grant, [])
        alike.append(job)
        if result is not None or summary is not None or usage is not None:
            results.append((job[1], result, summary, usage, sanitized))
            found[job[1]] = of_result(result, summary, usage)
        answers.append(tuple.__new__(Receipt, (id, fence, _SUCCEEDED, attempt, version + 1, None, now)))
    if not ended:
        return answers
    ids, seqs, bases, lines, _, _ = zip(*chain.from_iterable(ended.values()), strict=True)
    if digests.have_progress(connection, tenant, ids):
        for (_, _, fence, _, _), alike in ended.items():
            for id, seq, *_ in alike:
                if saved := digests.of_progress(connection, tenant, id, fence):
                    found[seq] = found.get(seq, {}) | saved
    for (_, attempt, fence, worker, version), alike in ended.items():
        move = (version + 1, "running", "succeeded", "complete", principal.worker(str(worker)), attempt, fence)
        _, some, _, _, heads, _ = zip(*alike, strict=True)
        metadatas = [merge(None, found[seq]) if seq in found else None for seq in some] if found else None
        move_alike(connection, some, heads, *move, metadatas)
    connection.update(_SQL["complete"], {"tenant": tenant, "now": now}, seqs)
    connection.insert(_SQL["insert_result"], (tenant,), results)
    transition_effects.tell_succeeded(connection, tenant, seqs, bases, lines)
    tell_parents(connection, tenant, ids)
    return answers


def _held(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Held]:
    """Where these jobs stand: as remembered, where nothing has changed since, else as they are read."""
    held = connection.granted.take(tenant, ids, connection.undone)
    alike: dict[Grant, list[Held]] = {}
    for grant, some in groupby(held.values(), itemgetter(5)):
        alike.setdefault(grant, []).extend(some)
    for (_, _, *grant), jobs in alike.items():
        ranges = connection.ranges([job[1] for job in jobs])
        still = (connection.rows(_SQL["still_held"], (tenant, *range, *grant))[0][0] for range in ranges)
        if not ranges or sum(still) != len(jobs):
            for job in jobs:
                del held[job[0]]
    others = [id for id in ids if id not in held] if len(held) < len(ids) else []
    if others:
        rows = connection.rows(_SQL["held_to_complete"], {"tenant": tenant, "ids": json.dumps(others)})
        held |= {row[0]: (*row[:5], row[5:]) for row in rows}
    return held


def _repeated(connection: Connection, tenant: str, order: Ending) -> Receipt | Refused:
    ended = history.grant_end(connection, tenant, order.id, order.fence)
    answer = answer_repeat(ended, order.verb, order.id, order.fence, order.worker)
    return Refused(answer) if isinstance(answer, Error) else answer


def _one_each(connection: Connection, tenant: str, orders: Sequence[Order], routes: Routes) -> list[Receipt | Refused]:
    found = standings(connection, tenant, [order.id for order in orders])
    answers: list[Receipt | Refused] = []
    changes: list[tuple[Change, Found]] = []
    gates: list[OpenGate] = []
    waits: dict[str, tuple[str, ...]] = {}
    for order in orders:
        here = found.get(order.id)
        if here is None:
            answers.append(Refused(NotFound(order.id)))
            continue
        if isinstance(order, _ENDINGS) and not holds(here.standing, order.fence, order.worker):
            answers.append(_repeated(connection, tenant, order))
            continue
        outcome = _outcome(connection, tenant, order, here.standing, waits)
        if isinstance(outcome, Change):
            changes.append((outcome, here))
            if outcome.children:
                waits[order.id] = outcome.children
            answers.append(_receipt(outcome, here, connection.now))
            if isinstance(order, OpenGate) and outcome.gate_id is not None:
                gates.append(order)
        elif isinstance(outcome, Unchanged):
            answers.append(_last_receipt(connection, tenant, order.id))
        else:
            answers.append(Refused(outcome))
    approvals.open_gates(connection, tenant, gates)
    write(connection, tenant, changes, routes)
    return answers


def _outcome(
    connection: Connection, tenant: str, order: Order, job: Standing, waits: Mapping[str, Sequence[str]]
) -> Change | Unchanged | Error:
    """The decision, after what came with the order was saved and what it looks at was read."""
    if isinstance(order, OpenGate) and order.checkpoint is not None and job.cancel_requested_at is None:
        (saved,) = heartbeats.checkpoint(connection, tenant, [order.checkpoint])
        if isinstance(saved, Refused):
            return saved.error
    if isinstance(order, Edit):
        job = edit.with_what_can_be_edited(connection, tenant, [job])[job.id]
    outcome = decide(order, job, now=connection.now, chance=random())
    if isinstance(outcome, Change) and outcome.children:
        outcome = _still_open(connection, tenant, outcome)
        if isinstance(outcome, Change) and outcome.children:
            child = _starved_child(connection, tenant, starved_child(job.id, outcome.children, waits))
            return outcome if child is None else WouldDeadlock(job.id, child)
    return outcome


def _starved_child(connection: Connection, tenant: str, search: Generator[Question, Rows, str | None]) -> str | None:
    try:
        question = next(search)
        while True:
            facts = {"tenant": tenant, "about": json.dumps(question.about)}
            question = search.send(connection.rows(_SQL[f"look_at_{question.look}"], facts))
    except StopIteration as end:
        child: str | None = end.value
        return child


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


def write(connection: Connection, tenant: str, changes: Sequence[tuple[Change, Found]], routes: Routes) -> None:
    """Write decided changes with their history."""
    if not changes:
        return
    db, now = connection.db, connection.now
    updates = []
    for change, (standing, seq, head, *_) in changes:
        metadata = merge(change.metadata, _digests(connection, tenant, change, standing, seq))
        connection.metadatas[seq] = metadata
        connection.hashes[seq] = history_hash(
            head, tenant, change.id, change.version + 1, standing.status, change.status, change.verb, change.actor,
            standing.attempt, standing.fence, change.reason, metadata, now,
        )  # fmt: skip
        if change.edited is not None:
            edit.write(connection, routes, tenant, change, seq)
        else:
            updates.append(change._asdict() | {
                "tenant": tenant, "seq": seq, "now": now, "awaiting": len(change.children),
                "finished_at": now if change.status in TERMINAL else None,
            })  # fmt: skip
    db.executemany(_SQL["change"], updates)
    results = [(f.seq, c.result, None, None, c.sanitized) for c, f in changes if c.result is not None]
    connection.insert(_SQL["insert_result"], (tenant,), results)
    db.executemany(_SQL["await_child"], [(tenant, child, c.id) for c, _ in changes for child in c.children])
    transition_effects.tell(connection, tenant, [
        transition_effects.Move(f.seq, f.base, f.line, f.standing.status, c.status, bool(f.placed))
        for c, f in changes
    ])  # fmt: skip
    tell_parents(connection, tenant, [c.id for c, _ in changes if c.status in TERMINAL])


def _digests(connection: Connection, tenant: str, change: Change, job: Standing, seq: int) -> digests.Digests:
    """What the transition is about; all of it but the job itself has been written."""
    found = digests.of_transition(
        connection, tenant, change.id, job.fence, job.status, change.status, change.verb, job.gate_id
    )  # fmt: skip
    found |= of_result(change.result, change.result_summary, change.usage)
    if change.error is not None and (change.error != job.error or change.status in digests.FAILURES):
        found["error"] = of_text(change.error)
    if change.edited is not None:
        found["options"] = digests.of_options(connection, tenant, seq, change.edited)
    return found


def tell_parents(connection: Connection, tenant: str, ended: Sequence[str]) -> None:
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
    lines = transition_effects.limited(
        connection, tenant, [line for (line,) in connection.rows(_SQL["lines_of"], woken)]
    )
    transition_effects.deal(connection, tenant, [(line, 0) for line in lines])
