"""Gates: a job waits, and goes on or ends by what was decided."""

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
    decide_refused,
    decided,
    mint_refused,
    request_approval,
    waiting,
)
from tests.contract.builders import (
    NEVER,
    Desk,
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
from tests.support.stores import SECOND
from tests.support.truth import check_history

DAY = 86_400


async def test_a_job_that_opens_a_gate_gives_up_its_lease_and_waits(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    order = request_approval(job, prompt="Publish?", details='{"pages": 3}', risk="high")
    receipt = await remote.do(order)
    now = await remote.job(job.id)
    assert receipt == Receipt(job.id, job.fence, Status.WAITING_FOR_APPROVAL, 1, job.version + 1, None, None)
    assert (now.status, now.approval_id, now.worker, now.lease_expires_at) == (
        receipt.status,
        order.approval_id,
        None,
        None,
    )
    assert (now.attempt, now.fence, now.location(remote.clock.now)) == (1, job.fence, Location.BLOCKED)
    assert await remote.claim(worker="w2") == []
    approval = await approval_of(remote, order.approval_id)
    assert (approval.status, approval.job_id, approval.prompt, approval.details) == (
        ApprovalStatus.OPEN,
        job.id,
        "Publish?",
        '{"pages": 3}',
    )
    assert (approval.risk, approval.required, approval.on_deny, approval.votes) == ("high", 1, OnDeny.FAIL, ())
    assert (approval.opened_at, approval.expires_at) == (remote.clock.now, remote.clock.now + DAY * SECOND)
    row = (await remote.history(job.id))[-1]
    assert (row.verb, row.actor, facts(row)) == (
        Verb.REQUEST_APPROVAL,
        "worker:w1",
        {"approval_id": order.approval_id},
    )
    await remote.verify()


async def test_the_digest_is_over_the_exact_text_of_what_is_asked(remote: Desk) -> None:
    payload = '{"b" : 1,  "a": "\\u0000é"}'
    job, approval = await waiting(remote, job=await remote.running(payload=payload), details="[1.0]", schema="true")
    assert approval.digest == digest(payload, "Go on?", "[1.0]", "true")
    assert job.payload == payload


async def test_opening_a_gate_again_answers_the_same_and_opens_nothing(remote: Desk) -> None:
    job = await remote.running()
    first = request_approval(job)
    receipt = await remote.do(first)
    remote.clock.advance(1)
    assert await remote.do(request_approval(job, prompt="Something else?")) == receipt
    await decided(remote, command(first.approval_id))
    assert await remote.do(request_approval(job)) == receipt
    approvals = await remote.store.find_approvals(remote.tenant, ApprovalFilter(job_id=job.id))
    assert [approval.id for approval in approvals] == [first.approval_id]


async def test_a_stale_worker_opens_no_gate(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(revoke(job.id))
    before = await remote.trace(job.id)
    assert isinstance(await remote.refused(request_approval(job)), LeaseLost)
    assert isinstance(await remote.refused(request_approval(job, id=NEVER)), NotFound)
    assert isinstance(await remote.refused(request_approval(job, worker="w2")), LeaseLost)
    assert await remote.trace(job.id) == before
    assert await remote.store.find_approvals(remote.tenant, ApprovalFilter()) == []


async def test_a_grant_that_ended_by_a_gate_can_do_nothing_else(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(request_approval(job))
    for order in (complete(job), fail(job), release(job)):
        assert isinstance(await remote.refused(order), AlreadyFinished)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job)), NotRunning)
    assert isinstance(await remote.checkpoint_refused(save(job, 1)), NotRunning)


async def test_a_cancel_request_beats_a_gate(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id, reason="stop"))
    order = request_approval(job, checkpoint=save(job, 1))
    for _ in range(2):
        assert isinstance(await remote.refused(order), CancelRequested)
    assert await remote.store.approvals(remote.tenant, [order.approval_id]) == [None]
    found = await remote.job(job.id)
    assert (found.status, found.approval_id, found.checkpoint) == (Status.RUNNING, None, None)
    assert (await remote.do(cancel_ack(job))).status is Status.CANCELLED
    check_history(await remote.job(job.id), await remote.history(job.id))


