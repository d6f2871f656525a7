"""Makers of gates, ballots and edits, and what a desk does with them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from interlock.domain.approval import Approval, Ballot, Decision, Mint, OpenGate
from interlock.domain.edit import Edit
from interlock.domain.job import Job, Refused
from interlock.domain.lifecycle import Status
from interlock.errors import Error
from tests.contract.builders import OPERATOR, Desk, expire, new_id

ADA: Final = "user:ada"
BOB: Final = "user:bob"
APPROVE: Final = Decision.APPROVE
DENY: Final = Decision.DENY


def open_gate(job: Job, **fields: Any) -> OpenGate:
    """What the holder of a job asks."""
    made = {"id": job.id, "fence": job.fence, "worker": job.worker, "gate_id": new_id(), "prompt": "Go on?"}
    return OpenGate(**{**made, "opened_by": f"worker:{job.worker}", **fields})


def ballot(gate: Approval | str, decision: Decision = APPROVE, **fields: Any) -> Ballot:
    id = gate if isinstance(gate, str) else gate.id
    return Ballot(**{"id": id, "actor": ADA, "decision": decision, **fields})


def edit(job_id: str, **fields: Any) -> Edit:
    return Edit(**{"id": job_id, "actor": OPERATOR, **fields})


async def gate_of(desk: Desk, gate_id: str) -> Approval:
    (gate,) = await desk.store.approvals(desk.tenant, [gate_id])
    assert gate is not None
    return gate


async def waiting(desk: Desk, *, job: Job | None = None, **fields: Any) -> tuple[Job, Approval]:
    """A job that waits for approval, and its gate."""
    held = job or await desk.running()
    order = open_gate(held, **fields)
    receipt = await desk.do(order)
    assert receipt.status is Status.WAITING_FOR_APPROVAL
    return await desk.job(held.id), await gate_of(desk, order.gate_id)


async def decided(desk: Desk, vote: Ballot) -> Approval:
    (answer,) = await desk.store.decide(desk.tenant, [vote])
    assert isinstance(answer, Approval), answer
    return answer


async def decide_refused(desk: Desk, vote: Ballot) -> Error:
    (answer,) = await desk.store.decide(desk.tenant, [vote])
    assert isinstance(answer, Refused), answer
    return answer.error


async def minted(desk: Desk, gate: Approval, token: str, actor: str = ADA) -> Approval:
    (answer,) = await desk.store.mint(desk.tenant, [Mint(gate.id, actor, hashed(token))])
    assert isinstance(answer, Approval), answer
    return answer


async def mint_refused(desk: Desk, gate: Approval | str) -> Error:
    id = gate if isinstance(gate, str) else gate.id
    (answer,) = await desk.store.mint(desk.tenant, [Mint(id, ADA, hashed("another"))])
    assert isinstance(answer, Refused), answer
    return answer.error


async def sweep_gates(desk: Desk) -> None:
    """What the clock does to gates, for this tenant."""
    due = [due.job_id for due in await desk.store.due_gates(10_000) if due.tenant == desk.tenant]
    await desk.store.carry_out(desk.tenant, [expire(id) for id in due])


def hashed(token: str) -> bytes:
    return sha256(token.encode()).digest()
