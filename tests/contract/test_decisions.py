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
    decide_refused,
    decided,
    hashed,
    mint_refused,
    minted,
    sweep_gates,
    waiting,
)
from tests.contract.builders import NEVER, Desk, cancel, pass_deadline
from tests.support.eventually import eventually
from tests.support.truth import check_history


async def test_a_decision_about_something_else_is_refused(remote: Desk) -> None:
    job, approval = await waiting(remote)
    before = await remote.trace(job.id)
    assert isinstance(await decide_refused(remote, command(approval, digest="0" * 64)), DigestMismatch)
    assert isinstance(await decide_refused(remote, command(approval, digest="")), DigestMismatch)
    assert (await remote.trace(job.id), await approval_of(remote, approval.id)) == (before, approval)
    assert (await decided(remote, command(approval, digest=approval.digest.upper()))).status is ApprovalStatus.APPROVED


async def test_a_decision_is_made_once_and_repeated_for_ever(remote: Desk) -> None:
    job, approval = await waiting(remote)
    answer = await decided(remote, command(approval, data="1"))
    after = await remote.trace(job.id)
    remote.clock.advance(10)
    assert await decided(remote, command(approval, data="1")) == answer
    for other in (
        command(approval, DENY),
        command(approval, data="2"),
        command(approval),
        command(approval, actor=BOB, data="1"),
        command(approval, DENY, actor=BOB),
    ):
        assert isinstance(await decide_refused(remote, other), AlreadyDecided)
    assert (await remote.trace(job.id), await approval_of(remote, approval.id)) == (after, answer)
    await remote.again(job)
    assert await decided(remote, command(approval, data="1")) == answer


async def test_ballots_of_one_batch_follow_each_other(remote: Desk) -> None:
    _, approval = await waiting(remote)
    _, other = await waiting(remote, job=await remote.running(type="other"))
    answers = await remote.store.decide(
        remote.tenant,
        [command(approval), command(approval), command(approval, DENY), command(other, DENY), command(NEVER)],
    )
    kinds = [type(a.error) if isinstance(a, Rejected) else a.status for a in answers]
    assert kinds == [ApprovalStatus.APPROVED, ApprovalStatus.APPROVED, AlreadyDecided, ApprovalStatus.DENIED, NotFound]


async def test_whoever_opened_a_gate_cannot_decide_it(remote: Desk) -> None:
    job, approval = await waiting(remote, opened_by="token:agent")
    before = await remote.trace(job.id)
    assert isinstance(await decide_refused(remote, command(approval, actor="token:agent")), Forbidden)
    assert await remote.trace(job.id) == before


async def test_a_gate_with_several_votes_waits_for_all_of_them(remote: Desk) -> None:
    job, approval = await waiting(remote, required=2)
    first = await decided(remote, command(approval, comment="I do"))
    assert (first.status, len(first.votes)) == (ApprovalStatus.OPEN, 1)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert await decided(remote, command(approval, comment="twice")) == first
    assert isinstance(await decide_refused(remote, command(approval, DENY)), AlreadyDecided)
    assert await remote.trace(job.id) == before
    second = await decided(remote, command(approval, actor=BOB))
    assert (second.status, second.closed_by) == (ApprovalStatus.APPROVED, BOB)
    assert [vote.voter for vote in second.votes] == [ADA, BOB]
    assert await decided(remote, command(approval)) == second
    assert (await remote.job(job.id)).status is Status.QUEUED


async def test_one_denial_decides_however_many_votes_are_required(remote: Desk) -> None:
    job, approval = await waiting(remote, required=3)
    await decided(remote, command(approval))
    assert (await decided(remote, command(approval, DENY, actor=BOB))).status is ApprovalStatus.DENIED
    assert (await remote.job(job.id)).status is Status.FAILED
    assert isinstance(await decide_refused(remote, command(approval, actor="user:eve")), AlreadyDecided)


