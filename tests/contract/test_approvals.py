"""Gates: a job waits, people decide once, and the job goes on or ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from interlock.domain.approval import Approval, GateFilter, GateStatus, OnDeny, digest
from interlock.domain.job import Receipt, Refused
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.errors import (
    AlreadyDecided,
    AlreadyFinished,
    CheckpointConflict,
    DigestMismatch,
    Forbidden,
    GateExpired,
    GateVoid,
    Invalid,
    LeaseLost,
    NotFound,
    NotRunning,
)  # fmt: skip
from tests.contract.builders import NEVER, Desk, beat, cancel, complete, fail, pass_deadline, release, revoke, save
from tests.contract.gates import (
    ADA,
    APPROVE,
    BOB,
    DENY,
    ballot,
    decide_refused,
    decided,
    gate_of,
    hashed,
    mint_refused,
    minted,
    open_gate,
    sweep_gates,
    waiting,
)  # fmt: skip
from tests.support.eventually import eventually
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
    assert (row.verb, row.actor, json.loads(row.metadata or "")) == (
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
    order = open_gate(job)
    receipt = await desk.do(order)
    assert (receipt.status, receipt.finished_at) == (Status.CANCELLED, desk.clock.now)
    assert await desk.do(open_gate(job)) == receipt
    assert (await desk.job(job.id)).gate_id is None
    assert await desk.store.approvals(desk.tenant, [order.gate_id]) == [None]
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
    assert json.loads(row.metadata or "") == {"gate_id": gate.id, "decision": "approve", "run_at": desk.clock.now}
    again = await desk.again(job)
    assert (again.attempt, again.fence) == (1, job.fence + 1)
    assert (again.run_started_at, again.lease_expires_at) == (desk.clock.now, desk.clock.now + 30 * SECOND)
    assert await desk.store.decisions(desk.tenant, [job.id, NEVER]) == {job.id: answer}
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
    assert await desk.store.decisions(desk.tenant, [job.id]) == {job.id: answer}


async def test_several_gates_follow_each_other_and_the_newest_decision_is_told(desk: Desk) -> None:
    job, first = await waiting(desk)
    await decided(desk, ballot(first))
    again = await desk.again(job)
    desk.clock.advance(1)
    _, second = await waiting(desk, job=again)
    assert (await desk.store.decisions(desk.tenant, [job.id]))[job.id].id == first.id
    assert isinstance(await decide_refused(desk, ballot(first, DENY)), AlreadyDecided)
    assert (await gate_of(desk, second.id)).status is GateStatus.OPEN
    await decided(desk, ballot(second, actor=BOB))
    assert (await desk.store.decisions(desk.tenant, [job.id]))[job.id].id == second.id
    gates = await desk.store.find_approvals(desk.tenant, GateFilter(job_id=job.id))
    assert [gate.id for gate in gates] == [second.id, first.id]


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
    told = (await desk.store.decisions(desk.tenant, [job.id]))[job.id]
    assert (again.attempt, told.decision, told.comment) == (1, DENY, "no")


async def test_a_decision_about_something_else_is_refused(desk: Desk) -> None:
    job, gate = await waiting(desk)
    before = await desk.trace(job.id)
    assert isinstance(await decide_refused(desk, ballot(gate, digest="0" * 64)), DigestMismatch)
    assert isinstance(await decide_refused(desk, ballot(gate, digest="")), DigestMismatch)
    assert (await desk.trace(job.id), await gate_of(desk, gate.id)) == (before, gate)
    assert (await decided(desk, ballot(gate, digest=gate.digest.upper()))).status is GateStatus.APPROVED


async def test_a_decision_is_made_once_and_repeated_for_ever(desk: Desk) -> None:
    job, gate = await waiting(desk)
    answer = await decided(desk, ballot(gate, data="1"))
    after = await desk.trace(job.id)
    desk.clock.advance(10)
    assert await decided(desk, ballot(gate, data="1")) == answer
    for other in (
        ballot(gate, DENY),
        ballot(gate, data="2"),
        ballot(gate),
        ballot(gate, actor=BOB, data="1"),
        ballot(gate, DENY, actor=BOB),
    ):
        assert isinstance(await decide_refused(desk, other), AlreadyDecided)
    assert (await desk.trace(job.id), await gate_of(desk, gate.id)) == (after, answer)
    await desk.again(job)
    assert await decided(desk, ballot(gate, data="1")) == answer


async def test_ballots_of_one_batch_follow_each_other(desk: Desk) -> None:
    _, gate = await waiting(desk)
    _, other = await waiting(desk, job=await desk.running(type="other"))
    answers = await desk.store.decide(
        desk.tenant, [ballot(gate), ballot(gate), ballot(gate, DENY), ballot(other, DENY), ballot(NEVER)]
    )
    kinds = [type(a.error) if isinstance(a, Refused) else a.status for a in answers]
    assert kinds == [GateStatus.APPROVED, GateStatus.APPROVED, AlreadyDecided, GateStatus.DENIED, NotFound]


async def test_whoever_opened_a_gate_cannot_decide_it(desk: Desk) -> None:
    job, gate = await waiting(desk, opened_by="token:agent")
    before = await desk.trace(job.id)
    assert isinstance(await decide_refused(desk, ballot(gate, actor="token:agent")), Forbidden)
    assert await desk.trace(job.id) == before


async def test_a_gate_with_several_votes_waits_for_all_of_them(desk: Desk) -> None:
    job, gate = await waiting(desk, required=2)
    first = await decided(desk, ballot(gate, comment="I do"))
    assert (first.status, len(first.votes)) == (GateStatus.OPEN, 1)
    before = await desk.trace(job.id)
    desk.clock.advance(1)
    assert await decided(desk, ballot(gate, comment="twice")) == first
    assert isinstance(await decide_refused(desk, ballot(gate, DENY)), AlreadyDecided)
    assert await desk.trace(job.id) == before
    second = await decided(desk, ballot(gate, actor=BOB))
    assert (second.status, second.closed_by) == (GateStatus.APPROVED, BOB)
    assert [vote.voter for vote in second.votes] == [ADA, BOB]
    assert await decided(desk, ballot(gate)) == second
    assert (await desk.job(job.id)).status is Status.QUEUED


async def test_one_denial_decides_however_many_votes_are_required(desk: Desk) -> None:
    job, gate = await waiting(desk, required=3)
    await decided(desk, ballot(gate))
    assert (await decided(desk, ballot(gate, DENY, actor=BOB))).status is GateStatus.DENIED
    assert (await desk.job(job.id)).status is Status.FAILED
    assert isinstance(await decide_refused(desk, ballot(gate, actor="user:eve")), AlreadyDecided)


async def test_with_several_votes_there_is_no_data_and_no_link(desk: Desk) -> None:
    _, gate = await waiting(desk, required=2)
    assert isinstance(await decide_refused(desk, ballot(gate, data="1")), Invalid)
    assert isinstance(await mint_refused(desk, gate), Invalid)


async def test_data_goes_with_an_approval_only(desk: Desk) -> None:
    _, gate = await waiting(desk)
    assert isinstance(await decide_refused(desk, ballot(gate, DENY, data="1")), Invalid)


async def test_a_gate_that_nobody_decides_expires_and_its_job_fails(desk: Desk, rival: Desk) -> None:
    job, gate = await waiting(desk, expires_in_seconds=60.0)
    _, other = await waiting(rival, expires_in_seconds=61.0)
    desk.clock.advance(59.999)
    await sweep_gates(desk)
    assert (await gate_of(desk, gate.id)) == gate
    desk.clock.advance(0.001)
    due = [due for due in await desk.store.due_gates(10_000) if due.tenant in (desk.tenant, rival.tenant)]
    assert due == [(desk.tenant, job.id)]
    await sweep_gates(desk)
    now, expired = await desk.job(job.id), await gate_of(desk, gate.id)
    assert (now.status, expired.status, expired.closed_at) == (Status.FAILED, GateStatus.EXPIRED, desk.clock.now)
    assert json.loads(now.error or "")["kind"] == "approval_expired"
    row = (await desk.history(job.id))[-1]
    assert (row.verb, row.actor, json.loads(row.metadata or "")["gate_id"]) == (Verb.EXPIRE, "system:sweep", gate.id)
    assert isinstance(await decide_refused(desk, ballot(gate)), GateExpired)
    assert isinstance(await mint_refused(desk, gate), GateExpired)
    assert [due.tenant for due in await desk.store.due_gates(10_000) if due.tenant == desk.tenant] == []
    assert (await gate_of(rival, other.id)) == other
    await desk.verify()


async def test_a_decision_after_the_expiry_is_too_late_even_before_the_sweep(desk: Desk) -> None:
    job, gate = await waiting(desk, expires_in_seconds=60.0)
    desk.clock.advance(60)
    assert isinstance(await mint_refused(desk, gate), GateExpired)
    assert isinstance(await decide_refused(desk, ballot(gate)), GateExpired)
    assert (await desk.job(job.id)).status is Status.FAILED
    assert (await gate_of(desk, gate.id)).status is GateStatus.EXPIRED
    assert (await gate_of(desk, gate.id)).votes == ()


async def test_cancelling_a_waiting_job_voids_its_gate(desk: Desk) -> None:
    job, gate = await waiting(desk)
    await desk.do(cancel(job.id, reason="no need"))
    now, void = await desk.job(job.id), await gate_of(desk, gate.id)
    assert (now.status, void.status, void.closed_at, void.closed_by) == (
        Status.CANCELLED,
        GateStatus.VOID,
        desk.clock.now,
        None,
    )
    assert isinstance(await decide_refused(desk, ballot(gate)), GateVoid)
    assert isinstance(await mint_refused(desk, gate), GateVoid)
    assert await desk.store.decisions(desk.tenant, [job.id]) == {}


async def test_a_waiting_job_whose_deadline_passes_fails_and_its_gate_is_void(desk: Desk) -> None:
    running = await desk.running(deadline=desk.after(100))
    job, gate = await waiting(desk, job=running)
    desk.clock.advance(99)
    assert not [due for due in await desk.store.due_deadlines(10_000) if due.tenant == desk.tenant]
    desk.clock.advance(1)
    assert [d.job_id for d in await desk.store.due_deadlines(10_000) if d.tenant == desk.tenant] == [job.id]
    await desk.sweep()
    assert (await desk.job(job.id)).status is Status.FAILED
    assert (await gate_of(desk, gate.id)).status is GateStatus.VOID
    assert not [due for due in await desk.store.due_deadlines(10_000) if due.tenant == desk.tenant]


async def test_a_decision_after_the_deadline_is_too_late_even_before_the_sweep(desk: Desk) -> None:
    running = await desk.running(deadline=desk.after(100))
    job, gate = await waiting(desk, job=running)
    desk.clock.advance(100)
    assert isinstance(await decide_refused(desk, ballot(gate)), GateVoid)
    now = await desk.job(job.id)
    assert (now.status, json.loads(now.error or "")["kind"]) == (Status.FAILED, "deadline")
    await desk.do(pass_deadline(job.id))
    assert await desk.job(job.id) == now


async def test_a_link_token_is_found_by_its_hash_alone_and_decides(desk: Desk) -> None:
    job, gate = await waiting(desk)
    with_link = await minted(desk, gate, f"secret-{job.id}")
    assert (with_link.token_minted_by, with_link.token_minted_at) == (ADA, desk.clock.now)
    hash = hashed(f"secret-{job.id}")
    assert await desk.store.gate_of_token(hash) == (desk.tenant, gate.id)
    assert await desk.store.gate_of_token(hashed("guess")) is None
    answer = await decided(desk, ballot(gate, actor=f"bearer:{ADA}", token_sha256=hash))
    assert (answer.status, answer.closed_by) == (GateStatus.APPROVED, f"bearer:{ADA}")
    assert await decided(desk, ballot(gate, actor=f"bearer:{ADA}", token_sha256=hash)) == answer
    assert isinstance(await mint_refused(desk, gate), AlreadyDecided)
    assert (await desk.job(job.id)).status is Status.QUEUED


async def test_a_new_link_token_voids_the_one_before(desk: Desk) -> None:
    job, gate = await waiting(desk)
    await minted(desk, gate, f"first-{job.id}")
    await minted(desk, gate, f"second-{job.id}", actor=BOB)
    old, new = hashed(f"first-{job.id}"), hashed(f"second-{job.id}")
    assert await desk.store.gate_of_token(old) is None
    assert isinstance(await decide_refused(desk, ballot(gate, token_sha256=old)), NotFound)
    assert (await gate_of(desk, gate.id)).status is GateStatus.OPEN
    await decided(desk, ballot(gate, actor=f"bearer:{BOB}", token_sha256=new))


async def test_the_token_of_one_gate_does_nothing_to_the_next(desk: Desk) -> None:
    job, first = await waiting(desk)
    await minted(desk, first, f"k-{job.id}")
    token = hashed(f"k-{job.id}")
    await decided(desk, ballot(first, actor=f"bearer:{ADA}", token_sha256=token))
    again = await desk.again(job)
    _, second = await waiting(desk, job=again)
    assert await desk.store.gate_of_token(token) == (desk.tenant, first.id)
    assert isinstance(await decide_refused(desk, ballot(second, token_sha256=token)), NotFound)
    assert await gate_of(desk, second.id) == second


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


async def test_of_many_deciders_at_once_exactly_one_decides(desk: Desk) -> None:
    job, gate = await waiting(desk)
    votes = [ballot(gate, DENY if i % 2 else APPROVE, actor=f"user:{i}") for i in range(64)]
    answers = await asyncio.gather(*(desk.store.decide(desk.tenant, [vote]) for vote in votes))
    kinds = Counter(type(a.error) if isinstance(a, Refused) else a.status for (a,) in answers)
    final = await gate_of(desk, gate.id)
    assert kinds == {final.status: 1, AlreadyDecided: 63}
    assert len(final.votes) == 1
    rows = await desk.history(job.id)
    assert [row.verb for row in rows] == [Verb.ENQUEUE, Verb.CLAIM, Verb.OPEN_GATE, Verb.DECIDE]
    check_history(await desk.job(job.id), rows)


async def test_a_decision_wakes_whoever_waits_for_work(desk: Desk) -> None:
    _, gate = await waiting(desk)
    changed = desk.store.watch()
    await decided(desk, ballot(gate))

    async def woken() -> bool:
        return changed.is_set()

    await eventually(woken)
