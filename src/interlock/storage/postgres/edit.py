"""Edits of waiting jobs on PostgreSQL."""

from __future__ import annotations

from interlock.domain.transition import JobState, Transition
from interlock.storage.postgres.connection import Conn, call


async def with_what_can_be_edited(connection: Conn, tenant: str, job: JobState) -> JobState:
    """Return the job state with the columns that only an edit reads."""
    row = await connection.fetchrow(call("editable", 2), tenant, job.id)
    assert row is not None
    return job._replace(priority=row[0], tags=tuple(row[1]))


async def write(connection: Conn, tenant: str, change: Transition) -> None:
    """Write the new values of a job, and the eligibility key of its new priority."""
    assert change.edited is not None
    priority, run_at, deadline, max_attempts, tags = change.edited
    written = await connection.fetchval(
        call("edit", 10), tenant, change.id, change.version, change.actor, change.metadata, priority, run_at, deadline,
        max_attempts, list(tags),
    )  # fmt: skip
    assert written == 1
