"""Transitions on PostgreSQL: read under row locks, decided in the domain, written with their history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from itertools import repeat
from random import random
from typing import Any, Final, TypeVar, cast

from interlock.domain.approval import RequestApproval
from interlock.domain.deadlock import Question, Rows, starved_child
from interlock.domain.decide import (
    AcknowledgeCancel,
    Command,
    CompleteJob,
    FailJob,
    ReleaseJob,
    WorkerCommand,
    decide,
    holds,
    receipt_of,
)  # fmt: skip
from interlock.domain.edit import EditJob
from interlock.domain.job import Receipt, Rejected
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.message import AwaitMessage
from interlock.domain.transition import JobState, NoChange, Transition
from interlock.errors import Error, Invalid, NotFound, WouldDeadlock
from interlock.storage import broken
from interlock.storage.batch_split import are_distinct, id_of, split_by_job
from interlock.storage.parts.approvals import open_approvals
from interlock.storage.parts.messages import await_message
from interlock.storage.postgres import driver, edit, heartbeats, history
from interlock.storage.postgres.column_arrays import array_literal, is_empty, shared
from interlock.storage.postgres.connection import Conn, call, of_a_row

T = TypeVar("T")
# An array sent as text is encoded in one step; for an array, the driver would encode every element.
_COMPLETE: Final = (
    "select * from interlock.complete($1, $2::text::uuid[], $3::text::bigint[], $4::text::text[], $5::text::text[], "
    "$6::text::text[], $7::text::text[], $8::text::boolean[])"
)
_ENDINGS: Final = (CompleteJob, FailJob, ReleaseJob, AcknowledgeCancel, RequestApproval)
CommandResult = Receipt | Rejected


async def carry_out(connection: Conn, tenant: str, orders: Sequence[Command]) -> list[CommandResult]:
    """Decide and write each command; commands for the same job apply in order.

    All run in one transaction, so a retry repeats nothing. If an invalid row makes it fail, each command gets its own
    transaction.
    """
    try:
        return await carry_out_whole(connection, tenant, orders)
    except Exception as error:
        if not of_a_row(error):
            raise
        if len(orders) == 1:
            return [broken.refused(orders[0].id, error)]
    return [answer for order in orders for answer in await carry_out(connection, tenant, [order])]


async def carry_out_whole(connection: Conn, tenant: str, orders: Sequence[Command]) -> list[CommandResult]:
    """Carry out all commands, or none if one raises."""
    kinds = {*map(type, orders)}
    if kinds == {CompleteJob} and are_distinct(orders):
        return await _complete(connection, tenant, cast(Sequence[CompleteJob], orders))
    answers: dict[int, CommandResult] = {}
    async with connection.transaction():
        if len(orders) > 1 and (len(kinds) > 1 or EditJob in kinds or not are_distinct(orders)):
            await connection.execute("select interlock.hold($1, $2)", tenant, sorted({*map(id_of, orders)}))
        for batch in split_by_job(orders):
            plain = {i: order for i in batch if isinstance(order := orders[i], CompleteJob)}
            others = {i: orders[i] for i in batch if i not in plain}
            if plain:
                answers |= zip(plain, await _complete(connection, tenant, list(plain.values())), strict=True)
            if others:
                answers |= zip(others, await _one_each(connection, tenant, list(others.values())), strict=True)
    return [answers[i] for i in range(len(orders))]


async def _complete(connection: Conn, tenant: str, orders: Sequence[CompleteJob]) -> list[CommandResult]:
    """Complete jobs in one call; only jobs missing from its result cost more."""
    by_id = sorted(orders, key=id_of)
    ids, fences, workers, results, summaries, usages, sanitizeds, _ = zip(*by_id, strict=True)
    row = await connection.fetchrow(
        _COMPLETE, tenant, _array(ids), _array(shared(fences)), array_literal(shared(workers)), _texts(results),
        _texts(summaries), _texts(usages), _array(shared(sanitizeds)),
    )  # fmt: skip
    assert row is not None
    *columns, at = row
    positions, fences, attempts, versions = (column or () for column in columns)
    named = [ids[position - 1] for position in positions]
    receipts = zip(named, fences, repeat(Status.SUCCEEDED), attempts, versions, repeat(None), repeat(at), strict=False)
    done: dict[str, CommandResult] = dict(zip(named, map(Receipt._make, receipts), strict=True))
    if len(done) < len(orders):
        done |= await _repeated(connection, tenant, [o for o in orders if o.id not in done])
    return list(map(done.__getitem__, map(id_of, orders)))


def _array(values: Sequence[object]) -> str:
    """Return the text form of an array whose values need no quotes."""
    return "{" + ",".join(map(str, values)) + "}"


def _texts(values: Sequence[str | None]) -> str | None:
    return None if is_empty(values) else array_literal(values)


async def _repeated(connection: Conn, tenant: str, orders: Sequence[WorkerCommand]) -> dict[str, CommandResult]:
    """Return why finishes were rejected, or the result of the first call if they are repeated."""
    return await history.results_of_ended(connection, tenant, [(o.id, o.fence, o.worker, o.verb) for o in orders])


async def _one_each(connection: Conn, tenant: str, orders: Sequence[Command]) -> list[CommandResult]:
    jobs, now = await job_states(connection, tenant, [o.id for o in orders])
    outcomes: dict[str, CommandResult] = {}
    changes: list[Transition] = []
    late: list[WorkerCommand] = []
    same: list[str] = []
    approval_requests: list[RequestApproval] = []
    waits: dict[str, Sequence[str]] = {}
    for order in orders:
        job = jobs.get(order.id)
        if job is None:
            outcomes[order.id] = Rejected(NotFound(order.id))
            continue
        if isinstance(order, _ENDINGS) and not holds(job, order.fence, order.worker):
            late.append(order)
            continue
        outcome = await _outcome(connection, tenant, order, job, now, waits)
        if isinstance(outcome, Transition):
            changes.append(outcome)
            outcomes[order.id] = _receipt(outcome, job, now)
            if isinstance(order, RequestApproval) and outcome.approval_id is not None:
                approval_requests.append(order)
        elif isinstance(outcome, NoChange):
            same.append(order.id)
        else:
            outcomes[order.id] = Rejected(outcome)
    for id in same:
        outcomes[id] = receipt_of(await history.newest(connection, tenant, id))
    if approval_requests:  # the transitions that follow reset the guard
        await driver.run(connection, tenant, lambda tx: open_approvals(tx, approval_requests), guarded=True)
    await write(connection, tenant, changes)
    outcomes |= await _repeated(connection, tenant, late)
    return [outcomes[o.id] for o in orders]


async def _outcome(
    connection: Conn, tenant: str, order: Command, job: JobState, now: int, waits: dict[str, Sequence[str]]
) -> Transition | NoChange | Error:
    """Decide a command, after saving its checkpoint and reading what the decision needs."""
    if isinstance(order, RequestApproval) and order.checkpoint is not None and job.cancel_requested_at is None:
        (saved,) = await heartbeats.checkpoint(connection, tenant, [order.checkpoint])
        if isinstance(saved, Rejected):
            return saved.error
    if isinstance(order, EditJob):
        job = await edit.with_what_can_be_edited(connection, tenant, job)
    if isinstance(order, ReleaseJob) and order.message is not None and job.cancel_requested_at is None:
        order = await _await_message(connection, tenant, order, job.fence, order.message, now)
    outcome = decide(order, job, now=now, chance=random())
    if isinstance(outcome, Transition) and outcome.children:
        return await _await_children(connection, tenant, outcome, waits)
    return outcome


async def _await_message(
    connection: Conn, tenant: str, order: ReleaseJob, fence: int, wanted: AwaitMessage, now: int
) -> ReleaseJob:
    """Begin the wait for a message; one that has already arrived makes the job due immediately."""
    if await driver.run(connection, tenant, lambda tx: await_message(tx, order.id, fence, wanted), guarded=True):
        return order._replace(run_at=now, delay_seconds=None)
    return order


async def job_states(connection: Conn, tenant: str, ids: Sequence[str]) -> tuple[dict[str, JobState], int]:
    """Return the job states, locked until the transaction ends, and the transaction's time."""
    rows = await connection.fetch(call("job_states", 2), tenant, ids)
    jobs = {row[0]: JobState.from_row(tuple(row)) for row in rows}
    return jobs, int(await connection.fetchval("select interlock.clock()"))


