"""The lock of a lease, under which its holder writes."""

from __future__ import annotations

from typing import Final

from interlock.domain.decide import result_of_repeat
from interlock.domain.job import HistoryRow
from interlock.errors import Error, NotFound
from interlock.storage.dialect import Steps, Transaction, columns, reader, statements

SQL: Final = statements("lease", history=columns(HistoryRow, "h.", job_id="{job_id}"))
_history: Final = reader(HistoryRow)


def hold(tx: Transaction, job_id: str, fence: int, worker: str) -> Steps[int]:
    """Lock the lease of a job until the transaction ends and return its attempt; raise why the caller has no lease."""
    held = yield from tx.one(SQL["holder"], job_id=job_id, fence=fence, worker=worker)
    if held is not None:
        return int(held[0])
    if (yield from tx.one(SQL["known"], job_id=job_id)) is None:
        raise NotFound(job_id)
    raise (yield from why_lost(tx, job_id, fence, worker))


def why_lost(tx: Transaction, job_id: str, fence: int, worker: str) -> Steps[Error]:
    """Return the error for a caller that does not hold the lease of a known job."""
    row = yield from tx.one(SQL["lease_end"], job_id=job_id, fence=fence)
    error = result_of_repeat(row and _history(row), None, job_id, fence, worker)
    assert isinstance(error, Error)
    return error
