"""Approvals: a job waits, and resumes or ends by the decision."""

from __future__ import annotations

import json

from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus, OnDeny, digest
from interlock.domain.job import Receipt
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.domain.timestamps import when
from interlock.errors import (
    AlreadyDecided,
    AlreadyFinished,
    CancelRequested,
    CheckpointConflict,
    LeaseLost,
    NotFound,
    NotRunning,
)  # fmt: skip
from tests.contract.approvals import (  # fmt: skip
    ADA,
    APPROVE,
    BOB,
    DENY,
    approval_of,
    command,
    decide_rejected,
    decided,
    link_rejected,
    request_approval,
    waiting,
)
from tests.contract.builders import (
    NEVER,
    TenantQueue,
    cancel,
    cancel_ack,
    complete,
    facts,
    fail,
    heartbeat,
    release,
    revoke,
    save,
)
from tests.support.invariants import check_history
from tests.support.stores import SECOND

DAY = 86_400


async def test_a_job_that_requests_approval_ends_its_lease_and_waits(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    order = request_approval(job, prompt="Publish?", details='{"pages": 3}', risk="high")
    receipt = await queue.do(order)
    now = await queue.job(job.id)
    assert receipt == Receipt(job.id, job.fence, Status.WAITING_FOR_APPROVAL, 1, job.version + 1, None, None)
    assert (now.status, now.approval_id, now.worker, now.lease_expires_at) == (
        receipt.status,
        order.approval_id,
        None,
        None,
    )
    assert (now.attempt, now.fence, now.location(queue.clock.now)) == (1, job.fence, Location.BLOCKED)
    assert await queue.claim(worker="w2") == []
    approval = await approval_of(queue, order.approval_id)
    assert (approval.status, approval.job_id, approval.prompt, approval.details) == (
        ApprovalStatus.OPEN,
        job.id,
        "Publish?",
        '{"pages": 3}',
    )
    assert (approval.risk, approval.required, approval.on_deny, approval.votes) == ("high", 1, OnDeny.FAIL, ())
    assert (approval.opened_at, approval.expires_at) == (queue.clock.now, queue.clock.now + DAY * SECOND)
    row = (await queue.history(job.id))[-1]
    assert (row.verb, row.actor, facts(row)) == (
        Verb.REQUEST_APPROVAL,
        "worker:w1",
        {"approval_id": order.approval_id},
    )
    await queue.verify()


async def test_the_digest_covers_the_exact_text_of_the_request(queue: TenantQueue) -> None:
    payload = '{"b" : 1,  "a": "\\u0000é"}'
    job, approval = await waiting(queue, job=await queue.running(payload=payload), details="[1.0]", schema="true")
    assert approval.digest == digest(payload, "Go on?", "[1.0]", "true")
    assert job.payload == payload


async def test_requesting_an_approval_again_returns_the_same_one(queue: TenantQueue) -> None:
    job = await queue.running()
    first = request_approval(job)
    receipt = await queue.do(first)
    queue.clock.advance(1)
    assert await queue.do(request_approval(job, prompt="Something else?")) == receipt
    await decided(queue, command(first.approval_id))
    assert await queue.do(request_approval(job)) == receipt
    approvals = await queue.store.approvals.find(queue.tenant, ApprovalFilter(job_id=job.id))
    assert [approval.id for approval in approvals] == [first.approval_id]


async def test_a_stale_worker_cannot_request_an_approval(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(revoke(job.id))
    before = await queue.trace(job.id)
    assert isinstance(await queue.refused(request_approval(job)), LeaseLost)
    assert isinstance(await queue.refused(request_approval(job, id=NEVER)), NotFound)
    assert isinstance(await queue.refused(request_approval(job, worker="w2")), LeaseLost)
    assert await queue.trace(job.id) == before
    assert await queue.store.approvals.find(queue.tenant, ApprovalFilter()) == []


async def test_a_lease_ended_by_an_approval_can_do_nothing_else(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(request_approval(job))
    for order in (complete(job), fail(job), release(job)):
        assert isinstance(await queue.refused(order), AlreadyFinished)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job)), NotRunning)
    assert isinstance(await queue.checkpoint_rejected(save(job, 1)), NotRunning)


