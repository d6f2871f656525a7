"""History of jobs on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.domain.decide import result_of_repeat
from interlock.domain.job import HistoryRow, Receipt, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import Error, NotFound
from interlock.storage.postgres.connection import Conn, call


async def newest(connection: Conn, tenant: str, job_id: str) -> HistoryRow:
    """Return the last transition of a job."""
    row = await connection.fetchrow(call("newest_transition", 2), tenant, job_id)
    assert row is not None
    return to_row(row)


async def results_of_ended(
    connection: Conn, tenant: str, leases: Sequence[tuple[str, int, str, Verb | None]]
) -> dict[str, Receipt | Rejected]:
    """Return the result for each worker whose lease has ended (ID, fence, worker, verb of its finish), by job ID."""
    if not leases:
        return {}
    ids, fences, _, _ = zip(*leases, strict=True)
    found = await connection.fetch("select id from interlock.leased_checkpoints($1, $2)", tenant, ids)
    known = {row[0] for row in found}
    rows = map(to_row, await connection.fetch(call("lease_ends", 3), tenant, ids, fences))
    ends = {(row.job_id, row.fence): row for row in rows}
    results: dict[str, Receipt | Rejected] = {}
    for id, fence, worker, verb in leases:
        result = result_of_repeat(ends.get((id, fence)), verb, id, fence, worker) if id in known else NotFound(id)
        results[id] = Rejected(result) if isinstance(result, Error) else result
    return results


async def why_lease_lost(connection: Conn, tenant: str, leases: Sequence[tuple[str, int, str]]) -> dict[str, Rejected]:
    """Return the error for each lost lease (ID, fence, worker), by job ID."""
    results = await results_of_ended(connection, tenant, [(*lease, None) for lease in leases])
    return {id: result for id, result in results.items() if isinstance(result, Rejected)}


def to_row(row: Any) -> HistoryRow:
    """Convert a selected row: the first column is skipped, the second is the job ID."""
    _, job_id, version, origin, target, verb, *rest = row
    return HistoryRow(job_id, version, origin and Status(origin), Status(target), Verb(verb), *rest)
