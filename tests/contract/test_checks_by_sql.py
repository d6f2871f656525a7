"""Row invariants are CHECK constraints in both directions: they hold even where the triggers have been taken away."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status
from tests.contract.builders import ERROR, TenantQueue, new_id
from tests.contract.connections import SqlConnection, job_in, rejection, update

LIVE = [status for status in Status if status not in TERMINAL]


async def broken(queue: TenantQueue, sql: SqlConnection, status: Status, **columns: Any) -> str:
    """The error of the database for a row in this status with these columns."""
    job = await job_in(queue, sql, status)
    await sql.without_rules()
    message = await rejection(sql, *update(job, columns))
    assert await queue.job(job.id) == job
    return message


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_a_terminal_job_has_an_end_time(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    assert "finished_exactly_when_ended" in await broken(queue, sql, status, finished_at=None)


@pytest.mark.parametrize("status", LIVE)
async def test_a_live_job_has_no_end_time(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    assert "finished_exactly_when_ended" in await broken(queue, sql, status, finished_at=queue.clock.now)


@pytest.mark.parametrize("column", ["worker", "lease_expires_at"])
async def test_a_running_job_has_a_worker_and_a_lease_expiry(
    queue: TenantQueue, sql: SqlConnection, column: str
) -> None:
    assert "leased_exactly_when_running" in await broken(queue, sql, Status.RUNNING, **{column: None})


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_a_job_that_is_not_running_has_no_lease(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status)
    await sql.without_rules()
    later = queue.after(60)
    for columns in ({"worker": "w"}, {"lease_expires_at": later}, {"worker": "w", "lease_expires_at": later}):
        assert "leased_exactly_when_running" in await rejection(sql, *update(job, columns))


async def test_a_job_waiting_for_approval_names_its_approval(queue: TenantQueue, sql: SqlConnection) -> None:
    message = await broken(queue, sql, Status.WAITING_FOR_APPROVAL, approval_id=None)
    assert "approval_exactly_when_waiting" in message


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.WAITING_FOR_APPROVAL])
async def test_no_other_job_names_an_approval(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    assert "approval_exactly_when_waiting" in await broken(queue, sql, status, approval_id=new_id())


@pytest.mark.parametrize("status", [Status.FAILED, Status.DEAD_LETTER])
async def test_a_failed_job_has_an_error(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    assert "error_fits_status" in await broken(queue, sql, status, error=None)


async def test_a_succeeded_job_has_no_error(queue: TenantQueue, sql: SqlConnection) -> None:
    assert "error_fits_status" in await broken(queue, sql, Status.SUCCEEDED, error=ERROR)


@pytest.mark.parametrize("column", ["started_at", "run_started_at"])
async def test_a_running_job_has_started(queue: TenantQueue, sql: SqlConnection, column: str) -> None:
    assert "running_has_started" in await broken(queue, sql, Status.RUNNING, **{column: None})


@pytest.mark.parametrize(
    "columns",
    [{"attempt": 0}, {"attempt": -1}, {"attempt": 4}, {"max_attempts": 0}, {"max_attempts": 101}],
    ids=str,
)
async def test_attempt_stays_between_1_and_max_attempts(
    queue: TenantQueue, sql: SqlConnection, columns: dict[str, int]
) -> None:
    assert "attempt_within_max" in await broken(queue, sql, Status.QUEUED, **columns)


@pytest.mark.parametrize("priority", [-1001, 1001])
async def test_priority_stays_in_its_range(queue: TenantQueue, sql: SqlConnection, priority: int) -> None:
    assert "priority_in_range" in await broken(queue, sql, Status.QUEUED, priority=priority)


async def test_there_is_no_ninth_status(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add())
    await sql.without_rules()
    with pytest.raises(Exception, match=r"status_is_known|invalid input value for enum"):
        await sql.run("UPDATE job SET status = 'lost' WHERE tenant = $1", job.tenant)


async def test_a_pause_names_its_principal(queue: TenantQueue, sql: SqlConnection) -> None:
    await queue.store.registry.pause(queue.tenant, "work", actor="user:ada", reason=None)
    message = await rejection(sql, "UPDATE queue SET paused_by = NULL WHERE tenant = $1", queue.tenant)
    assert "CHECK" in message or "check constraint" in message


IN_BODY = ("type", "payload", "requires", "created_by", "created_at")
ALWAYS = (
    *IN_BODY, "tags", "tenant", "id", "seq", "status", "priority", "run_at", "attempt", "max_attempts", "fence", "sanitized",
    "version", "releases", "updated_at",
)  # fmt: skip


async def test_required_columns_cannot_be_null(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add())
    await sql.without_rules()
    for column in ALWAYS:
        table = "job_body" if sql.engine == "sqlite" and column in IN_BODY else "job"
        message = (await rejection(sql, f"UPDATE {table} SET {column} = NULL WHERE tenant = $1", job.tenant)).lower()
        assert "not null" in message or "not-null" in message or "can only be updated to default" in message, column
    assert await queue.job(job.id) == job
