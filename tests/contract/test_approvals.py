"""Gates: a job waits, and goes on or ends by what was decided."""

from __future__ import annotations

import json

from interlock.domain.approval import Approval, GateFilter, GateStatus, OnDeny, digest
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
    ballot,
    decide_refused,
    decided,
    gate_of,
    mint_refused,
    open_gate,
    waiting,
)
from tests.contract.builders import NEVER, Desk, beat, cancel, cancel_ack, complete, facts, fail, release, revoke, save
from tests.support.stores import SECOND
from tests.support.truth import check_history

DAY = 86_400


async def test_a_job_that_opens_a_gate_gives_up_its_lease_and_waits(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    order = open_gate(job, prompt="Publish?", details='{"pages": 3}', risk="high")
    receipt = await desk.do(order)
    now = await desk.job(job.id)
    assert receipt == Receipt(job.id, job.fence, Status.WAITING_FOR_APPROVAL, 1, job.version + 1, None, None)
    assert (now.status, now.gate_id, now.worker, now.lease_expires_at) == (receipt.status, order.gate_id, None, None)
    assert (now.attempt, now.fence, now.location(desk.clock.now)) == (1, job.fence, Location.BLOCKED)
    assert await desk.claim(worker="w2") == []
    gate = await gate_of(desk, order.gate_id)
    assert (gate.status, gate.job_id, gate.prompt, gate.details) == (
        GateStatus.OPEN,
        job.id,
        "Publish?",
        '{"pages": 3}',
    )
    assert (gate.risk, gate.required, gate.on_deny, gate.votes) == ("high", 1, OnDeny.FAIL, ())
    assert (gate.opened_at, gate.expires_at) == (desk.clock.now, desk.clock.now + DAY * SECOND)
    row = (await desk.history(job.id))[-1]
    assert (row.verb, row.actor, facts(row)) == (
        Verb.OPEN_GATE,
        "worker:w1",
        {"gate_id": order.gate_id},
    )
    await desk.verify()


async def test_the_digest_is_over_the_exact_text_of_what_is_asked(desk: Desk) -> None:
    payload = '{"b" : 1,  "a": "\\u0000é"}'
    job, gate = await waiting(desk, job=await desk.running(payload=payload), details="[1.0]", schema="true")
    assert gate.digest == digest(payload, "Go on?", "[1.0]", "true")
    assert job.payload == payload


async def test_opening_a_gate_again_answers_the_same_and_opens_nothing(desk: Desk) -> None:
    job = await desk.running()
    first = open_gate(job)
    receipt = await desk.do(first)
    desk.clock.advance(1)
    assert await desk.do(open_gate(job, prompt="Something else?")) == receipt
    await decided(desk, ballot(first.gate_id))
    assert await desk.do(open_gate(job)) == receipt
    gates = await desk.store.find_approvals(desk.tenant, GateFilter(job_id=job.id))
    assert [gate.id for gate in gates] == [first.gate_id]


async def test_a_stale_worker_opens_no_gate(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(revoke(job.id))
    before = await desk.trace(job.id)
    assert isinstance(await desk.refused(open_gate(job)), LeaseLost)
    assert isinstance(await desk.refused(open_gate(job, id=NEVER)), NotFound)
    assert isinstance(await desk.refused(open_gate(job, worker="w2")), LeaseLost)
    assert await desk.trace(job.id) == before
    assert await desk.store.find_approvals(desk.tenant, GateFilter()) == []


async def test_a_grant_that_ended_by_a_gate_can_do_nothing_else(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(open_gate(job))
    for order in (complete(job), fail(job), release(job)):
        assert isinstance(await desk.refused(order), AlreadyFinished)
    assert isinstance(await desk.heartbeat_refused(beat(job)), NotRunning)
    assert isinstance(await desk.checkpoint_refused(save(job, 1)), NotRunning)


async def test_a_cancel_request_beats_a_gate(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id, reason="stop"))
    order = open_gate(job, checkpoint=save(job, 1))
    for _ in range(2):
        assert isinstance(await desk.refused(order), CancelRequested)
    assert await desk.store.approvals(desk.tenant, [order.gate_id]) == [None]
    found = await desk.job(job.id)
    assert (found.status, found.gate_id, found.checkpoint) == (Status.RUNNING, None, None)
    assert (await desk.do(cancel_ack(job))).status is Status.CANCELLED
    check_history(await desk.job(job.id), await desk.history(job.id))


async def test_a_checkpoint_is_saved_with_the_gate_or_neither_is(desk: Desk) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 5))
    before = await desk.trace(job.id)
    assert isinstance(await desk.refused(open_gate(job, checkpoint=save(job, 4, '"old"'))), CheckpointConflict)
    assert await desk.trace(job.id) == before
    now, _ = await waiting(desk, job=job, checkpoint=save(job, 6, '"new"'))
    assert (now.checkpoint_seq, now.checkpoint) == (6, '"new"')