async def test_with_several_votes_there_is_no_data_and_no_link(remote: Desk) -> None:
    _, approval = await waiting(remote, required=2)
    assert isinstance(await decide_refused(remote, command(approval, data="1")), Invalid)
    assert isinstance(await mint_refused(remote, approval), Invalid)


async def test_data_goes_with_an_approval_only(remote: Desk) -> None:
    _, approval = await waiting(remote)
    assert isinstance(await decide_refused(remote, command(approval, DENY, data="1")), Invalid)


async def test_a_gate_that_nobody_decides_expires_and_its_job_fails(remote: Desk, rival: Desk) -> None:
    job, approval = await waiting(remote, expires_in_seconds=60.0)
    _, other = await waiting(rival, expires_in_seconds=61.0)
    remote.clock.advance(59.999)
    await sweep_gates(remote)
    assert (await approval_of(remote, approval.id)) == approval
    remote.clock.advance(0.001)
    due = [due for due in await remote.store.due_approvals(10_000) if due.tenant in (remote.tenant, rival.tenant)]
    assert due == [(remote.tenant, job.id)]
    await sweep_gates(remote)
    now, expired = await remote.job(job.id), await approval_of(remote, approval.id)
    assert (now.status, expired.status, expired.closed_at) == (Status.FAILED, ApprovalStatus.EXPIRED, remote.clock.now)
    assert json.loads(now.error or "")["kind"] == "approval_expired"
    row = (await remote.history(job.id))[-1]
    assert (row.verb, row.actor, json.loads(row.metadata or "")["approval_id"]) == (
        Verb.EXPIRE,
        "system:sweep",
        approval.id,
    )
    assert isinstance(await decide_refused(remote, command(approval)), ApprovalExpired)
    assert isinstance(await mint_refused(remote, approval), ApprovalExpired)
    assert [due.tenant for due in await remote.store.due_approvals(10_000) if due.tenant == remote.tenant] == []
    assert (await approval_of(rival, other.id)) == other
    await remote.verify()


async def test_a_decision_after_the_expiry_is_too_late_even_before_the_sweep(remote: Desk) -> None:
    job, approval = await waiting(remote, expires_in_seconds=60.0)
    remote.clock.advance(60)
    assert isinstance(await mint_refused(remote, approval), ApprovalExpired)
    assert isinstance(await decide_refused(remote, command(approval)), ApprovalExpired)
    assert (await remote.job(job.id)).status is Status.FAILED
    assert (await approval_of(remote, approval.id)).status is ApprovalStatus.EXPIRED
    assert (await approval_of(remote, approval.id)).votes == ()


async def test_cancelling_a_waiting_job_voids_its_gate(remote: Desk) -> None:
    job, approval = await waiting(remote)
    await remote.do(cancel(job.id, reason="no need"))
    now, void = await remote.job(job.id), await approval_of(remote, approval.id)
    assert (now.status, void.status, void.closed_at, void.closed_by) == (
        Status.CANCELLED,
        ApprovalStatus.VOID,
        remote.clock.now,
        None,
    )
    assert isinstance(await decide_refused(remote, command(approval)), ApprovalVoid)
    assert isinstance(await mint_refused(remote, approval), ApprovalVoid)
    assert await remote.store.decisions(remote.tenant, [job.id]) == {}


async def test_a_waiting_job_whose_deadline_passes_fails_and_its_gate_is_void(remote: Desk) -> None:
    running = await remote.running(deadline=remote.after(100))
    job, approval = await waiting(remote, job=running)
    remote.clock.advance(99)
    assert not [due for due in await remote.store.due_deadlines(10_000) if due.tenant == remote.tenant]
    remote.clock.advance(1)
    assert [d.job_id for d in await remote.store.due_deadlines(10_000) if d.tenant == remote.tenant] == [job.id]
    await remote.sweep()
    assert (await remote.job(job.id)).status is Status.FAILED
    assert (await approval_of(remote, approval.id)).status is ApprovalStatus.VOID
    assert not [due for due in await remote.store.due_deadlines(10_000) if due.tenant == remote.tenant]


