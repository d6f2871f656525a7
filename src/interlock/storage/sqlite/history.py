"""Job history on SQLite: the hashes of the rows that a transition adds, and reads.

The triggers of `job` write the rows (schema/06_history.sql), so no operation can change a job without history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from interlock.domain.audit import hash_batch
from interlock.domain.decide import result_of_repeat
from interlock.domain.job import HistoryRow, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import Error
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "transition.sql")


def hash_transitions(
    connection: Connection, seqs: Sequence[int], befores: Iterable[bytes], version: int, left: str | None, to: str,
    verb: str, actor: str, attempt: int, fence: int, metadatas: Sequence[str | None] | None = None,
) -> list[bytes]:  # fmt: skip
    """Compute the hashes of the next history rows, and store them with their metadata for the triggers of `job`.

    All jobs make the same transition, so the fields that they share are encoded once. Each hash covers the hash of the
    job's last row, or the origin of its chain.
    """
    hashes = hash_batch(befores, metadatas, connection.now, version, left, to, verb, actor, attempt, fence)
    connection.hashes.update(zip(seqs, hashes, strict=True))
    if metadatas is not None:
        connection.metadatas.update(zip(seqs, metadatas, strict=True))
    elif connection.metadatas and verb != "claim":  # drop metadata of an earlier operation in this transaction
        for seq in seqs:
            connection.metadatas.pop(seq, None)
    return hashes


def newest(connection: Connection, tenant: str, job_id: str) -> HistoryRow:
    """Return the last transition of a job."""
    (row,) = connection.rows(_SQL["newest_transition"], {"tenant": tenant, "id": job_id})
    return to_row(row)


def result_of_ended(
    connection: Connection, tenant: str, job_id: str, fence: int, worker: str, verb: Verb | None
) -> Receipt | Error:
    """Return the result for a worker whose lease of a known job has ended; `verb` is that of its finish."""
    rows = connection.rows(_SQL["lease_end"], {"tenant": tenant, "id": job_id, "fence": fence})
    return result_of_repeat(to_row(rows[0]) if rows else None, verb, job_id, fence, worker)


def why_lease_lost(connection: Connection, tenant: str, job_id: str, fence: int, worker: str) -> Error:
    """Return the error for a worker that does not hold the lease of a known job."""
    error = result_of_ended(connection, tenant, job_id, fence, worker, None)
    assert isinstance(error, Error)
    return error


def to_row(selected: tuple[Any, ...]) -> HistoryRow:
    """Convert a row whose columns are the fields of a HistoryRow."""
    row = HistoryRow._make(selected)
    left = None if row.from_status is None else Status(row.from_status)
    return row._replace(from_status=left, to_status=Status(row.to_status), verb=Verb(row.verb))
