"""Transitions on SQLite: read job states under the write lock, decide in the domain, write with history."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from random import random
from typing import Final, NamedTuple, TypeVar, cast

from interlock.domain import principal
from interlock.domain.approval import RequestApproval
from interlock.domain.audit import history_hash
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
from interlock.domain.digests import merge, of_result, of_text
from interlock.domain.edit import EditJob
from interlock.domain.job import ANY_FENCE, Receipt, Rejected
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.message import AwaitMessage
from interlock.domain.transition import JobState, NoChange, Transition
from interlock.errors import Error, Invalid, NotFound, WouldDeadlock
from interlock.storage import broken
from interlock.storage.batch_split import are_distinct, id_of, split_by_job
from interlock.storage.parts.approvals import open_approvals
from interlock.storage.parts.messages import await_message
from interlock.storage.parts.workers import SQL as LOOKS
from interlock.storage.sql_files import load
from interlock.storage.sqlite import digests, driver, edit, heartbeats, history, transition_effects
from interlock.storage.sqlite.connection import Connection, Lease, LeasedJob, of_a_row
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys

T = TypeVar("T")
_SQL: Final = load("interlock.storage.sqlite", "transition.sql")
_SUCCEEDED: Final = Status.SUCCEEDED
_ENDINGS: Final = (FailJob, ReleaseJob, AcknowledgeCancel, RequestApproval)


class Found(NamedTuple):
    """A job state and its chain head."""

    state: JobState
    seq: int
    head: bytes
    base: int
    agent_no: int | None
    has_slot: int


def carry_out(
    connection: Connection, tenant: str, orders: Sequence[Command], eligibility_keys: EligibilityKeys | None = None
) -> list[Receipt | Rejected]:
    """Decide and write each command; commands for the same job are applied one after the other."""
    if {*map(type, orders)} == {CompleteJob} and are_distinct(orders):
        return _complete(connection, tenant, cast("Sequence[CompleteJob]", orders))
    answers: dict[int, Receipt | Rejected] = {}
    for batch in split_by_job(orders):
        plain = {i: order for i in batch if isinstance(order := orders[i], CompleteJob)}
        others = {i: orders[i] for i in batch if i not in plain}
        if plain:
            answers |= zip(plain, _complete(connection, tenant, list(plain.values())), strict=True)
        if others:
            answers |= zip(
                others,
                _one_each(connection, tenant, list(others.values()), eligibility_keys or EligibilityKeys(tenant)),
                strict=True,
            )
    return [answers[i] for i in range(len(orders))]


def carry_out_apart(
    connection: Connection, tenant: str, orders: Sequence[Command], eligibility_keys: EligibilityKeys | None = None
) -> list[Receipt | Rejected]:
    """Run `carry_out` in a savepoint; an invalid row rejects only its own command."""
    if not orders:
        return []
    try:
        return connection.alone(lambda: carry_out(connection, tenant, orders, eligibility_keys))
    except Exception as error:
        if not of_a_row(error):
            raise
        if len(orders) == 1:
            return [broken.refused(orders[0].id, error)]
    return [answer for order in orders for answer in carry_out_apart(connection, tenant, [order], eligibility_keys)]


def _complete(connection: Connection, tenant: str, orders: Sequence[CompleteJob]) -> list[Receipt | Rejected]:
    """Complete jobs without a call to `decide()`: a completion has one outcome, and most finishes are completions.

    Check each lease, compute the history hashes of jobs that were leased together, then write all with one statement
    per range of jobs.
    """
    now = connection.now
    leased = _leased_jobs(connection, tenant, [*map(id_of, orders)])
    answers: list[Receipt | Rejected] = []
    results: list[tuple[object, ...]] = []
    found: dict[int, digests.Digests] = {}
    # Jobs that were leased together mostly finish together, and their history rows differ only in hash and metadata.
    ended: dict[Lease, list[LeasedJob]] = {}
    same: list[LeasedJob] = []
    last: Lease | None = None
    for order in orders:
        id, given, by, result, summary, usage, sanitized, _ = order
        if (job := leased.get(id)) is None:
            answers.append(Rejected(NotFound(id)))
            continue
        _, seq, _, _, _, lease = job
        status, attempt, fence, worker, version = lease
        if status != "running" or (given != fence and given != ANY_FENCE) or worker != by:
            answers.append(_repeated(connection, tenant, order))
            continue
        if lease is not last:
            last, same = lease, ended.setdefault(lease, [])
        same.append(job)
        if result is not None or summary is not None or usage is not None:
            results.append((seq, result, summary, usage, sanitized))
            found[seq] = of_result(result, summary, usage)
        answers.append(Receipt._make((id, fence, _SUCCEEDED, attempt, version + 1, None, now)))
    if not ended:
        return answers
    ids, seqs, bases, agent_nos, _, _ = zip(*chain.from_iterable(ended.values()), strict=True)
    if digests.have_progress(connection, tenant, ids):
        for (_, _, fence, _, _), same in ended.items():
            for id, seq, *_ in same:
                if saved := digests.of_progress(connection, tenant, id, fence):
                    found[seq] = found.get(seq, {}) | saved
    for (_, attempt, fence, worker, version), same in ended.items():
        move = (version + 1, "running", "succeeded", "complete", principal.worker(worker), attempt, fence)
        _, some, _, _, heads, _ = zip(*same, strict=True)
        metadatas = [merge(None, found[seq]) if seq in found else None for seq in some] if found else None
        history.hash_transitions(connection, some, heads, *move, metadatas)
    connection.update(_SQL["complete"], {"tenant": tenant, "now": now}, seqs)
    connection.insert(_SQL["insert_result"], (tenant,), results)
    transition_effects.record_succeeded(connection, tenant, seqs, bases, agent_nos)
    notify_parents(connection, tenant, ids)
    return answers


def _leased_jobs(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, LeasedJob]:
    """Return the jobs that this process leased and that are unchanged, and read the others.

    To count the unchanged jobs of a range takes a quarter of the time of reading them by ID.
    """
    by_lease: dict[Lease, list[LeasedJob]] = {}
    for job in connection.leased.take(tenant, ids, connection.rollbacks):
        by_lease.setdefault(job[5], []).append(job)
    leased: dict[str, LeasedJob] = {}
    for (_, _, fence, worker, version), jobs in by_lease.items():
        ranges = connection.ranges([job[1] for job in jobs])
        unchanged = 0
        for first, last in ranges:
            ((count,),) = connection.rows(_SQL["still_leased"], (tenant, first, last, fence, worker, version))
            unchanged += count
        if unchanged == len(jobs):
            leased |= {job[0]: job for job in jobs}
    if others := [id for id in ids if id not in leased]:
        rows = connection.rows(_SQL["leased"], {"tenant": tenant, "ids": json.dumps(others)})
        leased |= {id: (id, seq, base, agent_no, head, tuple(lease)) for id, seq, base, agent_no, head, *lease in rows}
    return leased


def _repeated(connection: Connection, tenant: str, order: WorkerCommand) -> Receipt | Rejected:
    answer = history.result_of_ended(connection, tenant, order.id, order.fence, order.worker, order.verb)
    return Rejected(answer) if isinstance(answer, Error) else answer


def _one_each(
    connection: Connection, tenant: str, orders: Sequence[Command], eligibility_keys: EligibilityKeys
) -> list[Receipt | Rejected]:
    found = job_states(connection, tenant, [order.id for order in orders])
    answers: list[Receipt | Rejected] = []
    changes: list[tuple[Transition, Found]] = []
    approval_requests: list[RequestApproval] = []
    waits: dict[str, tuple[str, ...]] = {}
    for order in orders:
        here = found.get(order.id)
        if here is None:
            answers.append(Rejected(NotFound(order.id)))
            continue
        if isinstance(order, _ENDINGS) and not holds(here.state, order.fence, order.worker):
            answers.append(_repeated(connection, tenant, order))
            continue
        outcome = _outcome(connection, tenant, order, here.state, waits)
        if isinstance(outcome, Transition):
            changes.append((outcome, here))
            if outcome.children:
                waits[order.id] = outcome.children
            answers.append(_receipt(outcome, here, connection.now))
            if isinstance(order, RequestApproval) and outcome.approval_id is not None:
                approval_requests.append(order)
        elif isinstance(outcome, NoChange):
            answers.append(receipt_of(history.newest(connection, tenant, order.id)))
        else:
            answers.append(Rejected(outcome))
    if approval_requests:
        driver.run(connection, tenant, lambda tx: open_approvals(tx, approval_requests), connection.now)
    write(connection, tenant, changes, eligibility_keys)
    return answers


def _outcome(
    connection: Connection, tenant: str, order: Command, job: JobState, waits: Mapping[str, Sequence[str]]
) -> Transition | NoChange | Error:
    """Save the checkpoint of the command, load what the decision needs, and decide."""
    if isinstance(order, RequestApproval) and order.checkpoint is not None and job.cancel_requested_at is None:
        (saved,) = heartbeats.checkpoint(connection, tenant, [order.checkpoint])
        if isinstance(saved, Rejected):
            return saved.error
    if isinstance(order, EditJob):
        job = edit.with_what_can_be_edited(connection, tenant, [job])[job.id]
    if isinstance(order, ReleaseJob) and order.message is not None and job.cancel_requested_at is None:
        order = _await_message(connection, tenant, order, job.fence, order.message)
    outcome = decide(order, job, now=connection.now, chance=random())
    if isinstance(outcome, Transition) and outcome.children:
        outcome = _still_open(connection, tenant, outcome)
        if isinstance(outcome, Transition) and outcome.children:
            child = search(connection, tenant, starved_child(job.id, outcome.children, waits))
            return outcome if child is None else WouldDeadlock(job.id, child)
    return outcome


def _await_message(
    connection: Connection, tenant: str, order: ReleaseJob, fence: int, wanted: AwaitMessage
) -> ReleaseJob:
    """Begin the wait for a message; one that has already arrived makes the job due immediately."""
    if driver.run(connection, tenant, lambda tx: await_message(tx, order.id, fence, wanted), connection.now):
        return order._replace(run_at=connection.now, delay_seconds=None)
    return order


def search(connection: Connection, tenant: str, questions: Generator[Question, Rows, T]) -> T:
    """Answer the queries of a search for jobs that wait for each other, and return its result."""
    try:
        question = next(questions)
        while True:
            facts = {"tenant": tenant, "about": json.dumps(question.about)}
            question = questions.send(connection.rows(LOOKS[f"look_at_{question.look}"].sqlite, facts))
    except StopIteration as end:
        found: T = end.value
        return found


def job_states(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Found]:
    """Return the job states. Requires the write lock."""
    rows = connection.rows(_SQL["job_states"], {"tenant": tenant, "ids": json.dumps(ids)})
    found = (
        Found(JobState.from_row(state), seq, head, base, agent_no, has_slot)
        for *state, seq, head, base, agent_no, has_slot in rows
    )
    return {one.state.id: one for one in found}


def _still_open(connection: Connection, tenant: str, change: Transition) -> Transition | Error:
    """Return the transition with only its unfinished children, or an error if one is not a child of the job."""
    rows = connection.rows(_SQL["children"], {"tenant": tenant, "ids": json.dumps(change.children)})
    children = {id: (ended, parent) for id, ended, parent in rows}
    for child in change.children:
        if child not in children or children[child][1] != change.id:
            return Invalid(f"job {child} is not a child of job {change.id}", pointer="/children")
    return change._replace(children=tuple(sorted({c for c in change.children if not children[c][0]})))


def _receipt(change: Transition, here: Found, now: int) -> Receipt:
    return Receipt(
        change.id, here.state.fence, change.status, change.attempt, change.version + 1, change.run_at,
        now if change.status in TERMINAL and here.state.status not in TERMINAL else None,
    )  # fmt: skip


def write(
    connection: Connection, tenant: str, changes: Sequence[tuple[Transition, Found]], eligibility_keys: EligibilityKeys
) -> None:
    """Write transitions with their history."""
    if not changes:
        return
    db, now = connection.db, connection.now
    updates = []
    for change, (state, seq, head, *_) in changes:
        metadata = merge(change.metadata, _digests(connection, tenant, change, state, seq))
        connection.metadatas[seq] = metadata
        connection.hashes[seq] = history_hash(
            head, tenant, change.id, change.version + 1, state.status, change.status, change.verb, change.actor,
            state.attempt, state.fence, change.reason, metadata, now,
        )  # fmt: skip
        if change.verb is Verb.ACKNOWLEDGE:
            db.execute(_SQL["acknowledge"], change._asdict() | {"tenant": tenant, "seq": seq, "now": now})
        elif change.edited is not None:
            edit.write(connection, eligibility_keys, tenant, change, seq)
        else:
            updates.append(change._asdict() | {
                "tenant": tenant, "seq": seq, "now": now, "awaiting": len(change.children),
                "finished_at": now if change.status in TERMINAL else None,
            })  # fmt: skip
    db.executemany(_SQL["change"], updates)
    changes = [(c, f) for c, f in changes if c.verb is not Verb.ACKNOWLEDGE]  # an acknowledgement has no effects
    results = [(f.seq, c.result, None, None, c.sanitized) for c, f in changes if c.result is not None]
    connection.insert(_SQL["insert_result"], (tenant,), results)
    db.executemany(_SQL["await_child"], [(tenant, child, c.id) for c, _ in changes for child in c.children])
    transition_effects.record(connection, tenant, [
        transition_effects.StatusChange(f.seq, f.base, f.agent_no, f.state.status, c.status, bool(f.has_slot))
        for c, f in changes
    ])  # fmt: skip
    notify_parents(connection, tenant, [c.id for c, _ in changes if c.status in TERMINAL])


def _digests(connection: Connection, tenant: str, change: Transition, job: JobState, seq: int) -> digests.Digests:
    """Return the digests that the transition covers. Requires that all rows except the job are written."""
    found = digests.of_transition(
        connection, tenant, change.id, job.fence, job.status, change.status, change.verb, job.approval_id
    )  # fmt: skip
    found |= of_result(change.result, change.result_summary, change.usage)
    if change.error is not None and (change.error != job.error or change.status in digests.FAILURES):
        found["error"] = of_text(change.error)
    if change.edited is not None:
        found["options"] = digests.of_options(connection, tenant, seq, change.edited)
    return found


def notify_parents(connection: Connection, tenant: str, ended: Sequence[str]) -> None:
    """Remove terminal jobs from job_await, as children and as parents, and update the waiting parents."""
    db = connection.db
    ((anyone,),) = connection.rows(_SQL["anyone_awaits"], {"tenant": tenant})
    if not anyone:
        return
    facts = {"tenant": tenant, "ids": json.dumps(ended)}
    db.execute(_SQL["await_no_more"], facts)
    parents = connection.rows(_SQL["child_ended"], facts)
    db.executemany(_SQL["one_child_less"], [(tenant, parent) for (parent,) in parents])
    woken = {"tenant": tenant, "ids": json.dumps([parent for (parent,) in parents])}
    agent_nos = transition_effects.limited(
        connection, tenant, [agent_no for (agent_no,) in connection.rows(_SQL["agent_nos_of"], woken)]
    )
    transition_effects.assign_slots(connection, tenant, [(agent_no, 0) for agent_no in agent_nos])
