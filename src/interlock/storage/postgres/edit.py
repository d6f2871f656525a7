"""Edits of waiting jobs on PostgreSQL."""

from __future__ import annotations

from interlock.domain.transition import JobState, Transition
from interlock.storage.postgres.connection import Conn, call


async def with_what_can_be_edited(connection: Conn, tenant: str, job: JobState) -> JobState:
    """The same standing, with the values that only an edit looks at."""
    row = await connection.fetchrow(call("editable", 2), tenant, job.id)
    assert row is not None
    return job._replace(priority=row[0], tags=tuple(row[1]))


async def write(connection: Conn, tenant: str, change: Transition) -> None:
    """Give a job its new values, and the route that goes with its priority."""
    assert change.edited is not None
    priority, run_at, deadline, max_attempts, tags = change.edited
    written = await connection.fetchval(
        call("edit", 10), tenant, change.id, change.version, change.actor, change.metadata, priority, run_at, deadline,
        max_attempts, list(tags),
    )  # fmt: skip
    assert written == 1
