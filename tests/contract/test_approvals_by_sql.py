"""What the database itself refuses to do to gates and votes, whoever asks."""

from __future__ import annotations

import pytest

from tests.contract.approvals import approval_of, command, decided, waiting
from tests.contract.builders import NEVER, Desk
from tests.contract.connections import Door, refusal

GATE = "UPDATE approval SET {} WHERE tenant = $1 AND id = $2"


@pytest.mark.parametrize(
    "column", ["prompt", "details", "schema", "risk", "digest", "opened_by", "on_deny"], ids=lambda c: str(c)
)
async def test_the_database_keeps_what_was_asked(remote: Desk, adapter: Door, column: str) -> None:
    _, approval = await waiting(remote)
    message = await refusal(adapter, GATE.format(f"{column} = 'fail'"), remote.tenant, approval.id)
    assert "what people are asked never changes" in message


async def test_the_database_refuses_a_second_decision(remote: Desk, adapter: Door) -> None:
    _, approval = await waiting(remote)
    await decided(remote, command(approval))
    for change in ("status = 'denied'", "status = 'open'", "comment = 'x'", "data = '1'", "link_created_by = 'x'"):
        assert "decided once" in await refusal(adapter, GATE.format(change), remote.tenant, approval.id)
    vote = "UPDATE approval_vote SET decision = 'deny' WHERE tenant = $1 AND approval_id = $2"
    assert "a vote never changes" in await refusal(adapter, vote, remote.tenant, approval.id)


async def test_the_database_keeps_gates_and_votes_as_long_as_their_job(remote: Desk, adapter: Door) -> None:
    _, approval = await waiting(remote)
    await decided(remote, command(approval))
    for table, key in (("approval", "id"), ("approval_vote", "approval_id")):
        message = await refusal(
            adapter, f"DELETE FROM {table} WHERE tenant = $1 AND {key} = $2", remote.tenant, approval.id
        )
        assert "with" in message
        assert "job" in message


async def test_the_database_refuses_a_second_open_gate_of_a_job(remote: Desk, adapter: Door) -> None:
    _, approval = await waiting(remote)
    columns = "job_id, status, prompt, digest, required, on_deny, opened_by, opened_at, expires_at"
    await refusal(
        adapter,
        f"INSERT INTO approval (tenant, id, fence, {columns}) SELECT tenant, $3, 99, {columns} FROM approval "
        "WHERE tenant = $1 AND id = $2",
        remote.tenant, approval.id, NEVER,
    )  # fmt: skip
    assert await remote.store.approvals(remote.tenant, [NEVER]) == [None]


@pytest.mark.parametrize(
    "change",
    [
        "status = 'maybe'",
        "status = 'void'",  # without a time
        "status = 'approved', closed_at = opened_at",  # by nobody
        "closed_at = opened_at",
        "data = '1'",
        "token_sha256 = digest_of_nothing",
    ],
)
async def test_the_database_refuses_a_gate_that_makes_no_sense(remote: Desk, adapter: Door, change: str) -> None:
    _, approval = await waiting(remote)
    nothing = "''::bytea" if adapter.engine == "postgres" else "x''"
    await refusal(adapter, GATE.format(change.replace("digest_of_nothing", nothing)), remote.tenant, approval.id)
    assert await approval_of(remote, approval.id) == approval
