"""What the database itself refuses to do to gates and votes, whoever asks."""

from __future__ import annotations

import pytest

from tests.contract.approvals import ballot, decided, gate_of, waiting
from tests.contract.builders import NEVER, Desk
from tests.contract.connections import Door, refusal

GATE = "UPDATE approval SET {} WHERE tenant = $1 AND id = $2"


@pytest.mark.parametrize(
    "column", ["prompt", "details", "schema", "risk", "digest", "opened_by", "on_deny"], ids=lambda c: str(c)
)
async def test_the_database_keeps_what_was_asked(desk: Desk, door: Door, column: str) -> None:
    _, gate = await waiting(desk)
    message = await refusal(door, GATE.format(f"{column} = 'fail'"), desk.tenant, gate.id)
    assert "what people are asked never changes" in message


async def test_the_database_refuses_a_second_decision(desk: Desk, door: Door) -> None:
    _, gate = await waiting(desk)
    await decided(desk, ballot(gate))
    for change in ("status = 'denied'", "status = 'open'", "comment = 'x'", "data = '1'", "token_minted_by = 'x'"):
        assert "decided once" in await refusal(door, GATE.format(change), desk.tenant, gate.id)
    vote = "UPDATE approval_vote SET decision = 'deny' WHERE tenant = $1 AND approval_id = $2"
    assert "a vote never changes" in await refusal(door, vote, desk.tenant, gate.id)


async def test_the_database_keeps_gates_and_votes_as_long_as_their_job(desk: Desk, door: Door) -> None:
    _, gate = await waiting(desk)
    await decided(desk, ballot(gate))
    for table, key in (("approval", "id"), ("approval_vote", "approval_id")):
        message = await refusal(door, f"DELETE FROM {table} WHERE tenant = $1 AND {key} = $2", desk.tenant, gate.id)
        assert "with" in message
        assert "job" in message


async def test_the_database_refuses_a_second_open_gate_of_a_job(desk: Desk, door: Door) -> None:
    _, gate = await waiting(desk)
    columns = "job_id, status, prompt, digest, required, on_deny, opened_by, opened_at, expires_at"
    await refusal(
        door,
        f"INSERT INTO approval (tenant, id, fence, {columns}) SELECT tenant, $3, 99, {columns} FROM approval "
        "WHERE tenant = $1 AND id = $2",
        desk.tenant, gate.id, NEVER,
    )  # fmt: skip
    assert await desk.store.approvals(desk.tenant, [NEVER]) == [None]


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
async def test_the_database_refuses_a_gate_that_makes_no_sense(desk: Desk, door: Door, change: str) -> None:
    _, gate = await waiting(desk)
    nothing = "''::bytea" if door.engine == "postgres" else "x''"
    await refusal(door, GATE.format(change.replace("digest_of_nothing", nothing)), desk.tenant, gate.id)
    assert await gate_of(desk, gate.id) == gate