async def test_an_approved_job_is_queued_and_its_next_run_knows_the_decision(desk: Desk) -> None:
    job, gate = await waiting(desk, job=await desk.running(timeout_seconds=30.0), checkpoint=None)
    desk.clock.advance(3600)
    answer = await decided(desk, ballot(gate, comment="fine", data='{"amount":  5}', digest=gate.digest))
    assert (answer.status, answer.decision, answer.comment) == (GateStatus.APPROVED, APPROVE, "fine")
    assert (answer.data, answer.closed_by, answer.closed_at) == ('{"amount":  5}', ADA, desk.clock.now)
    assert [(v.voter, v.decision, v.comment, v.at) for v in answer.votes] == [(ADA, APPROVE, "fine", desk.clock.now)]
    assert await gate_of(desk, gate.id) == answer
    queued = await desk.job(job.id)
    assert (queued.status, queued.run_at, queued.attempt, queued.gate_id) == (Status.QUEUED, desk.clock.now, 1, None)
    row = (await desk.history(job.id))[-1]
    assert (row.verb, row.actor, row.reason) == (Verb.DECIDE, ADA, "fine")
    assert facts(row) == {"gate_id": gate.id, "decision": "approve", "run_at": when(desk.clock.now)}
    again = await desk.again(job)
    assert (again.attempt, again.fence) == (1, job.fence + 1)
    assert (again.run_started_at, again.lease_expires_at) == (desk.clock.now, desk.clock.now + 30 * SECOND)
    assert await desk.store.decisions(desk.tenant, [job.id, NEVER]) == {job.id: [answer]}
    check_history(again, await desk.history(job.id))
    await desk.verify()


async def test_a_resumed_run_has_its_checkpoint_and_spends_no_attempt(desk: Desk) -> None:
    job = await desk.running(max_attempts=1)
    _, gate = await waiting(desk, job=job, checkpoint=save(job, 1, '"mail is sent"'))
    await decided(desk, ballot(gate))
    again = await desk.again(job)
    assert (again.attempt, again.max_attempts, again.checkpoint) == (1, 1, '"mail is sent"')
    assert (await desk.do(complete(again))).status is Status.SUCCEEDED


async def test_the_decision_survives_a_crash_of_the_resumed_run(desk: Desk) -> None:
    job, gate = await waiting(desk)
    answer = await decided(desk, ballot(gate))
    again = await desk.again(job)
    await desk.do(fail(again, retry_after_seconds=1.0))
    desk.clock.advance(1)
    await desk.again(job, worker="w3")
    assert await desk.store.decisions(desk.tenant, [job.id]) == {job.id: [answer]}


async def test_several_gates_follow_each_other_and_all_decisions_are_told(desk: Desk) -> None:
    job, first = await waiting(desk)
    await decided(desk, ballot(first))
    again = await desk.again(job)
    desk.clock.advance(1)
    _, second = await waiting(desk, job=again)
    assert [one.id for one in (await desk.store.decisions(desk.tenant, [job.id]))[job.id]] == [first.id]
    assert isinstance(await decide_refused(desk, ballot(first, DENY)), AlreadyDecided)
    assert (await gate_of(desk, second.id)).status is GateStatus.OPEN
    await decided(desk, ballot(second, actor=BOB))
    assert [one.id for one in (await desk.store.decisions(desk.tenant, [job.id]))[job.id]] == [first.id, second.id]
    gates = await desk.store.find_approvals(desk.tenant, GateFilter(job_id=job.id))
    assert [gate.id for gate in gates] == [second.id, first.id]


