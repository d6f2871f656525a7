"""Every change of a job on PostgreSQL: read under row locks, decided in the domain, written with its history."""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from typing import Any, Final

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
from interlock.errors import CheckpointConflict, Error, Invalid, NotFound
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.turns import turns

_FINISHES: Final = (Complete, Fail, Release, CancelAck)
Answer = Receipt | Refused


async def carry_out(connection: Conn, tenant: str, orders: Sequence[Order]) -> list[Answer]:
    """Decide and write each order; two orders for one job follow each other."""
    answers: dict[int, Answer] = {}
    for turn in turns(orders):
        plain = {i: order for i in turn if isinstance(order := orders[i], Complete)}
        others = {i: orders[i] for i in turn if i not in plain}
        if plain:
            answers |= zip(plain, await _complete(connection, tenant, list(plain.values())), strict=True)
        if others:
            answers |= zip(others, await _one_each(connection, tenant, list(others.values())), strict=True)
    return [answers[i] for i in range(len(orders))]


async def _complete(connection: Conn, tenant: str, orders: Sequence[Complete]) -> list[Answer]:
    """The hot finish: one call; only what did not come back costs more."""
    columns = zip(
        *((o.id, o.fence, o.worker, o.result, o.result_summary, o.usage, o.sanitized) for o in orders), strict=True
    )
    rows = await connection.fetch(
        "select id, fence, attempt, version, finished_at from interlock.complete($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        *columns,
    )
    done = {
        id: Receipt(id, fence, Status.SUCCEEDED, attempt, version, None, at) for id, fence, attempt, version, at in rows
    }
    refused = await _explain(connection, tenant, [o for o in orders if o.id not in done])
    return [done.get(o.id) or refused[o.id] for o in orders]


async def _explain(connection: Conn, tenant: str, orders: Sequence[Finish]) -> dict[str, Answer]:
    """Why finishes were not carried out, or what they were answered the first time."""
    if not orders:
        return {}
    ids = [o.id for o in orders]
    known = {row[0] for row in await connection.fetch("select id from interlock.held_checkpoints($1, $2)", tenant, ids)}
    ends = await _grant_ends(connection, tenant, [(o.id, o.fence) for o in orders])
    answers: dict[str, Answer] = {}
    for o in orders:
        answer = (
            answer_repeat(ends.get((o.id, o.fence)), o.verb, o.id, o.fence, o.worker)
            if o.id in known
            else NotFound(o.id)
        )
        answers[o.id] = Refused(answer) if isinstance(answer, Error) else answer
    return answers


async def _grant_ends(
    connection: Conn, tenant: str, grants: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], HistoryRow]:
    ids, fences = zip(*grants, strict=True)
    rows = await connection.fetch(call("grant_ends", 3), tenant, ids, fences)
    return {(row.job_id, row.fence): row for row in map(to_history, rows)}


async def _one_each(connection: Conn, tenant: str, orders: Sequence[Order]) -> list[Answer]:
    async with connection.transaction():
        rows = await connection.fetch(call("standings", 2), tenant, [o.id for o in orders])
        standings = {row[0]: Standing(row[0], Status(row[1]), *row[2:]) for row in rows}
        now = int(await connection.fetchval("select interlock.clock()"))
        outcomes: dict[str, Answer] = {}
        changes: list[Change] = []
        late: list[Finish] = []
        same: list[str] = []
        for order in orders:
            job = standings.get(order.id)
            if job is None:
                outcomes[order.id] = Refused(NotFound(order.id))
                continue
            if isinstance(order, _FINISHES) and not holds(job, order.fence, order.worker):
                late.append(order)
                continue
            outcome = decide(order, job, now=now, chance=random())
            if isinstance(outcome, Change) and outcome.children:
                outcome = await _await_children(connection, tenant, outcome)
            if isinstance(outcome, Change):
                changes.append(outcome)
                outcomes[order.id] = _receipt(outcome, job, now)
            elif isinstance(outcome, Unchanged):
                same.append(order.id)
            else:
                outcomes[order.id] = Refused(outcome)
        for id in same:
            history = await connection.fetch(call("history", 2), tenant, id)
            outcomes[id] = receipt_of(to_history(history[-1]))
        await _write(connection, tenant, changes)
        outcomes |= await _explain(connection, tenant, late)
        return [outcomes[o.id] for o in orders]


def _receipt(change: Change, job: Standing, now: int) -> Receipt:
    finished_at = now if change.status in TERMINAL else None
    return Receipt(change.id, job.fence, change.status, change.attempt, change.version + 1, change.run_at, finished_at)


