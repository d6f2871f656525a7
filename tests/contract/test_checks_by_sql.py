"""Row invariants are CHECK constraints in both directions: they hold even where the triggers have been taken away."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status
from tests.contract.builders import ERROR, Desk, new_id
from tests.contract.connections import Door, job_in, refusal, update

LIVE = [status for status in Status if status not in TERMINAL]


async def broken(desk: Desk, door: Door, status: Status, **columns: Any) -> str:
    """What the database says to a row in this status with these columns."""
    job = await job_in(desk, door, status)
    await door.without_rules()
    message = await refusal(door, *update(job, columns))
    assert await desk.job(job.id) == job
    return message


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_an_ended_job_has_an_end(desk: Desk, door: Door, status: Status) -> None:
    assert "finished_exactly_when_ended" in await broken(desk, door, status, finished_at=None)


@pytest.mark.parametrize("status", LIVE)
async def test_a_live_job_has_no_end(desk: Desk, door: Door, status: Status) -> None:
    assert "finished_exactly_when_ended" in await broken(desk, door, status, finished_at=desk.clock.now)


@pytest.mark.parametrize("column", ["worker", "lease_expires_at"])
async def test_a_running_job_is_held_by_a_worker_until_a_time(desk: Desk, door: Door, column: str) -> None:
    assert "held_exactly_when_running" in await broken(desk, door, Status.RUNNING, **{column: None})


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
async def test_what_does_not_run_is_held_by_nobody(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status)
    await door.without_rules()
    later = desk.after(60)
    for columns in ({"worker": "w"}, {"lease_expires_at": later}, {"worker": "w", "lease_expires_at": later}):
        assert "held_exactly_when_running" in await refusal(door, *update(job, columns))


async def test_a_job_that_waits_for_approval_names_its_gate(desk: Desk, door: Door) -> None:
    message = await broken(desk, door, Status.WAITING_FOR_APPROVAL, gate_id=None)
    assert "gated_exactly_when_waiting" in message


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.WAITING_FOR_APPROVAL])
async def test_no_other_job_names_a_gate(desk: Desk, door: Door, status: Status) -> None:
    assert "gated_exactly_when_waiting" in await broken(desk, door, status, gate_id=new_id())


@pytest.mark.parametrize("status", [Status.FAILED, Status.DEAD_LETTER])
async def test_a_job_that_failed_has_an_error(desk: Desk, door: Door, status: Status) -> None:
    assert "error_fits_status" in await broken(desk, door, status, error=None)


async def test_a_job_that_succeeded_has_no_error(desk: Desk, door: Door) -> None:
    assert "error_fits_status" in await broken(desk, door, Status.SUCCEEDED, error=ERROR)


@pytest.mark.parametrize("column", ["started_at", "run_started_at"])
async def test_a_running_job_has_started(desk: Desk, door: Door, column: str) -> None:
    assert "running_has_started" in await broken(desk, door, Status.RUNNING, **{column: None})


@pytest.mark.parametrize(
    "columns",
    [{"attempt": 0}, {"attempt": -1}, {"attempt": 4}, {"max_attempts": 0}, {"max_attempts": 101}],
    ids=str,
)
async def test_attempt_stays_between_1_and_max_attempts(desk: Desk, door: Door, columns: dict[str, int]) -> None:
    assert "attempt_within_max" in await broken(desk, door, Status.QUEUED, **columns)


@pytest.mark.parametrize("priority", [-1001, 1001])
async def test_priority_stays_in_its_range(desk: Desk, door: Door, priority: int) -> None:
    assert "priority_in_range" in await broken(desk, door, Status.QUEUED, priority=priority)


async def test_there_is_no_ninth_status(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add())
    await door.without_rules()
    with pytest.raises(Exception, match=r"status_is_known|invalid input value for enum"):
        await door.run("UPDATE job SET status = 'lost' WHERE tenant = $1", job.tenant)


async def test_a_pause_names_who_paused(desk: Desk, door: Door) -> None:
    await desk.store.pause(desk.tenant, "work", actor="user:ada", reason=None)
    message = await refusal(door, "UPDATE queue SET paused_by = NULL WHERE tenant = $1", desk.tenant)
    assert "CHECK" in message or "check constraint" in message


IN_BODY = ("type", "payload", "requires", "created_by", "created_at")
ALWAYS = (
    *IN_BODY, "tags", "tenant", "id", "seq", "status", "priority", "run_at", "attempt", "max_attempts", "fence", "sanitized",
    "version", "releases", "updated_at",
)  # fmt: skip


async def test_what_every_job_has_cannot_be_emptied(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add())
    await door.without_rules()
    for column in ALWAYS:
        table = "job_body" if door.engine == "sqlite" and column in IN_BODY else "job"
        message = (await refusal(door, f"UPDATE {table} SET {column} = NULL WHERE tenant = $1", job.tenant)).lower()
        assert "not null" in message or "not-null" in message or "can only be updated to default" in message, column
    assert await desk.job(job.id) == job
