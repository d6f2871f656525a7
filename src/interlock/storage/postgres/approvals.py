"""Queries for approvals and votes on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
from interlock.storage.postgres.connection import Conn, call


async def by_id(connection: Conn, tenant: str, ids: Sequence[str], *, lock: bool = False) -> dict[str, Approval]:
    rows = await connection.fetch(call("lock_approvals" if lock else "approvals", 2), tenant, list(ids))
    return {row[1]: to_approval(row) for row in rows}


async def find(connection: Conn, tenant: str, filter: ApprovalFilter) -> list[Approval]:
    """List approvals in the order that the filter requests."""
    f, (at, id) = filter, filter.before or (None, None)
    status = None if f.status is None else str(f.status)
    rows = await connection.fetch(
        call("find_approvals", 8), tenant, status, f.job_id, f.fence, at, id, f.limit, f.urgent
    )  # fmt: skip
    return [to_approval(row) for row in rows]


async def of_token(connection: Conn, sha256: bytes) -> tuple[str, str] | None:
    """Return the tenant and approval ID of the link token with this hash."""
    row = await connection.fetchrow(call("approval_of_token", 1), sha256)
    return None if row is None else (row[0], row[1])


async def decisions(connection: Conn, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
    """Return the decided approvals of each job, oldest first."""
    rows = await connection.fetch(call("decisions", 2), tenant, list(job_ids))
    found: dict[str, list[Approval]] = {}
    for row in rows:
        found.setdefault(row[2], []).append(to_approval(row))
    return found


async def add_approvals(connection: Conn, tenant: str, orders: Sequence[RequestApproval]) -> None:
    """Insert the approvals that suspend these jobs."""
    if not orders:
        return
    rows = await connection.fetch(call("payloads", 2), tenant, [order.id for order in orders])
    payloads = {row[0]: row[1] for row in rows}
    for o in orders:
        await connection.execute(
            call("request_approval", 15), tenant, o.approval_id, o.id, o.fence, o.prompt, o.details, o.risk, o.schema,
            digest(payloads[o.id], o.prompt, o.details, o.schema), o.required, str(o.on_deny), o.opened_by,
            o.expires_in_seconds, o.name, o.occurrence,
        )  # fmt: skip


async def record(connection: Conn, tenant: str, ruling: VoteOutcome) -> None:
    """Write a vote and the resulting decision, before the transition of its job."""
    a, vote = ruling.approval, ruling.vote
    if vote is None:
        return
    await connection.execute(
        call("vote", 7), tenant, a.id, a.job_id, vote.voter, str(vote.decision), vote.comment, vote.at
    )  # fmt: skip
    if a.decision is not None:
        await connection.execute(
            call("close_approval", 7), tenant, a.id, str(a.status), a.closed_by, a.closed_at, a.comment, a.data
        )  # fmt: skip


async def create_link(connection: Conn, tenant: str, id: str, sha256: bytes, actor: str) -> None:
    await connection.execute(call("create_link", 4), tenant, id, sha256, actor)


def to_approval(row: Any) -> Approval:
    approval = Approval._make(row)
    votes = tuple(Vote(voter, Decision(given), comment, at) for voter, given, comment, at in json.loads(row[-1]))
    return approval._replace(status=ApprovalStatus(approval.status), on_deny=OnDeny(approval.on_deny), votes=votes)
