"""Decisions: made once, by whom and with how many votes, in time, and by the bearer of a link."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from interlock.domain.approval import GateStatus
from interlock.domain.job import Refused
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import (
    AlreadyDecided,
    DigestMismatch,
    Forbidden,
    GateExpired,
    GateVoid,
    Invalid,
    NotFound,
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
    hashed,
    mint_refused,
    minted,
    sweep_gates,
    waiting,
)
from tests.contract.builders import NEVER, Desk, cancel, pass_deadline
from tests.support.eventually import eventually
from tests.support.truth import check_history


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
    changed = desk.store.watch(desk.tenant)
    await decided(desk, ballot(gate))

    async def woken() -> bool:
        return changed.is_set()

    await eventually(woken)
