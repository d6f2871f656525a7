"""Changes to approvals and votes that the database itself rejects, from any role."""

from __future__ import annotations

import pytest

from tests.contract.approvals import approval_of, command, decided, waiting
from tests.contract.builders import NEVER, TenantQueue
from tests.contract.connections import SqlConnection, rejection

UPDATE_APPROVAL = "UPDATE approval SET {} WHERE tenant = $1 AND id = $2"


@pytest.mark.parametrize(
    "column", ["prompt", "details", "schema", "risk", "digest", "opened_by", "on_deny", "kind"], ids=lambda c: str(c)
)
async def test_the_database_keeps_the_request_unchanged(queue: TenantQueue, sql: SqlConnection, column: str) -> None:
    _, approval = await waiting(queue)
    message = await rejection(sql, UPDATE_APPROVAL.format(f"{column} = 'fail'"), queue.tenant, approval.id)
    assert "what people are asked never changes" in message


async def test_the_database_rejects_a_second_decision(queue: TenantQueue, sql: SqlConnection) -> None:
    _, approval = await waiting(queue)
    await decided(queue, command(approval))
    for change in ("status = 'denied'", "status = 'open'", "comment = 'x'", "data = '1'", "link_created_by = 'x'"):
        assert "decided once" in await rejection(sql, UPDATE_APPROVAL.format(change), queue.tenant, approval.id)
    vote = "UPDATE approval_vote SET decision = 'deny' WHERE tenant = $1 AND approval_id = $2"
    assert "a vote never changes" in await rejection(sql, vote, queue.tenant, approval.id)


async def test_the_database_keeps_approvals_and_votes_as_long_as_their_job(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    _, approval = await waiting(queue)
    await decided(queue, command(approval))
    for table, key in (("approval", "id"), ("approval_vote", "approval_id")):
        message = await rejection(
            sql, f"DELETE FROM {table} WHERE tenant = $1 AND {key} = $2", queue.tenant, approval.id
        )
        assert "with" in message
        assert "job" in message


async def test_the_database_rejects_a_second_pending_approval_of_a_job(queue: TenantQueue, sql: SqlConnection) -> None:
    _, approval = await waiting(queue)
    columns = "job_id, status, prompt, digest, required, on_deny, kind, opened_by, opened_at, expires_at, occurrence"
    await rejection(
        sql,
        f"INSERT INTO approval (tenant, id, fence, {columns}) SELECT tenant, $3, 99, {columns} FROM approval "
        "WHERE tenant = $1 AND id = $2",
        queue.tenant, approval.id, NEVER,
    )  # fmt: skip
    assert await queue.store.approvals.get(queue.tenant, [NEVER]) == [None]


@pytest.mark.parametrize(
    "change",
    [
        "status = 'maybe'",
        "status = 'void'",  # without a time
        "status = 'approved', closed_at = opened_at",  # without an approver
        "closed_at = opened_at",
        "data = '1'",
        "token_sha256 = digest_of_nothing",
    ],
)
async def test_the_database_rejects_an_inconsistent_approval(
    queue: TenantQueue, sql: SqlConnection, change: str
) -> None:
    _, approval = await waiting(queue)
    nothing = "''::bytea" if sql.engine == "postgres" else "x''"
    await rejection(
        sql, UPDATE_APPROVAL.format(change.replace("digest_of_nothing", nothing)), queue.tenant, approval.id
    )
    assert await approval_of(queue, approval.id) == approval