async def test_a_pending_cancel_rejects_an_approval_request(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id, reason="stop"))
    order = request_approval(job, checkpoint=save(job, 1))
    for _ in range(2):
        assert isinstance(await queue.refused(order), CancelRequested)
    assert await queue.store.approvals.get(queue.tenant, [order.approval_id]) == [None]
    found = await queue.job(job.id)
    assert (found.status, found.approval_id, found.checkpoint) == (Status.RUNNING, None, None)
    assert (await queue.do(cancel_ack(job))).status is Status.CANCELLED
    check_history(await queue.job(job.id), await queue.history(job.id))


async def test_a_checkpoint_is_saved_with_the_approval_or_neither_is(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 5))
    before = await queue.trace(job.id)
    assert isinstance(await queue.refused(request_approval(job, checkpoint=save(job, 4, '"old"'))), CheckpointConflict)
    assert await queue.trace(job.id) == before
    now, _ = await waiting(queue, job=job, checkpoint=save(job, 6, '"new"'))
    assert (now.checkpoint_seq, now.checkpoint) == (6, '"new"')


async def test_an_approved_job_is_queued_and_its_next_run_has_the_decision(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, job=await queue.running(timeout_seconds=30.0), checkpoint=None)
    queue.clock.advance(3600)
    answer = await decided(queue, command(approval, comment="fine", data='{"amount":  5}', digest=approval.digest))
    assert (answer.status, answer.decision, answer.comment) == (ApprovalStatus.APPROVED, APPROVE, "fine")
    assert (answer.data, answer.closed_by, answer.closed_at) == ('{"amount":  5}', ADA, queue.clock.now)
    assert [(v.voter, v.decision, v.comment, v.at) for v in answer.votes] == [(ADA, APPROVE, "fine", queue.clock.now)]
    assert await approval_of(queue, approval.id) == answer
    queued = await queue.job(job.id)
    assert (queued.status, queued.run_at, queued.attempt, queued.approval_id) == (
        Status.QUEUED,
        queue.clock.now,
        1,
        None,
    )
    row = (await queue.history(job.id))[-1]
    assert (row.verb, row.actor, row.reason) == (Verb.DECIDE, ADA, "fine")
    assert facts(row) == {"approval_id": approval.id, "decision": "approve", "run_at": when(queue.clock.now)}
    again = await queue.again(job)
    assert (again.attempt, again.fence) == (1, job.fence + 1)
    assert (again.run_started_at, again.lease_expires_at) == (queue.clock.now, queue.clock.now + 30 * SECOND)
    assert await queue.store.approvals.decisions(queue.tenant, [job.id, NEVER]) == {job.id: [answer]}
    check_history(again, await queue.history(job.id))
    await queue.verify()


async def test_a_resumed_run_has_its_checkpoint_and_uses_no_attempt(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=1)
    _, approval = await waiting(queue, job=job, checkpoint=save(job, 1, '"mail is sent"'))
    await decided(queue, command(approval))
    again = await queue.again(job)
    assert (again.attempt, again.max_attempts, again.checkpoint) == (1, 1, '"mail is sent"')
    assert (await queue.do(complete(again))).status is Status.SUCCEEDED


