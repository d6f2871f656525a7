"""Reading the history of jobs on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.domain.job import HistoryRow
from interlock.domain.lifecycle import Status, Verb
from interlock.storage.postgres.connection import Conn, call


async def of_job(connection: Conn, tenant: str, job_id: str) -> list[HistoryRow]:
    """Every row of one job, oldest first."""
    return [to_row(r) for r in await connection.fetch(call("history", 2), tenant, job_id)]


async def lease_ends(
    connection: Conn, tenant: str, leases: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], HistoryRow]:
    """The rows that ended the leases with these fences, where they have ended."""
    ids, fences = zip(*leases, strict=True)
    rows = await connection.fetch(call("lease_ends", 3), tenant, ids, fences)
    return {(row.job_id, row.fence): row for row in map(to_row, rows)}


def to_row(row: Any) -> HistoryRow:
    """A row as it is selected: one column that is passed over, then from the id of the job on."""
    _, job_id, version, origin, target, verb, *rest = row
    return HistoryRow(job_id, version, origin and Status(origin), Status(target), Verb(verb), *rest)
