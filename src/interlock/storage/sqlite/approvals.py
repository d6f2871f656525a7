"""Rows of approvals and votes on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.approval import (
    Approval,
    ApprovalFilter,
    ApprovalStatus,
    Decision,
    OnDeny,
    RequestApproval,
    Vote,
    VoteOutcome,
    digest,
)
from interlock.domain.retry import SECOND
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_VOTES: Final = """(SELECT json_group_array(json_array(x.voter, x.decision, x.comment, x.at))
  FROM (SELECT * FROM approval_vote v WHERE v.tenant = a.tenant AND v.approval_id = a.id ORDER BY v.at, v.voter) x)"""
_COLUMNS: Final = ", ".join(_VOTES if field == "votes" else f"a.{field}" for field in Approval._fields)
_SQL: Final = {
    name: statement.replace("{columns}", _COLUMNS)
    for name, statement in load("interlock.storage.sqlite", "approvals.sql").items()
}
_NEWEST: Final = (1 << 62, "")  # newer than any
_NO_END: Final = (-1, "")  # before any


def by_id(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Approval]:
    rows = connection.rows(_SQL["approvals"], {"tenant": tenant, "ids": json.dumps(sorted(set(ids)))})
    return {row[1]: to_approval(row) for row in rows}


def find(connection: Connection, tenant: str, filter: ApprovalFilter) -> list[Approval]:
    """List the approvals that match the filter. Open approvals and those of one job use their own index."""
    at, id = filter.before or (_NO_END if filter.urgent else _NEWEST)
    facts = {"tenant": tenant, "at": at, "id": id, "limit": filter.limit, "status": filter.status}
    if filter.urgent:
        rows = connection.rows(_SQL["find_urgent"], facts)
    elif filter.job_id is not None:
        rows = connection.rows(_SQL["find_of_job"], facts | {"job_id": filter.job_id, "fence": filter.fence})
    elif filter.status is ApprovalStatus.OPEN:
        rows = connection.rows(_SQL["find_open"], facts)
    else:
        rows = connection.rows(_SQL["find"], facts)
    return [to_approval(row) for row in rows]


def of_token(connection: Connection, sha256: bytes) -> tuple[str, str] | None:
    """Return tenant and ID of the approval whose link token has this hash, or None."""
    rows = connection.rows(_SQL["of_token"], {"sha256": sha256})
    return (rows[0][0], rows[0][1]) if rows else None


def decisions(connection: Connection, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
    """Return the decided approvals of each job, oldest first."""
    rows = connection.rows(_SQL["decisions"], {"tenant": tenant, "ids": json.dumps(list(job_ids))})
    found: dict[str, list[Approval]] = {}
    for row in rows:
        found.setdefault(row[2], []).append(to_approval(row))
    return found


def due(connection: Connection, limit: int) -> list[tuple[Any, ...]]:
    return connection.rows(_SQL["due"], {"now": connection.read_clock(), "limit": limit})


def add_approvals(connection: Connection, tenant: str, orders: Sequence[RequestApproval]) -> None:
    """Insert the approvals that jobs are about to wait for."""
    if not orders:
        return
    ids = json.dumps([order.id for order in orders])
    payloads = dict(connection.rows(_SQL["payloads"], {"tenant": tenant, "ids": ids}))
    now = connection.now
    connection.db.executemany(_SQL["open"], [
        (tenant, o.approval_id, o.id, o.fence, o.prompt, o.details, o.risk, o.schema,
         digest(payloads[o.id], o.prompt, o.details, o.schema), o.required, o.on_deny, o.opened_by, now,
         now + round(o.expires_in_seconds * SECOND), o.name, o.occurrence)
        for o in orders
    ])  # fmt: skip


def record(connection: Connection, tenant: str, ruling: VoteOutcome) -> None:
    """Write a vote and, if it is final, the decision, before the transition of the job."""
    approval, vote = ruling.approval, ruling.vote
    if vote is None:
        return
    connection.db.execute(
        _SQL["vote"],
        (tenant, approval.id, vote.voter, approval.job_id, vote.decision, vote.comment, vote.at),
    )
    if approval.decision is not None:
        closed = (approval.status, approval.closed_by, approval.closed_at, approval.comment, approval.data)
        connection.db.execute(_SQL["close"], (*closed, tenant, approval.id))


def create_link(connection: Connection, tenant: str, id: str, sha256: bytes, actor: str) -> None:
    connection.db.execute(_SQL["create_link"], (sha256, actor, connection.now, tenant, id))


def to_approval(row: tuple[Any, ...]) -> Approval:
    approval = Approval._make(row)
    votes = tuple(Vote(voter, Decision(given), comment, at) for voter, given, comment, at in json.loads(row[-1]))
    return approval._replace(status=ApprovalStatus(approval.status), on_deny=OnDeny(approval.on_deny), votes=votes)