async def test_a_decision_after_the_deadline_is_too_late_even_before_the_sweep(remote: Desk) -> None:
    running = await remote.running(deadline=remote.after(100))
    job, approval = await waiting(remote, job=running)
    remote.clock.advance(100)
    assert isinstance(await decide_refused(remote, command(approval)), ApprovalVoid)
    now = await remote.job(job.id)
    assert (now.status, json.loads(now.error or "")["kind"]) == (Status.FAILED, "deadline")
    await remote.do(pass_deadline(job.id))
    assert await remote.job(job.id) == now


async def test_a_link_token_is_found_by_its_hash_alone_and_decides(remote: Desk) -> None:
    job, approval = await waiting(remote)
    with_link = await minted(remote, approval, f"secret-{job.id}")
    assert (with_link.link_created_by, with_link.link_created_at) == (ADA, remote.clock.now)
    hash = hashed(f"secret-{job.id}")
    assert await remote.store.approval_of_token(hash) == (remote.tenant, approval.id)
    assert await remote.store.approval_of_token(hashed("guess")) is None
    answer = await decided(remote, command(approval, actor=f"bearer:{ADA}", token_sha256=hash))
    assert (answer.status, answer.closed_by) == (ApprovalStatus.APPROVED, f"bearer:{ADA}")
    assert await decided(remote, command(approval, actor=f"bearer:{ADA}", token_sha256=hash)) == answer
    assert isinstance(await mint_refused(remote, approval), AlreadyDecided)
    assert (await remote.job(job.id)).status is Status.QUEUED


async def test_a_new_link_token_voids_the_one_before(remote: Desk) -> None:
    job, approval = await waiting(remote)
    await minted(remote, approval, f"first-{job.id}")
    await minted(remote, approval, f"second-{job.id}", actor=BOB)
    old, new = hashed(f"first-{job.id}"), hashed(f"second-{job.id}")
    assert await remote.store.approval_of_token(old) is None
    assert isinstance(await decide_refused(remote, command(approval, token_sha256=old)), NotFound)
    assert (await approval_of(remote, approval.id)).status is ApprovalStatus.OPEN
    await decided(remote, command(approval, actor=f"bearer:{BOB}", token_sha256=new))


async def test_the_token_of_one_gate_does_nothing_to_the_next(remote: Desk) -> None:
    job, first = await waiting(remote)
    await minted(remote, first, f"k-{job.id}")
    token = hashed(f"k-{job.id}")
    await decided(remote, command(first, actor=f"bearer:{ADA}", token_sha256=token))
    again = await remote.again(job)
    _, second = await waiting(remote, job=again)
    assert await remote.store.approval_of_token(token) == (remote.tenant, first.id)
    assert isinstance(await decide_refused(remote, command(second, token_sha256=token)), NotFound)
    assert await approval_of(remote, second.id) == second


async def test_of_many_deciders_at_once_exactly_one_decides(remote: Desk) -> None:
    job, approval = await waiting(remote)
    votes = [command(approval, DENY if i % 2 else APPROVE, actor=f"user:{i}") for i in range(64)]
    answers = await asyncio.gather(*(remote.store.decide(remote.tenant, [vote]) for vote in votes))
    kinds = Counter(type(a.error) if isinstance(a, Rejected) else a.status for (a,) in answers)
    final = await approval_of(remote, approval.id)
    assert kinds == {final.status: 1, AlreadyDecided: 63}
    assert len(final.votes) == 1
    rows = await remote.history(job.id)
    assert [row.verb for row in rows] == [Verb.ENQUEUE, Verb.CLAIM, Verb.REQUEST_APPROVAL, Verb.DECIDE]
    check_history(await remote.job(job.id), rows)


async def test_a_decision_wakes_whoever_waits_for_work(remote: Desk) -> None:
    _, approval = await waiting(remote)
    changed = remote.store.watch(remote.tenant)
    await decided(remote, command(approval))

    async def woken() -> bool:
        return changed.is_set()

    await eventually(woken)