async def test_a_checkpoint_is_saved_with_the_gate_or_neither_is(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 5))
    before = await remote.trace(job.id)
    assert isinstance(await remote.refused(request_approval(job, checkpoint=save(job, 4, '"old"'))), CheckpointConflict)
    assert await remote.trace(job.id) == before
    now, _ = await waiting(remote, job=job, checkpoint=save(job, 6, '"new"'))
    assert (now.checkpoint_seq, now.checkpoint) == (6, '"new"')


async def test_an_approved_job_is_queued_and_its_next_run_knows_the_decision(remote: Desk) -> None:
    job, approval = await waiting(remote, job=await remote.running(timeout_seconds=30.0), checkpoint=None)
    remote.clock.advance(3600)
    answer = await decided(remote, command(approval, comment="fine", data='{"amount":  5}', digest=approval.digest))
    assert (answer.status, answer.decision, answer.comment) == (ApprovalStatus.APPROVED, APPROVE, "fine")
    assert (answer.data, answer.closed_by, answer.closed_at) == ('{"amount":  5}', ADA, remote.clock.now)
    assert [(v.voter, v.decision, v.comment, v.at) for v in answer.votes] == [(ADA, APPROVE, "fine", remote.clock.now)]
    assert await approval_of(remote, approval.id) == answer
    queued = await remote.job(job.id)
    assert (queued.status, queued.run_at, queued.attempt, queued.approval_id) == (
        Status.QUEUED,
        remote.clock.now,
        1,
        None,
    )
    row = (await remote.history(job.id))[-1]
    assert (row.verb, row.actor, row.reason) == (Verb.DECIDE, ADA, "fine")
    assert facts(row) == {"approval_id": approval.id, "decision": "approve", "run_at": when(remote.clock.now)}
    again = await remote.again(job)
    assert (again.attempt, again.fence) == (1, job.fence + 1)
    assert (again.run_started_at, again.lease_expires_at) == (remote.clock.now, remote.clock.now + 30 * SECOND)
    assert await remote.store.decisions(remote.tenant, [job.id, NEVER]) == {job.id: [answer]}
    check_history(again, await remote.history(job.id))
    await remote.verify()


async def test_a_resumed_run_has_its_checkpoint_and_spends_no_attempt(remote: Desk) -> None:
    job = await remote.running(max_attempts=1)
    _, approval = await waiting(remote, job=job, checkpoint=save(job, 1, '"mail is sent"'))
    await decided(remote, command(approval))
    again = await remote.again(job)
    assert (again.attempt, again.max_attempts, again.checkpoint) == (1, 1, '"mail is sent"')
    assert (await remote.do(complete(again))).status is Status.SUCCEEDED


async def test_the_decision_survives_a_crash_of_the_resumed_run(remote: Desk) -> None:
    job, approval = await waiting(remote)
    answer = await decided(remote, command(approval))
    again = await remote.again(job)
    await remote.do(fail(again, retry_after_seconds=1.0))
    remote.clock.advance(1)
    await remote.again(job, worker="w3")
    assert await remote.store.decisions(remote.tenant, [job.id]) == {job.id: [answer]}


async def test_several_gates_follow_each_other_and_all_decisions_are_told(remote: Desk) -> None:
    job, first = await waiting(remote)
    await decided(remote, command(first))
    again = await remote.again(job)
    remote.clock.advance(1)
    _, second = await waiting(remote, job=again)
    assert [one.id for one in (await remote.store.decisions(remote.tenant, [job.id]))[job.id]] == [first.id]
    assert isinstance(await decide_refused(remote, command(first, DENY)), AlreadyDecided)
    assert (await approval_of(remote, second.id)).status is ApprovalStatus.OPEN
    await decided(remote, command(second, actor=BOB))
    assert [one.id for one in (await remote.store.decisions(remote.tenant, [job.id]))[job.id]] == [first.id, second.id]
    approvals = await remote.store.find_approvals(remote.tenant, ApprovalFilter(job_id=job.id))
    assert [approval.id for approval in approvals] == [second.id, first.id]


