"""Digests of transitions on SQLite, computed before a write and from stored rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from interlock.domain import digests
from interlock.domain.digests import StepFields
from interlock.domain.job import OPTIONS, Kind, kind_of
from interlock.domain.transition import EditedFields
from interlock.storage.sql_files import load

if TYPE_CHECKING:
    from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "digests.sql")
FAILURES: Final = frozenset({"retry", "failed", "dead_letter"})  # statuses after a run that ended with an error
_LISTS: Final = frozenset(i for i, name in enumerate(OPTIONS) if kind_of(name) is Kind.NAMES)
_RUNNING, _WAITING = "running", "waiting_for_approval"

Digests = dict[str, str | None]


def of_text(text: str | None) -> str | None:
    """Return the digest of a text, or None for NULL. Registered as an SQL function."""
    return None if text is None else digests.of_text(text)


def of_transition(
    connection: Connection,
    tenant: str,
    job_id: str,
    fence: int,
    left: str,
    reached: str,
    verb: str,
    approval_id: str | None,
) -> Digests:
    """Return the digests of the progress, approval request or decision that a transition covers."""
    found: Digests = {}
    if left == _RUNNING != reached:
        found |= of_progress(connection, tenant, job_id, fence)
    if reached == _WAITING:
        found["request"] = _request(connection, tenant, job_id, fence)
    if left == _WAITING != reached and approval_id is not None:
        found["decision"] = _decision(connection, tenant, approval_id, "expired" if verb == "expire" else "void")
    return found


def of_progress(connection: Connection, tenant: str, job_id: str, fence: int) -> Digests:
    """Return the digests of the checkpoint and of the steps saved under one lease."""
    found: Digests = {}
    for (checkpoint,) in connection.rows(_SQL["checkpoint"], (tenant, job_id)):
        found["checkpoint"] = checkpoint
    steps = digests.of_steps(map(StepFields._make, connection.rows(_SQL["steps"], (tenant, job_id, fence))))
    return found if steps is None else found | {"steps": steps}


def have_progress(connection: Connection, tenant: str, ids: Sequence[str]) -> bool:
    """Return whether any of these jobs may have saved progress.

    Checks the range of IDs: the IDs of one batch are mostly adjacent.
    """
    ((found,),) = connection.rows(_SQL["any_progress"], (tenant, min(ids), max(ids)))
    return bool(found)


def of_options(connection: Connection, tenant: str, seq: int, edited: EditedFields | None = None) -> str:
    """Return the digest of a job's options, current or after an edit."""
    found = options(connection, tenant, seq)
    if edited is not None:
        found |= {name: value for name, value in edited._asdict().items() if name in found}
    return digests.of_options(tuple(found.values()))


def metadata_of_change(
    connection: Connection,
    tenant: str,
    seq: int,
    left: str | None,
    approval_id: str | None,
    error: str | None,
    optioned: int,
) -> str | None:
    """Return the history metadata of a change by direct SQL; the other fields come from the job row."""
    ((id, status, fence, _, new_error, metadata, verb),) = connection.rows(_SQL["job"], (tenant, seq))
    found: Digests = {}
    if left is None:
        ((payload,),) = connection.rows(_SQL["payload"], (tenant, seq))
        found |= {"payload": digests.of_text(payload)}
    else:
        found |= of_transition(connection, tenant, id, fence, left, status, verb, approval_id)
    if left is None or optioned or verb == "edit":
        found["options"] = of_options(connection, tenant, seq)
    if status != "succeeded" and (new_error != error or (left == _RUNNING and status in FAILURES)):
        found["error"] = of_text(new_error)
    return digests.merge(metadata, found)


def _request(connection: Connection, tenant: str, job_id: str, fence: int) -> str | None:
    rows = connection.rows(_SQL["request"], (tenant, job_id, fence))
    return digests.of_request(*rows[0]) if rows else None


def _decision(connection: Connection, tenant: str, approval_id: str, if_open: str | None) -> str:
    """Return the digest of a decision; an approval that is still open counts as closed with `if_open`."""
    rows = connection.rows(_SQL["decision"], (tenant, approval_id))
    status, closed_by, comment, data = rows[0] if rows else ("", None, None, None)
    votes = connection.rows(_SQL["votes"], (tenant, approval_id))
    closed = if_open if status == "open" and if_open is not None else status
    return digests.of_decision(closed, closed_by, comment, data, ((v[0], v[1], v[2], v[3]) for v in votes))


def options(connection: Connection, tenant: str, seq: int) -> dict[str, Any]:
    """Return the current options of a job by name, in digest order."""
    (row,) = connection.rows(_SQL["options"], (tenant, seq))
    return dict(zip(OPTIONS, _options(row), strict=True))


def of_stored_options(*values: Any) -> str:
    """Return the digest of the option columns of a job. Registered as an SQL function."""
    return digests.of_options(_options(values))


def _options(columns: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(json.loads(value)) if i in _LISTS else value for i, value in enumerate(columns))