async def _await_children(connection: Conn, tenant: str, change: Change) -> Change | Error:
    """Make the job wait for those children that have not ended yet, or refuse a stranger."""
    rows = await connection.fetch(
        "select id, ended, parent_id from interlock.children($1, $2)", tenant, list(change.children)
    )
    children = {row[0]: (row[1], row[2]) for row in rows}
    for child in change.children:
        if child not in children or children[child][1] != change.id:
            return Invalid(f"job {child} is not a child of job {change.id}", pointer="/children")
    still = sorted({child for child in change.children if not children[child][0]})
    await connection.execute("select interlock.await_children($1, $2, $3)", tenant, change.id, still)
    return change


async def _write(connection: Conn, tenant: str, changes: Sequence[Change]) -> None:
    if not changes:
        return
    columns = zip(*(
        (c.id, c.version, str(c.status), str(c.verb), c.actor, c.attempt, c.releases, c.reason, c.metadata, c.run_at,
         c.error, c.cancel_requested_at, c.cancel_reason, c.sanitized)
        for c in sorted(changes, key=lambda c: c.id)
    ), strict=True)  # fmt: skip
    written = await connection.fetchval(call("change", 15), tenant, *columns)
    assert written == len(changes)


async def heartbeat(connection: Conn, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
    """Extend each lease that its worker still holds; a checkpoint that is refused refuses its whole beat."""
    answers: dict[int, Pulse | Refused] = {}
    for turn in turns(beats):
        answers |= zip(turn, await _heartbeat(connection, tenant, [beats[i] for i in turn]), strict=True)
    return [answers[i] for i in range(len(beats))]


async def _heartbeat(connection: Conn, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
    carried = [beat.checkpoint for beat in beats if beat.checkpoint is not None]
    if not carried:
        return await _beat(connection, tenant, beats, {})
    async with connection.transaction():
        saved = await checkpoint(connection, tenant, carried)
        faults = {c.id: a for c, a in zip(carried, saved, strict=True) if isinstance(a, Refused)}
        return await _beat(connection, tenant, beats, faults)


async def _beat(
    connection: Conn, tenant: str, beats: Sequence[Beat], faults: dict[str, Refused]
) -> list[Pulse | Refused]:
    good = [beat for beat in beats if beat.id not in faults]
    pulses: dict[str, Pulse] = {}
    if good:
        columns = zip(*((b.id, b.fence, b.worker, b.lease_seconds) for b in good), strict=True)
        rows = await connection.fetch(call("heartbeat", 5), tenant, *columns)
        pulses = {row[0]: Pulse(*row) for row in rows}
    faults = faults | await _why_not_held(
        connection, tenant, [(b.id, b.fence, b.worker) for b in good if b.id not in pulses]
    )
    return [faults.get(beat.id) or pulses[beat.id] for beat in beats]


async def _why_not_held(connection: Conn, tenant: str, grants: Sequence[tuple[str, int, str]]) -> dict[str, Refused]:
    if not grants:
        return {}
    ids = [id for id, _, _ in grants]
    known = {row[0] for row in await connection.fetch("select id from interlock.held_checkpoints($1, $2)", tenant, ids)}
    ends = await _grant_ends(connection, tenant, [(id, fence) for id, fence, _ in grants])
    faults = {}
    for id, fence, worker in grants:
        error = answer_repeat(ends.get((id, fence)), None, id, fence, worker) if id in known else NotFound(id)
        assert isinstance(error, Error)
        faults[id] = Refused(error)
    return faults


async def checkpoint(connection: Conn, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
    """Save each checkpoint that is newer than what its job has; several of one job follow each other."""
    answers: dict[int, int | Refused] = {}
    for turn in turns(checkpoints):
        answers |= zip(turn, await _save(connection, tenant, [checkpoints[i] for i in turn]), strict=True)
    return [answers[i] for i in range(len(checkpoints))]


async def _save(connection: Conn, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
    columns = zip(*((c.id, c.fence, c.worker, c.seq, c.data, c.sanitized) for c in checkpoints), strict=True)
    rows = await connection.fetch(call("save_checkpoints", 7), tenant, *columns)
    saved = {row[0] for row in rows}
    left = [c for c in checkpoints if c.id not in saved]
    if not left:
        return [c.seq for c in checkpoints]
    facts = await connection.fetch(call("held_checkpoints", 2), tenant, [c.id for c in left])
    here = {row[0]: row for row in facts}
    lost = [c for c in left if c.id not in here or (here[c.id][1], here[c.id][2]) != (c.fence, c.worker)]
    faults = await _why_not_held(connection, tenant, [(c.id, c.fence, c.worker) for c in lost])
    for c in left:
        if c.id not in faults:
            _, _, _, seq, data = here[c.id]
            if (seq, data) != (c.seq, c.data):
                faults[c.id] = Refused(CheckpointConflict(c.id, c.seq, seq))
    return [faults.get(c.id) or c.seq for c in checkpoints]


def to_history(row: Any) -> HistoryRow:
    _, job_id, version, origin, target, verb, *rest = row
    return HistoryRow(job_id, version, origin and Status(origin), Status(target), Verb(verb), *rest)
