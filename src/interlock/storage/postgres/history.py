"""History of jobs on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.domain.decide import result_of_repeat
from interlock.domain.job import HistoryRow, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import Error, NotFound
from interlock.storage.postgres.connection import Conn, call


async def of_job(connection: Conn, tenant: str, job_id: str) -> list[HistoryRow]:
    """Return the history of one job, oldest first."""
    return [to_row(r) for r in await connection.fetch(call("history", 2), tenant, job_id)]


async def lease_ends(
    connection: Conn, tenant: str, leases: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], HistoryRow]:
    """Return the history rows that ended these leases."""
    ids, fences = zip(*leases, strict=True)
    rows = await connection.fetch(call("lease_ends", 3), tenant, ids, fences)
    return {(row.job_id, row.fence): row for row in map(to_row, rows)}


async def why_lease_lost(connection: Conn, tenant: str, leases: Sequence[tuple[str, int, str]]) -> dict[str, Rejected]:
    """Return the error for each lost lease (id, fence, worker), by job ID."""
    if not leases:
        return {}
    ids = [id for id, _, _ in leases]
    known = {
        row[0] for row in await connection.fetch("select id from interlock.leased_checkpoints($1, $2)", tenant, ids)
    }
    ends = await lease_ends(connection, tenant, [(id, fence) for id, fence, _ in leases])
    faults = {}
    for id, fence, worker in leases:
        error = result_of_repeat(ends.get((id, fence)), None, id, fence, worker) if id in known else NotFound(id)
        assert isinstance(error, Error)
        faults[id] = Rejected(error)
    return faults


def to_row(row: Any) -> HistoryRow:
    """Convert a selected row: the first column is skipped, the second is the job ID."""
    _, job_id, version, origin, target, verb, *rest = row
    return HistoryRow(job_id, version, origin and Status(origin), Status(target), Verb(verb), *rest)