def _receipt(change: Transition, job: JobState, now: int) -> Receipt:
    finished_at = now if change.status in TERMINAL and job.status not in TERMINAL else None
    return Receipt(change.id, job.fence, change.status, change.attempt, change.version + 1, change.run_at, finished_at)


async def _await_children(
    connection: Conn, tenant: str, change: Transition, waits: dict[str, Sequence[str]]
) -> Transition | Error:
    """Make the job wait for its unfinished children; reject a job that is not its child, and a deadlock."""
    rows = await connection.fetch(
        "select id, ended, parent_id, hangs from interlock.children($1, $2)", tenant, list(change.children)
    )
    children = {row[0]: (row[1], row[2]) for row in rows}
    for child in change.children:
        if child not in children or children[child][1] != change.id:
            return Invalid(f"job {child} is not a child of job {change.id}", pointer="/children")
    still = sorted({child for child in change.children if not children[child][0]})
    if any(row[3] for row in rows):
        # Jobs that start to wait for slots of one agent are serialized here, so that the second sees the first.
        await connection.execute("select interlock.hold($1, $2)", tenant, [change.id])
        starved = await search(connection.fetch, tenant, starved_child(change.id, still, waits))
        if starved is not None:
            return WouldDeadlock(change.id, starved)
    waits[change.id] = still
    await connection.execute("select interlock.await_children($1, $2, $3)", tenant, change.id, still)
    return change


async def search(
    fetch: Callable[..., Awaitable[Iterable[Any]]], tenant: str, questions: Generator[Question, Rows, T]
) -> T:
    """Answer the queries of a search for jobs that wait for each other, and return its result."""
    try:
        question = next(questions)
        while True:
            rows = await fetch(call(f"look_at_{question.look}", 2), tenant, question.about)
            question = questions.send(map(tuple, rows))
    except StopIteration as end:
        found: T = end.value
        return found


async def write(connection: Conn, tenant: str, changes: Sequence[Transition]) -> None:
    """Write decided transitions; triggers add their history."""
    for change in changes:
        if change.edited is not None:
            await edit.write(connection, tenant, change)
    if seen := sorted((c for c in changes if c.verb is Verb.ACKNOWLEDGE), key=id_of):
        facts = zip(*((c.id, c.version, c.actor, c.reason) for c in seen), strict=True)
        assert await connection.fetchval(call("acknowledge", 5), tenant, *facts) == len(seen)
    moves = sorted((c for c in changes if c.edited is None and c.verb is not Verb.ACKNOWLEDGE), key=id_of)
    if not moves:
        return
    columns = zip(*(
        (c.id, c.version, str(c.status), str(c.verb), c.actor, c.attempt, c.releases, c.reason, c.metadata, c.run_at,
         c.error, c.cancel_requested_at, c.cancel_reason, c.sanitized, c.approval_id, c.result)
        for c in moves
    ), strict=True)  # fmt: skip
    written = await connection.fetchval(call("change", 17), tenant, *columns)
    assert written == len(moves)
