"""History: one row for every transition, numbered without a gap, with who, why and what."""

from __future__ import annotations

import json
from itertools import pairwise

from interlock.domain.decide import Command
from interlock.domain.job import HistoryRow
from interlock.domain.lifecycle import EDGES, Status, Verb
from interlock.domain.timestamps import when
from tests.contract.builders import (
    ERROR,
    FIXED,
    NEVER,
    OPERATOR,
    TenantQueue,
    cancel,
    cancel_ack,
    complete,
    expire,
    facts,
    fail,
    heartbeat,
    new_job,
    release,
    revoke,
    save,
)  # fmt: skip


async def eventful(queue: TenantQueue, id: str = "") -> str:
    """A job that has gone through most of what can happen to one."""
    given = {"id": id} if id else {}
    job = await queue.running(max_attempts=9, backoff=FIXED, created_by="token:maker", lease_seconds=30.0, **given)
    queue.clock.advance(1)
    await queue.do(release(job, reason="größer 🐢"))
    job = await queue.again(job, worker="w2", lease_seconds=30.0)
    queue.clock.advance(1)
    await queue.do(fail(job))
    queue.clock.advance(10)
    job = await queue.again(job, worker="w3", lease_seconds=30.0)
    queue.clock.advance(30)
    await queue.do(expire(job.id))
    job = await queue.again(job, worker="w4", lease_seconds=30.0)
    await queue.do(revoke(job.id, reason="too slow"))
    job = await queue.again(job, worker="w5", lease_seconds=30.0)
    await queue.do(cancel(job.id, reason="enough"))
    await queue.do(cancel_ack(job))
    return job.id


def shape(rows: list[HistoryRow]) -> list[tuple[str | None, str, str, str, int, int, str | None]]:
    return [(r.from_status, r.to_status, r.verb, r.actor, r.attempt, r.fence, r.reason) for r in rows]


async def test_every_transition_is_recorded_with_actor_attempt_fence_and_reason(queue: TenantQueue) -> None:
    id = await eventful(queue)
    assert shape(await queue.history(id)) == [
        (None, "queued", "enqueue", "token:maker", 1, 0, None),
        ("queued", "running", "claim", "worker:w1", 1, 1, None),
        ("running", "queued", "release", "worker:w1", 1, 1, "größer 🐢"),
        ("queued", "running", "claim", "worker:w2", 1, 2, None),
        ("running", "retry", "fail", "worker:w2", 1, 2, None),
        ("retry", "running", "claim", "worker:w3", 2, 3, None),
        ("running", "retry", "expire", "system:sweep", 2, 3, "lease_expired"),
        ("retry", "running", "claim", "worker:w4", 3, 4, None),
        ("running", "retry", "revoke", OPERATOR, 3, 4, "too slow"),
        ("retry", "running", "claim", "worker:w5", 4, 5, None),
        ("running", "running", "cancel", OPERATOR, 4, 5, "enough"),
        ("running", "cancelled", "cancel_ack", "worker:w5", 4, 5, "enough"),
    ]


async def test_versions_have_no_gap_and_end_at_the_state_of_the_job(queue: TenantQueue) -> None:
    """G16."""
    job, rows = await queue.trace(await eventful(queue))
    assert [row.version for row in rows] == list(range(1, len(rows) + 1))
    assert (job.version, job.status, job.updated_at) == (rows[-1].version, rows[-1].to_status, rows[-1].at)
    for before, after in pairwise(rows):
        assert after.from_status == before.to_status
        assert after.at >= before.at


async def test_history_is_read_in_parts(queue: TenantQueue) -> None:
    id = await eventful(queue)
    rows = await queue.history(id)
    assert await queue.store.history(queue.tenant, id, after=3, limit=2) == rows[3:5]
    assert await queue.store.history(queue.tenant, id, after=10) == rows[10:]
    assert await queue.store.history(queue.tenant, id, after=len(rows), limit=1) == []
    assert await queue.store.history("another", id, limit=5) == []


async def test_every_row_is_an_edge_of_the_table(queue: TenantQueue) -> None:
    for row in await queue.history(await eventful(queue)):
        assert row.verb in EDGES[row.from_status, row.to_status]


async def test_metadata_describes_the_decision_of_a_transition(queue: TenantQueue) -> None:
    rows = await queue.history(await eventful(queue))
    reported = [*map(facts, rows)]
    assert reported[0] == reported[1] == {}
    assert reported[2] == {"run_at": when(rows[2].at)}
    assert reported[4] == {"error": json.loads(ERROR), "attempt": 2, "run_at": when(rows[4].at + 10_000_000)}
    assert reported[6]["error"]["kind"] == "lease_expired"
    assert (reported[6]["attempt"], reported[6]["run_at"]) == (3, when(rows[6].at))
    assert reported[8]["error"]["kind"] == "revoked"
    assert reported[10] == reported[11] == {"why": "enough"}


async def test_the_error_is_in_history_exactly_as_reported(queue: TenantQueue) -> None:
    error = '{ "message" : "\\u0000 \\ud83d\\ude00", "kind":"k", "details": {"n": 1.0} }'
    job = await queue.running(max_attempts=1)
    await queue.do(fail(job, error=error))
    last = (await queue.history(job.id))[-1]
    assert (last.metadata or "").startswith(f'{{"error":{error},')


async def test_an_operation_without_a_status_change_adds_no_history(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.history(job.id)
    queue.clock.advance(1)
    await queue.heartbeat(heartbeat(job, checkpoint=save(job, 1)))
    await queue.checkpoint(save(job, 2))
    await queue.claim(worker="w2")
    assert await queue.history(job.id) == before


async def test_merged_calls_keep_their_own_actor_and_reason(queue: TenantQueue) -> None:
    jobs = [await queue.running(type=f"t{i}", worker=f"w{i}") for i in range(3)]
    orders: list[Command] = [
        release(jobs[0], reason="r0"),
        cancel(jobs[1].id, actor="token:a", reason="r1", force=True),
        revoke(jobs[2].id, actor="user:b", reason="r2"),
    ]
    await queue.store.carry_out(queue.tenant, orders)
    last = [(await queue.history(job.id))[-1] for job in jobs]
    assert [(row.actor, row.reason) for row in last] == [("worker:w0", "r0"), ("token:a", "r1"), ("user:b", "r2")]


async def test_jobs_of_one_batch_have_their_own_creators(queue: TenantQueue) -> None:
    jobs = [new_job(created_by=f"token:{i}") for i in range(3)]
    await queue.add_all(jobs)
    assert [(await queue.history(job.id))[0].actor for job in jobs] == ["token:0", "token:1", "token:2"]


async def test_history_of_an_unknown_or_foreign_job_is_empty(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.add()
    assert await queue.history(theirs) == await queue.history(NEVER) == []


async def test_a_direct_success_has_three_rows(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(complete(job))
    rows = await queue.history(job.id)
    assert [(row.version, row.to_status, row.verb) for row in rows] == [
        (1, Status.QUEUED, Verb.ENQUEUE),
        (2, Status.RUNNING, Verb.CLAIM),
        (3, Status.SUCCEEDED, Verb.COMPLETE),
    ]
