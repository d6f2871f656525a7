"""Builders of approvals, votes and edits, and the operations of an approver."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from interlock.domain.approval import Approval, CastVote, CreateApprovalLink, Decision, RequestApproval
from interlock.domain.edit import EditJob
from interlock.domain.job import Job, Rejected
from interlock.domain.lifecycle import Status
from interlock.errors import Error
from tests.contract.builders import OPERATOR, TenantQueue, expire, new_id

ADA: Final = "user:ada"
BOB: Final = "user:bob"
APPROVE: Final = Decision.APPROVE
DENY: Final = Decision.DENY


def request_approval(job: Job, **fields: Any) -> RequestApproval:
    """What the holder of a job asks."""
    made = {"id": job.id, "fence": job.fence, "worker": job.worker, "approval_id": new_id(), "prompt": "Go on?"}
    return RequestApproval(**{**made, "opened_by": f"worker:{job.worker}", **fields})


def command(approval: Approval | str, decision: Decision = APPROVE, **fields: Any) -> CastVote:
    id = approval if isinstance(approval, str) else approval.id
    return CastVote(**{"id": id, "actor": ADA, "decision": decision, **fields})


def edit(job_id: str, **fields: Any) -> EditJob:
    return EditJob(**{"id": job_id, "actor": OPERATOR, **fields})


async def approval_of(queue: TenantQueue, approval_id: str) -> Approval:
    (approval,) = await queue.store.approvals.get(queue.tenant, [approval_id])
    assert approval is not None
    return approval


async def waiting(queue: TenantQueue, *, job: Job | None = None, **fields: Any) -> tuple[Job, Approval]:
    """A job that waits for approval, and its approval."""
    held = job or await queue.running()
    order = request_approval(held, **fields)
    receipt = await queue.do(order)
    assert receipt.status is Status.WAITING_FOR_APPROVAL
    return await queue.job(held.id), await approval_of(queue, order.approval_id)


async def decided(queue: TenantQueue, vote: CastVote) -> Approval:
    (answer,) = await queue.store.approvals.decide(queue.tenant, [vote])
    assert isinstance(answer, Approval), answer
    return answer


async def decide_rejected(queue: TenantQueue, vote: CastVote) -> Error:
    (answer,) = await queue.store.approvals.decide(queue.tenant, [vote])
    assert isinstance(answer, Rejected), answer
    return answer.error


async def created_link(queue: TenantQueue, approval: Approval, token: str, actor: str = ADA) -> Approval:
    (answer,) = await queue.store.approvals.create_link(
        queue.tenant, [CreateApprovalLink(approval.id, actor, hashed(token))]
    )
    assert isinstance(answer, Approval), answer
    return answer


async def link_rejected(queue: TenantQueue, approval: Approval | str) -> Error:
    id = approval if isinstance(approval, str) else approval.id
    (answer,) = await queue.store.approvals.create_link(queue.tenant, [CreateApprovalLink(id, ADA, hashed("another"))])
    assert isinstance(answer, Rejected), answer
    return answer.error


async def sweep_approvals(queue: TenantQueue) -> None:
    """Expire approvals by the clock, for this tenant."""
    due = [due.job_id for due in await queue.store.approvals.due(10_000) if due.tenant == queue.tenant]
    await queue.store.carry_out(queue.tenant, [expire(id) for id in due])


def hashed(token: str) -> bytes:
    return sha256(token.encode()).digest()
