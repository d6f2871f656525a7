"""Acknowledging failed and dead-letter jobs: one recorded change that alters nothing else."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Status, Verb
from interlock.errors import NotFailed, NotFound
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, acknowledge
from tests.contract.connections import SqlConnection, job_in, rejection, update
from tests.support.invariants import check_history

FAILURES = [Status.FAILED, Status.DEAD_LETTER]


@pytest.mark.parametrize("status", FAILURES)
async def test_an_acknowledgement_is_recorded_and_changes_nothing_else(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    before = await job_in(queue, sql, status)
    queue.clock.advance(5)
    await queue.do(acknowledge(before.id, comment="known bug"))
    after, rows = await queue.trace(before.id)
    assert after == before._replace(
        acknowledged_at=queue.clock.now, acknowledged_by=OPERATOR, version=before.version + 1,
        updated_at=queue.clock.now,
    )  # fmt: skip
    last = rows[-1]
    assert (last.from_status, last.to_status, last.verb) == (status, status, Verb.ACKNOWLEDGE)
    assert (last.actor, last.reason) == (OPERATOR, "known bug")
    check_history(after, rows)
    await queue.verify()


async def test_a_repeated_acknowledgement_changes_nothing(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await job_in(queue, sql, Status.FAILED)
    first = await queue.do(acknowledge(job.id, actor="user:ann"))
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert await queue.do(acknowledge(job.id, actor="user:bob", comment="again")) == first
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize("status", [status for status in Status if status not in FAILURES])
async def test_only_a_failure_can_be_acknowledged(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status)
    before = await queue.trace(job.id)
    assert isinstance((await queue.refused(acknowledge(job.id))), NotFailed)
    assert await queue.trace(job.id) == before


async def test_a_missing_job_cannot_be_acknowledged(queue: TenantQueue) -> None:
    assert isinstance(await queue.refused(acknowledge(NEVER)), NotFound)


@pytest.mark.parametrize("status", FAILURES)
async def test_direct_sql_can_acknowledge_a_failure_and_nothing_else(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    job = await job_in(queue, sql, status)
    columns = {
        "version": job.version + 1, "verb": "acknowledge", "actor": "user:dba", "reason": "by hand", "metadata": None,
        "acknowledged_at": queue.clock.now, "acknowledged_by": "user:dba",
    }  # fmt: skip
    if sql.engine == "postgres":
        columns["previous"] = str(status)
    before = await queue.trace(job.id)
    for other in (
        {"error": '{"message":"other"}'}, {"priority": 7}, {"finished_at": queue.clock.now + 5},
        {"verb": "edit"}, {"acknowledged_by": "user:eve"}, {"status": "cancelled"}, {"attempt": job.attempt + 1},
    ):  # fmt: skip
        await rejection(sql, *update(job, columns | other))
        assert await queue.trace(job.id) == before, other
    queue.clock.advance(1)
    await sql.run(*update(job, columns))
    after, rows = await queue.trace(job.id)
    assert (after.acknowledged_at, after.acknowledged_by) == (queue.clock.now, "user:dba")  # the time of the database
    assert (rows[-1].verb, rows[-1].reason) == (Verb.ACKNOWLEDGE, "by hand")
    await rejection(sql, *update(job, columns | {"version": after.version + 1}))
    await queue.verify()


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING])
async def test_direct_sql_cannot_acknowledge_a_job_in_advance(
    queue: TenantQueue, sql: SqlConnection, status: Status
) -> None:
    job = await job_in(queue, sql, status)
    before = await queue.trace(job.id)
    columns = {"version": job.version + 1, "acknowledged_at": queue.clock.now, "acknowledged_by": "user:dba"}
    await rejection(sql, *update(job, columns))
    assert await queue.trace(job.id) == before
