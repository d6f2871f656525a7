"""Reads of job history on SQLite."""

from __future__ import annotations

from typing import Any, Final

from interlock.domain.job import HistoryRow
from interlock.domain.lifecycle import Status, Verb
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_LEASE_END: Final = load("interlock.storage.sqlite", "transition.sql")["lease_end"]
_HISTORY: Final = load("interlock.storage.sqlite", "read.sql")["history"]


def of_job(connection: Connection, tenant: str, job_id: str) -> list[HistoryRow]:
    """Return the history of a job, oldest row first."""
    return [to_row(r) for r in connection.rows(_HISTORY, {"tenant": tenant, "id": job_id})]


def lease_end(connection: Connection, tenant: str, job_id: str, fence: int) -> HistoryRow | None:
    """Return the row that ended the lease with this fence, or None while it is active."""
    rows = connection.rows(_LEASE_END, {"tenant": tenant, "id": job_id, "fence": fence})
    return to_row(rows[0]) if rows else None


def to_row(r: tuple[Any, ...]) -> HistoryRow:
    """Convert a selected row, which starts with the job ID."""
    return HistoryRow(r[0], r[1], r[2] and Status(r[2]), Status(r[3]), Verb(r[4]), *r[5:])
