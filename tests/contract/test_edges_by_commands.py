"""Every verb from every status: it makes exactly the move that the table of edges has for it, or it changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interlock.domain.approval import Decision
from interlock.domain.job import MAX_RELEASES, Job
from interlock.domain.lifecycle import EDGES, Status, Verb
from interlock.domain.message import AwaitMessage, SendMessage
from tests.contract.approvals import APPROVE, DENY, command, edit, request_approval
from tests.contract.builders import (
    NEVER,
    OPERATOR,
    TenantQueue,
    acknowledge,
    cancel,
    cancel_ack,
    complete,
    expire,
    fail,
    heartbeat,
    pass_deadline,
    release,
    revoke,
    save,
)  # fmt: skip
from tests.contract.connections import SqlConnection, job_in, move

Act = Callable[[TenantQueue, Job], Awaitable[object]]


def order(make: Callable[[Job], Any]) -> Act:
    async def act(queue: TenantQueue, job: Job) -> object:
        return await queue.store.carry_out(queue.tenant, [make(job)])

    return act


async def claim(queue: TenantQueue, job: Job) -> object:
    return await queue.claim(worker="w2", types=frozenset({job.type}))


def vote(decision: Decision) -> Act:
    async def act(queue: TenantQueue, job: Job) -> object:
        return await queue.store.approvals.decide(queue.tenant, [command(job.approval_id or NEVER, decision)])

    return act


async def send_heartbeat(queue: TenantQueue, job: Job) -> object:
    return await queue.store.heartbeat(queue.tenant, [heartbeat(job, fence=job.fence + 1)])


async def checkpoint(queue: TenantQueue, job: Job) -> object:
    return await queue.store.checkpoint(queue.tenant, [save(job, 1, fence=job.fence + 1)])


async def send(queue: TenantQueue, job: Job) -> object:
    return await queue.store.messages.send(queue.tenant, SendMessage(job.id, "m1", OPERATOR, "go"))


# The operation, its verb in history, the seconds that pass before, and the options of the job.
ACTS: dict[str, tuple[Act, Verb | None, float, dict[str, Any]]] = {
    "claim": (claim, Verb.CLAIM, 5, {}),
    "complete": (order(complete), Verb.COMPLETE, 1, {}),
    "fail": (order(fail), Verb.FAIL, 1, {}),
    "fail permanently": (order(lambda job: fail(job, retryable=False)), Verb.FAIL, 1, {}),
    "release": (order(release), Verb.RELEASE, 1, {}),
    "cancel": (order(lambda job: cancel(job.id)), Verb.CANCEL, 1, {}),
    "cancel by force": (order(lambda job: cancel(job.id, force=True)), Verb.CANCEL, 1, {}),
    "cancel ack": (order(cancel_ack), Verb.CANCEL_ACK, 1, {}),
    "revoke": (order(lambda job: revoke(job.id)), Verb.REVOKE, 1, {}),
    "expire": (order(lambda job: expire(job.id)), Verb.EXPIRE, 60, {}),
    "expire too early": (order(lambda job: expire(job.id)), Verb.EXPIRE, 1, {}),
    "expire a day later": (order(lambda job: expire(job.id)), Verb.EXPIRE, 86_400, {}),
    "request approval": (order(request_approval), Verb.REQUEST_APPROVAL, 1, {}),
    "approve": (vote(APPROVE), Verb.DECIDE, 1, {}),
    "deny": (vote(DENY), Verb.DECIDE, 1, {}),
    "edit": (order(lambda job: edit(job.id, priority=5)), Verb.EDIT, 1, {}),
    "send message": (send, Verb.SEND_MESSAGE, 1, {}),
    "acknowledge": (order(lambda job: acknowledge(job.id)), Verb.ACKNOWLEDGE, 1, {}),
    "pass deadline": (order(lambda job: pass_deadline(job.id)), Verb.PASS_DEADLINE, 90, {"delay_before_deadline": 90}),
    "pass no deadline": (order(lambda job: pass_deadline(job.id)), Verb.PASS_DEADLINE, 90, {}),
    "heartbeat of a stale worker": (send_heartbeat, None, 1, {}),
    "checkpoint of a stale worker": (checkpoint, None, 1, {}),
}

Q, R, W, RUN = Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL, Status.RUNNING
SUCCEEDED, FAILED, DEAD, CANCELLED = Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED

# In which situation a job is, as status and what is special about it, and where each act takes it; none is missing:
# anything not listed changes nothing.
MOVES: dict[tuple[Status, str], dict[str, Status]] = {
    (Q, ""): {"claim": RUN, "cancel": CANCELLED, "cancel by force": CANCELLED, "pass deadline": CANCELLED, "edit": Q},
    (Q, "waiting for a message"): {
        "cancel": CANCELLED, "cancel by force": CANCELLED, "pass deadline": CANCELLED, "edit": Q, "send message": Q,
    },
    (R, ""): {"claim": RUN, "cancel": CANCELLED, "cancel by force": CANCELLED, "pass deadline": FAILED, "edit": R},
    (W, ""): {
        "cancel": CANCELLED, "cancel by force": CANCELLED, "pass deadline": FAILED, "approve": Q, "deny": FAILED,
        "expire a day later": FAILED,
    },
    (RUN, ""): {
        "complete": SUCCEEDED, "fail": R, "fail permanently": FAILED, "release": Q, "cancel": RUN,
        "cancel by force": CANCELLED, "revoke": R, "expire": R, "expire a day later": R, "request approval": W,
    },
    (RUN, "last attempt"): {
        "complete": SUCCEEDED, "fail": DEAD, "fail permanently": FAILED, "release": Q, "cancel": RUN,
        "cancel by force": CANCELLED, "revoke": DEAD, "expire": DEAD, "expire a day later": DEAD, "request approval": W,
    },
    (RUN, "cancel requested"): {
        "complete": SUCCEEDED, "fail": CANCELLED, "fail permanently": FAILED, "release": CANCELLED,
        "cancel ack": CANCELLED, "cancel by force": CANCELLED, "revoke": CANCELLED, "expire": CANCELLED,
        "expire a day later": CANCELLED,
    },
    (RUN, "released too often"): {
        "complete": SUCCEEDED, "fail": R, "fail permanently": FAILED, "release": R, "cancel": RUN,
        "cancel by force": CANCELLED, "revoke": R, "expire": R, "expire a day later": R, "request approval": W,
    },
    (RUN, "released too often, last attempt"): {
        "complete": SUCCEEDED, "fail": DEAD, "fail permanently": FAILED, "release": DEAD, "cancel": RUN,
        "cancel by force": CANCELLED, "revoke": DEAD, "expire": DEAD, "expire a day later": DEAD, "request approval": W,
    },
    (SUCCEEDED, ""): {},
    (FAILED, ""): {"acknowledge": FAILED},
    (DEAD, ""): {"acknowledge": DEAD},
    (CANCELLED, ""): {},
}  # fmt: skip


async def situation(queue: TenantQueue, sql: SqlConnection, status: Status, special: str, **fields: Any) -> Job:
    if "last attempt" in special:
        fields["max_attempts"] = 1
    job = await job_in(queue, sql, RUN if "message" in special else status, **fields)
    if "message" in special:
        await queue.do(release(job, message=AwaitMessage("go")))
    if "cancel requested" in special:
        await queue.do(cancel(job.id))
    if "released too often" in special:
        await move(sql, job, status, queue.clock.now, releases=MAX_RELEASES)
    return await queue.job(job.id)


@pytest.mark.parametrize(("status", "special"), MOVES, ids=lambda value: value or "plain")
async def test_each_operation_makes_its_transition_or_changes_nothing(
    queue: TenantQueue, sql: SqlConnection, status: Status, special: str
) -> None:
    for name, (act, verb, seconds, facts) in ACTS.items():
        deadline = queue.after(facts["delay_before_deadline"]) if facts else None
        job = await situation(queue, sql, status, special, type=name, deadline=deadline)
        # A worker that finished repeats its call; one that never held the lease sends an invented one.
        holder = job._replace(worker=job.worker or "w1", fence=job.fence or 1)
        before = await queue.trace(job.id)
        queue.clock.advance(seconds)
        await act(queue, holder)
        after, rows = await queue.trace(job.id)
        target = MOVES[status, special].get(name)
        if target is None:
            assert (after, rows) == before, name
        else:
            assert (rows[-1].from_status, rows[-1].to_status, rows[-1].verb) == (status, target, verb), name
            assert rows[:-1] == before[1], name
            assert (after.status, after.version) == (target, job.version + 1), name
            assert verb in EDGES[status, target], name
    await queue.verify()


def test_every_edge_with_an_operation_is_made_by_it() -> None:
    made = {(status, target, ACTS[name][1]) for (status, _), moves in MOVES.items() for name, target in moves.items()}
    table = {(origin, target, verb) for (origin, target), verbs in EDGES.items() for verb in verbs if origin}
    # A spent budget fails jobs: tests/engine/test_spent_budgets.py.
    table = {edge for edge in table if edge[2] is not Verb.EXCEED_BUDGET}
    assert made == table


def test_every_status_is_tried() -> None:
    assert {status for status, _ in MOVES} == set(Status)