async def test_a_request_is_known_by_its_name_and_numbered_without_one(desk: Desk) -> None:
    job = await desk.running()
    for name, occurrence in ((None, None), ("legal", None), (None, None), ("legal", None), ("legal", 7)):
        _, gate = await waiting(desk, job=job, name=name, occurrence=occurrence)
        await decided(desk, ballot(gate))
        job = await desk.again(job)
        desk.clock.advance(1)
    told = (await desk.store.decisions(desk.tenant, [job.id]))[job.id]
    assert [(one.name, one.occurrence) for one in told] == [
        (None, 1), ("legal", 1), (None, 2), ("legal", 2), ("legal", 7),
    ]  # fmt: skip


async def test_a_denied_job_has_failed(desk: Desk) -> None:
    job, gate = await waiting(desk)
    answer = await decided(desk, ballot(gate, DENY, comment="no"))
    now = await desk.job(job.id)
    assert (answer.status, now.status, now.finished_at) == (GateStatus.DENIED, Status.FAILED, desk.clock.now)
    assert json.loads(now.error or "")["kind"] == "approval_denied"
    row = (await desk.history(job.id))[-1]
    assert (row.verb, row.actor, row.reason) == (Verb.DECIDE, ADA, "no")
    check_history(now, await desk.history(job.id))


async def test_a_job_that_resumes_on_denial_goes_on_and_knows(desk: Desk) -> None:
    job, gate = await waiting(desk, on_deny=OnDeny.RESUME)
    await decided(desk, ballot(gate, DENY, comment="no"))
    again = await desk.again(job)
    (told,) = (await desk.store.decisions(desk.tenant, [job.id]))[job.id]
    assert (again.attempt, told.decision, told.comment) == (1, DENY, "no")


async def test_urgent_lists_have_the_open_gates_that_end_first_and_go_on_from_any_place(desk: Desk) -> None:
    gates: list[Approval] = []
    for i, seconds in enumerate((500, 100, 300, 100, 400, 200)):
        job = await desk.running(type=f"t{i}")
        gates.append((await waiting(desk, job=job, expires_in_seconds=seconds))[1])
    await decided(desk, ballot(gates.pop(), APPROVE))
    seen: list[Approval] = []
    filter = GateFilter(status=GateStatus.OPEN, limit=2, urgent=True)
    while page := await desk.store.find_approvals(desk.tenant, filter):
        assert len(page) <= 2
        seen += page
        filter = filter._replace(before=filter.place_of(page[-1]))
    assert seen == sorted(gates, key=lambda gate: (gate.expires_at, gate.id))


async def test_lists_are_newest_first_and_go_on_from_any_place(desk: Desk) -> None:
    gates: list[Approval] = []
    for i in range(7):
        job = await desk.running(type=f"t{i}")
        gates.append((await waiting(desk, job=job))[1])
        desk.clock.advance(i % 2)
    for gate in gates[:3]:
        await decided(desk, ballot(gate, DENY if gate is gates[0] else APPROVE))
    newest = [g.id for g in sorted(gates, key=lambda g: (g.opened_at, g.id), reverse=True)]
    for status, expected in (
        (None, set(newest)),
        (GateStatus.OPEN, {g.id for g in gates[3:]}),
        (GateStatus.APPROVED, {gates[1].id, gates[2].id}),
        (GateStatus.DENIED, {gates[0].id}),
        (GateStatus.VOID, set()),
    ):
        seen: list[Approval] = []
        filter = GateFilter(status=status, limit=2)
        while page := await desk.store.find_approvals(desk.tenant, filter):
            assert len(page) <= 2
            seen += page
            filter = filter._replace(before=(page[-1].opened_at, page[-1].id))
        assert [gate.id for gate in seen] == [id for id in newest if id in expected]


async def test_another_tenant_sees_no_gate_and_decides_none(desk: Desk, rival: Desk) -> None:
    job, gate = await waiting(desk)
    before = await desk.trace(job.id)
    assert await rival.store.approvals(rival.tenant, [gate.id]) == [None]
    assert await rival.store.find_approvals(rival.tenant, GateFilter()) == []
    assert await rival.store.find_approvals(rival.tenant, GateFilter(job_id=job.id)) == []
    assert isinstance(await decide_refused(rival, ballot(gate)), NotFound)
    assert isinstance(await mint_refused(rival, gate), NotFound)
    await decided(desk, ballot(gate))
    assert await rival.store.decisions(rival.tenant, [job.id]) == {}
    assert (await desk.history(job.id))[:-1] == before[1]
