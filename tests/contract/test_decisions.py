"""Decisions: made once, by whom and with how many votes, in time, and by the bearer of a link."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from interlock.domain.approval import ApprovalStatus
from interlock.domain.job import Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import (
    AlreadyDecided,
    ApprovalExpired,
    ApprovalVoid,
    DigestMismatch,
    Forbidden,
    Invalid,
    NotFound,
)  # fmt: skip
from tests.contract.approvals import (  # fmt: skip
    ADA,
    APPROVE,
    BOB,
    DENY,
    approval_of,
    command,
    created_link,
    decide_rejected,
    decided,
    hashed,
    link_rejected,
    sweep_approvals,
    waiting,
)
from tests.contract.builders import NEVER, TenantQueue, cancel, pass_deadline
from tests.support.eventually import eventually
from tests.support.invariants import check_history


async def test_a_decision_with_another_digest_is_rejected(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    before = await queue.trace(job.id)
    assert isinstance(await decide_rejected(queue, command(approval, digest="0" * 64)), DigestMismatch)
    assert isinstance(await decide_rejected(queue, command(approval, digest="")), DigestMismatch)
    assert (await queue.trace(job.id), await approval_of(queue, approval.id)) == (before, approval)
    assert (await decided(queue, command(approval, digest=approval.digest.upper()))).status is ApprovalStatus.APPROVED


async def test_a_decision_is_made_once_and_can_be_repeated(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    answer = await decided(queue, command(approval, data="1"))
    after = await queue.trace(job.id)
    queue.clock.advance(10)
    assert await decided(queue, command(approval, data="1")) == answer
    for other in (
        command(approval, DENY),
        command(approval, data="2"),
        command(approval),
        command(approval, actor=BOB, data="1"),
        command(approval, DENY, actor=BOB),
    ):
        assert isinstance(await decide_rejected(queue, other), AlreadyDecided)
    assert (await queue.trace(job.id), await approval_of(queue, approval.id)) == (after, answer)
    await queue.again(job)
    assert await decided(queue, command(approval, data="1")) == answer


async def test_votes_of_one_batch_are_applied_in_order(queue: TenantQueue) -> None:
    _, approval = await waiting(queue)
    _, other = await waiting(queue, job=await queue.running(type="other"))
    answers = await queue.store.approvals.decide(
        queue.tenant,
        [command(approval), command(approval), command(approval, DENY), command(other, DENY), command(NEVER)],
    )
    kinds = [type(a.error) if isinstance(a, Rejected) else a.status for a in answers]
    assert kinds == [ApprovalStatus.APPROVED, ApprovalStatus.APPROVED, AlreadyDecided, ApprovalStatus.DENIED, NotFound]


async def test_the_requester_of_an_approval_cannot_decide_it(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, opened_by="token:agent")
    before = await queue.trace(job.id)
    assert isinstance(await decide_rejected(queue, command(approval, actor="token:agent")), Forbidden)
    assert await queue.trace(job.id) == before


async def test_an_approval_with_several_votes_waits_for_all_of_them(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, required=2)
    first = await decided(queue, command(approval, comment="I do"))
    assert (first.status, len(first.votes)) == (ApprovalStatus.OPEN, 1)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert await decided(queue, command(approval, comment="twice")) == first
    assert isinstance(await decide_rejected(queue, command(approval, DENY)), AlreadyDecided)
    assert await queue.trace(job.id) == before
    second = await decided(queue, command(approval, actor=BOB))
    assert (second.status, second.closed_by) == (ApprovalStatus.APPROVED, BOB)
    assert [vote.voter for vote in second.votes] == [ADA, BOB]
    assert await decided(queue, command(approval)) == second
    assert (await queue.job(job.id)).status is Status.QUEUED


async def test_one_denial_decides_for_any_number_of_required_votes(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, required=3)
    await decided(queue, command(approval))
    assert (await decided(queue, command(approval, DENY, actor=BOB))).status is ApprovalStatus.DENIED
    assert (await queue.job(job.id)).status is Status.FAILED
    assert isinstance(await decide_rejected(queue, command(approval, actor="user:eve")), AlreadyDecided)


async def test_with_several_votes_there_is_no_data_and_no_link(queue: TenantQueue) -> None:
    _, approval = await waiting(queue, required=2)
    assert isinstance(await decide_rejected(queue, command(approval, data="1")), Invalid)
    assert isinstance(await link_rejected(queue, approval), Invalid)


async def test_only_an_approve_has_data(queue: TenantQueue) -> None:
    _, approval = await waiting(queue)
    assert isinstance(await decide_rejected(queue, command(approval, DENY, data="1")), Invalid)


async def test_an_undecided_approval_expires_and_its_job_fails(queue: TenantQueue, rival: TenantQueue) -> None:
    job, approval = await waiting(queue, expires_in_seconds=60.0)
    _, other = await waiting(rival, expires_in_seconds=61.0)
    queue.clock.advance(59.999)
    await sweep_approvals(queue)
    assert (await approval_of(queue, approval.id)) == approval
    queue.clock.advance(0.001)
    due = [due for due in await queue.store.approvals.due(10_000) if due.tenant in (queue.tenant, rival.tenant)]
    assert due == [(queue.tenant, job.id)]
    await sweep_approvals(queue)
    now, expired = await queue.job(job.id), await approval_of(queue, approval.id)
    assert (now.status, expired.status, expired.closed_at) == (Status.FAILED, ApprovalStatus.EXPIRED, queue.clock.now)
    assert json.loads(now.error or "")["kind"] == "approval_expired"
    row = (await queue.history(job.id))[-1]
    assert (row.verb, row.actor, json.loads(row.metadata or "")["approval_id"]) == (
        Verb.EXPIRE,
        "system:sweep",
        approval.id,
    )
    assert isinstance(await decide_rejected(queue, command(approval)), ApprovalExpired)
    assert isinstance(await link_rejected(queue, approval), ApprovalExpired)
    assert [due.tenant for due in await queue.store.approvals.due(10_000) if due.tenant == queue.tenant] == []
    assert (await approval_of(rival, other.id)) == other
    await queue.verify()


async def test_a_decision_after_the_expiry_is_too_late_even_before_the_sweep(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, expires_in_seconds=60.0)
    queue.clock.advance(60)
    assert isinstance(await link_rejected(queue, approval), ApprovalExpired)
    assert isinstance(await decide_rejected(queue, command(approval)), ApprovalExpired)
    assert (await queue.job(job.id)).status is Status.FAILED
    assert (await approval_of(queue, approval.id)).status is ApprovalStatus.EXPIRED
    assert (await approval_of(queue, approval.id)).votes == ()


async def test_cancelling_a_waiting_job_voids_its_approval(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    await queue.do(cancel(job.id, reason="no need"))
    now, void = await queue.job(job.id), await approval_of(queue, approval.id)
    assert (now.status, void.status, void.closed_at, void.closed_by) == (
        Status.CANCELLED,
        ApprovalStatus.VOID,
        queue.clock.now,
        None,
    )
    assert isinstance(await decide_rejected(queue, command(approval)), ApprovalVoid)
    assert isinstance(await link_rejected(queue, approval), ApprovalVoid)
    assert await queue.store.approvals.decisions(queue.tenant, [job.id]) == {}


async def test_a_waiting_job_whose_deadline_passes_fails_and_its_approval_is_void(queue: TenantQueue) -> None:
    running = await queue.running(deadline=queue.after(100))
    job, approval = await waiting(queue, job=running)
    queue.clock.advance(99)
    assert not [due for due in await queue.store.due_deadlines(10_000) if due.tenant == queue.tenant]
    queue.clock.advance(1)
    assert [d.job_id for d in await queue.store.due_deadlines(10_000) if d.tenant == queue.tenant] == [job.id]
    await queue.sweep()
    assert (await queue.job(job.id)).status is Status.FAILED
    assert (await approval_of(queue, approval.id)).status is ApprovalStatus.VOID
    assert not [due for due in await queue.store.due_deadlines(10_000) if due.tenant == queue.tenant]


async def test_a_decision_after_the_deadline_is_too_late_even_before_the_sweep(queue: TenantQueue) -> None:
    running = await queue.running(deadline=queue.after(100))
    job, approval = await waiting(queue, job=running)
    queue.clock.advance(100)
    assert isinstance(await decide_rejected(queue, command(approval)), ApprovalVoid)
    now = await queue.job(job.id)
    assert (now.status, json.loads(now.error or "")["kind"]) == (Status.FAILED, "deadline")
    await queue.do(pass_deadline(job.id))
    assert await queue.job(job.id) == now


async def test_a_link_token_is_found_by_its_hash_alone_and_decides(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    with_link = await created_link(queue, approval, f"secret-{job.id}")
    assert (with_link.link_created_by, with_link.link_created_at) == (ADA, queue.clock.now)
    hash = hashed(f"secret-{job.id}")
    assert await queue.store.approvals.of_token(hash) == (queue.tenant, approval.id)
    assert await queue.store.approvals.of_token(hashed("guess")) is None
    answer = await decided(queue, command(approval, actor=f"bearer:{ADA}", token_sha256=hash))
    assert (answer.status, answer.closed_by) == (ApprovalStatus.APPROVED, f"bearer:{ADA}")
    assert await decided(queue, command(approval, actor=f"bearer:{ADA}", token_sha256=hash)) == answer
    assert isinstance(await link_rejected(queue, approval), AlreadyDecided)
    assert (await queue.job(job.id)).status is Status.QUEUED


async def test_a_new_link_token_voids_the_previous_one(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    await created_link(queue, approval, f"first-{job.id}")
    await created_link(queue, approval, f"second-{job.id}", actor=BOB)
    old, new = hashed(f"first-{job.id}"), hashed(f"second-{job.id}")
    assert await queue.store.approvals.of_token(old) is None
    assert isinstance(await decide_rejected(queue, command(approval, token_sha256=old)), NotFound)
    assert (await approval_of(queue, approval.id)).status is ApprovalStatus.OPEN
    await decided(queue, command(approval, actor=f"bearer:{BOB}", token_sha256=new))


async def test_the_token_of_one_approval_does_nothing_to_the_next(queue: TenantQueue) -> None:
    job, first = await waiting(queue)
    await created_link(queue, first, f"k-{job.id}")
    token = hashed(f"k-{job.id}")
    await decided(queue, command(first, actor=f"bearer:{ADA}", token_sha256=token))
    again = await queue.again(job)
    _, second = await waiting(queue, job=again)
    assert await queue.store.approvals.of_token(token) == (queue.tenant, first.id)
    assert isinstance(await decide_rejected(queue, command(second, token_sha256=token)), NotFound)
    assert await approval_of(queue, second.id) == second


async def test_exactly_one_of_many_concurrent_deciders_decides(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    votes = [command(approval, DENY if i % 2 else APPROVE, actor=f"user:{i}") for i in range(64)]
    answers = await asyncio.gather(*(queue.store.approvals.decide(queue.tenant, [vote]) for vote in votes))
    kinds = Counter(type(a.error) if isinstance(a, Rejected) else a.status for (a,) in answers)
    final = await approval_of(queue, approval.id)
    assert kinds == {final.status: 1, AlreadyDecided: 63}
    assert len(final.votes) == 1
    rows = await queue.history(job.id)
    assert [row.verb for row in rows] == [Verb.ENQUEUE, Verb.CLAIM, Verb.REQUEST_APPROVAL, Verb.DECIDE]
    check_history(await queue.job(job.id), rows)


async def test_a_decision_wakes_waiting_claims(queue: TenantQueue) -> None:
    _, approval = await waiting(queue)
    changed = queue.store.watch(queue.tenant)
    await decided(queue, command(approval))

    async def woken() -> bool:
        return changed.is_set()

    await eventually(woken)