async def test_a_request_is_known_by_its_name_and_numbered_without_one(remote: Desk) -> None:
    job = await remote.running()
    for name, occurrence in ((None, None), ("legal", None), (None, None), ("legal", None), ("legal", 7)):
        _, approval = await waiting(remote, job=job, name=name, occurrence=occurrence)
        await decided(remote, command(approval))
        job = await remote.again(job)
        remote.clock.advance(1)
    reported = (await remote.store.decisions(remote.tenant, [job.id]))[job.id]
    assert [(one.name, one.occurrence) for one in reported] == [
        (None, 1), ("legal", 1), (None, 2), ("legal", 2), ("legal", 7),
    ]  # fmt: skip


async def test_a_denied_job_has_failed(remote: Desk) -> None:
    job, approval = await waiting(remote)
    answer = await decided(remote, command(approval, DENY, comment="no"))
    now = await remote.job(job.id)
    assert (answer.status, now.status, now.finished_at) == (ApprovalStatus.DENIED, Status.FAILED, remote.clock.now)
    assert json.loads(now.error or "")["kind"] == "approval_denied"
    row = (await remote.history(job.id))[-1]
    assert (row.verb, row.actor, row.reason) == (Verb.DECIDE, ADA, "no")
    check_history(now, await remote.history(job.id))


async def test_a_job_that_resumes_on_denial_goes_on_and_knows(remote: Desk) -> None:
    job, approval = await waiting(remote, on_deny=OnDeny.RESUME)
    await decided(remote, command(approval, DENY, comment="no"))
    again = await remote.again(job)
    (reported,) = (await remote.store.decisions(remote.tenant, [job.id]))[job.id]
    assert (again.attempt, reported.decision, reported.comment) == (1, DENY, "no")


async def test_urgent_lists_have_the_open_gates_that_end_first_and_go_on_from_any_place(remote: Desk) -> None:
    approvals: list[Approval] = []
    for i, seconds in enumerate((500, 100, 300, 100, 400, 200)):
        job = await remote.running(type=f"t{i}")
        approvals.append((await waiting(remote, job=job, expires_in_seconds=seconds))[1])
    await decided(remote, command(approvals.pop(), APPROVE))
    seen: list[Approval] = []
    filter = ApprovalFilter(status=ApprovalStatus.OPEN, limit=2, urgent=True)
    while page := await remote.store.find_approvals(remote.tenant, filter):
        assert len(page) <= 2
        seen += page
        filter = filter._replace(before=filter.cursor_of(page[-1]))
    assert seen == sorted(approvals, key=lambda approval: (approval.expires_at, approval.id))


async def test_lists_are_newest_first_and_go_on_from_any_place(remote: Desk) -> None:
    approvals: list[Approval] = []
    for i in range(7):
        job = await remote.running(type=f"t{i}")
        approvals.append((await waiting(remote, job=job))[1])
        remote.clock.advance(i % 2)
    for approval in approvals[:3]:
        await decided(remote, command(approval, DENY if approval is approvals[0] else APPROVE))
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
        while page := await remote.store.find_approvals(remote.tenant, filter):
            assert len(page) <= 2
            seen += page
            filter = filter._replace(before=(page[-1].opened_at, page[-1].id))
        assert [approval.id for approval in seen] == [id for id in newest if id in expected]


async def test_another_tenant_sees_no_gate_and_decides_none(remote: Desk, rival: Desk) -> None:
    job, approval = await waiting(remote)
    before = await remote.trace(job.id)
    assert await rival.store.approvals(rival.tenant, [approval.id]) == [None]
    assert await rival.store.find_approvals(rival.tenant, ApprovalFilter()) == []
    assert await rival.store.find_approvals(rival.tenant, ApprovalFilter(job_id=job.id)) == []
    assert isinstance(await decide_refused(rival, command(approval)), NotFound)
    assert isinstance(await mint_refused(rival, approval), NotFound)
    await decided(remote, command(approval))
    assert await rival.store.decisions(rival.tenant, [job.id]) == {}
    assert (await remote.history(job.id))[:-1] == before[1]
