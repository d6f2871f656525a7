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
    Desk,
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


async def eventful(remote: Desk, id: str = "") -> str:
    """A job that has gone through most of what can happen to one."""
    given = {"id": id} if id else {}
    job = await remote.running(max_attempts=9, backoff=FIXED, created_by="token:maker", lease_seconds=30.0, **given)
    remote.clock.advance(1)
    await remote.do(release(job, reason="größer 🐢"))
    job = await remote.again(job, worker="w2", lease_seconds=30.0)
    remote.clock.advance(1)
    await remote.do(fail(job))
    remote.clock.advance(10)
    job = await remote.again(job, worker="w3", lease_seconds=30.0)
    remote.clock.advance(30)
    await remote.do(expire(job.id))
    job = await remote.again(job, worker="w4", lease_seconds=30.0)
    await remote.do(revoke(job.id, reason="too slow"))
    job = await remote.again(job, worker="w5", lease_seconds=30.0)
    await remote.do(cancel(job.id, reason="enough"))
    await remote.do(cancel_ack(job))
    return job.id


def shape(rows: list[HistoryRow]) -> list[tuple[str | None, str, str, str, int, int, str | None]]:
    return [(r.from_status, r.to_status, r.verb, r.actor, r.attempt, r.fence, r.reason) for r in rows]


async def test_every_transition_is_written_with_actor_attempt_fence_and_reason(remote: Desk) -> None:
    id = await eventful(remote)
    assert shape(await remote.history(id)) == [
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


async def test_versions_have_no_gap_and_end_in_the_state_of_the_job(remote: Desk) -> None:
    """G16."""
    job, rows = await remote.trace(await eventful(remote))
    assert [row.version for row in rows] == list(range(1, len(rows) + 1))
    assert (job.version, job.status, job.updated_at) == (rows[-1].version, rows[-1].to_status, rows[-1].at)
    for before, after in pairwise(rows):
        assert after.from_status == before.to_status
        assert after.at >= before.at


async def test_every_row_is_an_edge_of_the_table(remote: Desk) -> None:
    for row in await remote.history(await eventful(remote)):
        assert row.verb in EDGES[row.from_status, row.to_status]


async def test_metadata_tells_what_a_transition_decided(remote: Desk) -> None:
    rows = await remote.history(await eventful(remote))
    reported = [*map(facts, rows)]
    assert reported[0] == reported[1] == {}
    assert reported[2] == {"run_at": when(rows[2].at)}
    assert reported[4] == {"error": json.loads(ERROR), "attempt": 2, "run_at": when(rows[4].at + 10_000_000)}
    assert reported[6]["error"]["kind"] == "lease_expired"
    assert (reported[6]["attempt"], reported[6]["run_at"]) == (3, when(rows[6].at))
    assert reported[8]["error"]["kind"] == "revoked"
    assert reported[10] == reported[11] == {"why": "enough"}


async def test_the_error_stands_in_history_exactly_as_it_was_reported(remote: Desk) -> None:
    error = '{ "message" : "\\u0000 \\ud83d\\ude00", "kind":"k", "details": {"n": 1.0} }'
    job = await remote.running(max_attempts=1)
    await remote.do(fail(job, error=error))
    last = (await remote.history(job.id))[-1]
    assert (last.metadata or "").startswith(f'{{"error":{error},')


async def test_what_changes_no_status_writes_no_history(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.history(job.id)
    remote.clock.advance(1)
    await remote.heartbeat(heartbeat(job, checkpoint=save(job, 1)))
    await remote.checkpoint(save(job, 2))
    await remote.claim(worker="w2")
    assert await remote.history(job.id) == before


async def test_merged_calls_keep_their_own_actor_and_reason(remote: Desk) -> None:
    jobs = [await remote.running(type=f"t{i}", worker=f"w{i}") for i in range(3)]
    orders: list[Command] = [
        release(jobs[0], reason="r0"),
        cancel(jobs[1].id, actor="token:a", reason="r1", force=True),
        revoke(jobs[2].id, actor="user:b", reason="r2"),
    ]
    await remote.store.carry_out(remote.tenant, orders)
    last = [(await remote.history(job.id))[-1] for job in jobs]
    assert [(row.actor, row.reason) for row in last] == [("worker:w0", "r0"), ("token:a", "r1"), ("user:b", "r2")]


async def test_jobs_of_one_batch_have_their_own_creators(remote: Desk) -> None:
    jobs = [new_job(created_by=f"token:{i}") for i in range(3)]
    await remote.add_all(jobs)
    assert [(await remote.history(job.id))[0].actor for job in jobs] == ["token:0", "token:1", "token:2"]


async def test_history_of_an_unknown_or_foreign_job_is_empty(remote: Desk, rival: Desk) -> None:
    theirs = await rival.add()
    assert await remote.history(theirs) == await remote.history(NEVER) == []


async def test_a_direct_success_has_three_rows(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(complete(job))
    rows = await remote.history(job.id)
    assert [(row.version, row.to_status, row.verb) for row in rows] == [
        (1, Status.QUEUED, Verb.ENQUEUE),
        (2, Status.RUNNING, Verb.CLAIM),
        (3, Status.SUCCEEDED, Verb.COMPLETE),
    ]