async def test_the_decision_survives_a_crash_of_the_resumed_run(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    answer = await decided(queue, command(approval))
    again = await queue.again(job)
    await queue.do(fail(again, retry_after_seconds=1.0))
    queue.clock.advance(1)
    await queue.again(job, worker="w3")
    assert await queue.store.approvals.decisions(queue.tenant, [job.id]) == {job.id: [answer]}


async def test_several_approvals_follow_each_other_and_all_decisions_are_returned(queue: TenantQueue) -> None:
    job, first = await waiting(queue)
    await decided(queue, command(first))
    again = await queue.again(job)
    queue.clock.advance(1)
    _, second = await waiting(queue, job=again)
    assert [one.id for one in (await queue.store.approvals.decisions(queue.tenant, [job.id]))[job.id]] == [first.id]
    assert isinstance(await decide_rejected(queue, command(first, DENY)), AlreadyDecided)
    assert (await approval_of(queue, second.id)).status is ApprovalStatus.OPEN
    await decided(queue, command(second, actor=BOB))
    assert [one.id for one in (await queue.store.approvals.decisions(queue.tenant, [job.id]))[job.id]] == [
        first.id,
        second.id,
    ]
    approvals = await queue.store.approvals.find(queue.tenant, ApprovalFilter(job_id=job.id))
    assert [approval.id for approval in approvals] == [second.id, first.id]


async def test_an_approval_is_identified_by_its_name_or_numbered_without_one(queue: TenantQueue) -> None:
    job = await queue.running()
    for name, occurrence in ((None, None), ("legal", None), (None, None), ("legal", None), ("legal", 7)):
        _, approval = await waiting(queue, job=job, name=name, occurrence=occurrence)
        await decided(queue, command(approval))
        job = await queue.again(job)
        queue.clock.advance(1)
    reported = (await queue.store.approvals.decisions(queue.tenant, [job.id]))[job.id]
    assert [(one.name, one.occurrence) for one in reported] == [
        (None, 1), ("legal", 1), (None, 2), ("legal", 2), ("legal", 7),
    ]  # fmt: skip


async def test_a_denied_job_fails(queue: TenantQueue) -> None:
    job, approval = await waiting(queue)
    answer = await decided(queue, command(approval, DENY, comment="no"))
    now = await queue.job(job.id)
    assert (answer.status, now.status, now.finished_at) == (ApprovalStatus.DENIED, Status.FAILED, queue.clock.now)
    assert json.loads(now.error or "")["kind"] == "approval_denied"
    row = (await queue.history(job.id))[-1]
    assert (row.verb, row.actor, row.reason) == (Verb.DECIDE, ADA, "no")
    check_history(now, await queue.history(job.id))


async def test_a_job_that_resumes_on_denial_has_the_decision(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, on_deny=OnDeny.RESUME)
    await decided(queue, command(approval, DENY, comment="no"))
    again = await queue.again(job)
    (reported,) = (await queue.store.approvals.decisions(queue.tenant, [job.id]))[job.id]
    assert (again.attempt, reported.decision, reported.comment) == (1, DENY, "no")


async def test_urgent_lists_contain_the_pending_approvals_that_expire_first_and_resume_from_a_cursor(
    queue: TenantQueue,
) -> None:
    approvals: list[Approval] = []
    for i, seconds in enumerate((500, 100, 300, 100, 400, 200)):
        job = await queue.running(type=f"t{i}")
        approvals.append((await waiting(queue, job=job, expires_in_seconds=seconds))[1])
    await decided(queue, command(approvals.pop(), APPROVE))
    seen: list[Approval] = []
    filter = ApprovalFilter(status=ApprovalStatus.OPEN, limit=2, urgent=True)
    while page := await queue.store.approvals.find(queue.tenant, filter):
        assert len(page) <= 2
        seen += page
        filter = filter._replace(before=filter.cursor_of(page[-1]))
    assert seen == sorted(approvals, key=lambda approval: (approval.expires_at, approval.id))


async def test_lists_are_newest_first_and_resume_from_a_cursor(queue: TenantQueue) -> None:
    approvals: list[Approval] = []
    for i in range(7):
        job = await queue.running(type=f"t{i}")
        approvals.append((await waiting(queue, job=job))[1])
        queue.clock.advance(i % 2)
    for approval in approvals[:3]:
        await decided(queue, command(approval, DENY if approval is approvals[0] else APPROVE))
    newest = [g.id for g in sorted(approvals, key=lambda g: (g.opened_at, g.id), reverse=True)]
    for status, expected in (
        (None, set(newest)),
        (ApprovalStatus.OPEN, {g.id for g in approvals[3:]}),
        (ApprovalStatus.APPROVED, {approvals[1].id, approvals[2].id}),
        (ApprovalStatus.DENIED, {approvals[0].id}),
        (ApprovalStatus.VOID, set()),
    ):
        seen: list[Approval] = []
        filter = ApprovalFilter(status=status, limit=2)
        while page := await queue.store.approvals.find(queue.tenant, filter):
            assert len(page) <= 2
            seen += page
            filter = filter._replace(before=(page[-1].opened_at, page[-1].id))
        assert [approval.id for approval in seen] == [id for id in newest if id in expected]


async def test_another_tenant_can_neither_see_nor_decide_an_approval(queue: TenantQueue, rival: TenantQueue) -> None:
    job, approval = await waiting(queue)
    before = await queue.trace(job.id)
    assert await rival.store.approvals.get(rival.tenant, [approval.id]) == [None]
    assert await rival.store.approvals.find(rival.tenant, ApprovalFilter()) == []
    assert await rival.store.approvals.find(rival.tenant, ApprovalFilter(job_id=job.id)) == []
    assert isinstance(await decide_rejected(rival, command(approval)), NotFound)
    assert isinstance(await link_rejected(rival, approval), NotFound)
    await decided(queue, command(approval))
    assert await rival.store.approvals.decisions(rival.tenant, [job.id]) == {}
    assert (await queue.history(job.id))[:-1] == before[1]
