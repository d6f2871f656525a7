"""Row invariants are CHECK constraints in both directions: they hold even where the triggers have been taken away."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status
from tests.contract.builders import ERROR, Desk, new_id
from tests.contract.connections import Door, job_in, refusal, update

LIVE = [status for status in Status if status not in TERMINAL]


async def broken(remote: Desk, adapter: Door, status: Status, **columns: Any) -> str:
    """What the database says to a row in this status with these columns."""
    job = await job_in(remote, adapter, status)
    await adapter.without_rules()
    message = await refusal(adapter, *update(job, columns))
    assert await remote.job(job.id) == job
    return message


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_an_ended_job_has_an_end(remote: Desk, adapter: Door, status: Status) -> None:
    assert "finished_exactly_when_ended" in await broken(remote, adapter, status, finished_at=None)


@pytest.mark.parametrize("status", LIVE)
async def test_a_live_job_has_no_end(remote: Desk, adapter: Door, status: Status) -> None:
    assert "finished_exactly_when_ended" in await broken(remote, adapter, status, finished_at=remote.clock.now)


@pytest.mark.parametrize("column", ["worker", "lease_expires_at"])
async def test_a_running_job_is_held_by_a_worker_until_a_time(remote: Desk, adapter: Door, column: str) -> None:
    assert "leased_exactly_when_running" in await broken(remote, adapter, Status.RUNNING, **{column: None})


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_what_does_not_run_is_held_by_nobody(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    await adapter.without_rules()
    later = remote.after(60)
    for columns in ({"worker": "w"}, {"lease_expires_at": later}, {"worker": "w", "lease_expires_at": later}):
        assert "leased_exactly_when_running" in await refusal(adapter, *update(job, columns))


async def test_a_job_that_waits_for_approval_names_its_gate(remote: Desk, adapter: Door) -> None:
    message = await broken(remote, adapter, Status.WAITING_FOR_APPROVAL, approval_id=None)
    assert "approval_exactly_when_waiting" in message


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.WAITING_FOR_APPROVAL])
async def test_no_other_job_names_a_gate(remote: Desk, adapter: Door, status: Status) -> None:
    assert "approval_exactly_when_waiting" in await broken(remote, adapter, status, approval_id=new_id())


@pytest.mark.parametrize("status", [Status.FAILED, Status.DEAD_LETTER])
async def test_a_job_that_failed_has_an_error(remote: Desk, adapter: Door, status: Status) -> None:
    assert "error_fits_status" in await broken(remote, adapter, status, error=None)


async def test_a_job_that_succeeded_has_no_error(remote: Desk, adapter: Door) -> None:
    assert "error_fits_status" in await broken(remote, adapter, Status.SUCCEEDED, error=ERROR)


@pytest.mark.parametrize("column", ["started_at", "run_started_at"])
async def test_a_running_job_has_started(remote: Desk, adapter: Door, column: str) -> None:
    assert "running_has_started" in await broken(remote, adapter, Status.RUNNING, **{column: None})


@pytest.mark.parametrize(
    "columns",
    [{"attempt": 0}, {"attempt": -1}, {"attempt": 4}, {"max_attempts": 0}, {"max_attempts": 101}],
    ids=str,
)
async def test_attempt_stays_between_1_and_max_attempts(remote: Desk, adapter: Door, columns: dict[str, int]) -> None:
    assert "attempt_within_max" in await broken(remote, adapter, Status.QUEUED, **columns)


@pytest.mark.parametrize("priority", [-1001, 1001])
async def test_priority_stays_in_its_range(remote: Desk, adapter: Door, priority: int) -> None:
    assert "priority_in_range" in await broken(remote, adapter, Status.QUEUED, priority=priority)


async def test_there_is_no_ninth_status(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add())
    await adapter.without_rules()
    with pytest.raises(Exception, match=r"status_is_known|invalid input value for enum"):
        await adapter.run("UPDATE job SET status = 'lost' WHERE tenant = $1", job.tenant)


async def test_a_pause_names_who_paused(remote: Desk, adapter: Door) -> None:
    await remote.store.pause(remote.tenant, "work", actor="user:ada", reason=None)
    message = await refusal(adapter, "UPDATE queue SET paused_by = NULL WHERE tenant = $1", remote.tenant)
    assert "CHECK" in message or "check constraint" in message


IN_BODY = ("type", "payload", "requires", "created_by", "created_at")
ALWAYS = (
    *IN_BODY, "tags", "tenant", "id", "seq", "status", "priority", "run_at", "attempt", "max_attempts", "fence", "sanitized",
    "version", "releases", "updated_at",
)  # fmt: skip


async def test_what_every_job_has_cannot_be_emptied(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add())
    await adapter.without_rules()
    for column in ALWAYS:
        table = "job_body" if adapter.engine == "sqlite" and column in IN_BODY else "job"
        message = (await refusal(adapter, f"UPDATE {table} SET {column} = NULL WHERE tenant = $1", job.tenant)).lower()
        assert "not null" in message or "not-null" in message or "can only be updated to default" in message, column
    assert await remote.job(job.id) == job
