"""Approvals as workers request them and approvers decide them, on both engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.domain.approval import (
    MAX_EXPIRY_SECONDS,
    Approval,
    ApprovalFilter,
    ApprovalStatus,
    Decision,
    RequestApproval,
)
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Checkpoint, Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine.approvals import RequestedApproval
from interlock.engine.engine import Engine
from interlock.errors import (
    AlreadyDecided,
    ApprovalVoid,
    CancelRequested,
    Error,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    TooLarge,
)  # fmt: skip
from interlock.wire import job_request
from interlock.wire.encode import approval_to_dict, decision_to_dict
from tests.support.stores import SECOND, ManualClock

AGENT = Principal("acme", "token:agent", frozenset({"work", "read"}))
ADA = Principal("acme", "user:ada", frozenset({"approve", "read"}))
BOB = Principal("acme", "user:bob", frozenset({"approve", "admin"}))
OPERATOR = Principal("acme", "user:op", frozenset({"operate", "read", "produce", "admin"}))
STRANGER = Principal("other", "user:ada", frozenset({"approve", "read"}))
APPROVE, DENY = Decision.APPROVE, Decision.DENY


async def running(engine: Engine) -> Job:
    await engine.jobs.enqueue(OPERATOR, job_request({"type": "t", "payload": {"mail": "all"}}))
    (job,) = await engine.leases.claim("acme", ClaimFilter("w"))
    return job


def asks(job: Job, **fields: Any) -> RequestApproval:
    return RequestApproval(
        **{"id": job.id, "fence": job.fence, "worker": "w", "approval_id": "", "prompt": "Send it?", **fields}
    )


async def opened(engine: Engine, who: Principal = AGENT, **fields: Any) -> RequestedApproval:
    return await engine.approvals.open(who, asks(await running(engine), **fields))


async def approval_of(engine: Engine, **fields: Any) -> Approval:
    approval = (await opened(engine, **fields)).approval
    assert approval is not None
    return approval


async def test_the_result_for_a_worker_has_receipt_and_approval_but_never_a_token(interlock_engine: Engine) -> None:
    receipt, approval, token = await opened(interlock_engine, risk="high", details='{"n":1}')
    assert approval is not None
    assert (receipt.status, receipt.id, token) == (Status.WAITING_FOR_APPROVAL, approval.job_id, None)
    assert (approval.opened_by, approval.token_sha256, approval.risk) == ("token:agent", None, "high")
    assert await interlock_engine.approvals.get("acme", approval.id) == approval


async def test_a_subject_that_requested_as_a_worker_cannot_decide_with_another_credential(
    interlock_engine: Engine,
) -> None:
    robot = Principal("acme", "worker:robot", frozenset({"work"}), "robot", subject=ADA.actor)
    approval = (await opened(interlock_engine, robot)).approval
    assert approval is not None
    assert approval.opened_by == ADA.actor
    with pytest.raises(Forbidden):
        await interlock_engine.approvals.decide(ADA, approval.id, APPROVE)
    with pytest.raises(Forbidden):
        await interlock_engine.approvals.create_link(ADA, approval.id)
    assert (await interlock_engine.approvals.decide(BOB, approval.id, APPROVE)).status is ApprovalStatus.APPROVED


async def test_with_auth_off_the_result_has_a_link_and_a_repeat_gets_a_new_one(
    interlock_engine: Engine, who: Principal
) -> None:
    job = await running(interlock_engine)
    first = await interlock_engine.approvals.open(who, asks(job))
    again = await interlock_engine.approvals.open(who, asks(job))
    assert first.approval is not None
    assert again.approval is not None
    assert (first.receipt, first.approval.id) == (again.receipt, again.approval.id)
    assert first.token is not None
    assert again.token is not None
    with pytest.raises(NotFound):
        await interlock_engine.approvals.decide_by_token(first.token, APPROVE)
    decided = await interlock_engine.approvals.decide_by_token(again.token, APPROVE)
    assert (decided.status, decided.closed_by) == (ApprovalStatus.APPROVED, "bearer:user:local")
    late = await interlock_engine.approvals.open(who, asks(job))
    assert (late.receipt, late.token) == (first.receipt, None)
    several = await opened(interlock_engine, who, required=2)
    assert several.token is None


async def test_with_auth_off_the_single_caller_may_decide(interlock_engine: Engine, who: Principal) -> None:
    approval = (await opened(interlock_engine, who)).approval
    assert approval is not None
    assert (await interlock_engine.approvals.decide(who, approval.id, APPROVE)).status is ApprovalStatus.APPROVED


async def test_a_pending_cancel_rejects_the_approval_request(interlock_engine: Engine) -> None:
    job = await running(interlock_engine)
    await interlock_engine.jobs.cancel(OPERATOR, job.id)
    with pytest.raises(CancelRequested):
        await interlock_engine.approvals.open(AGENT, asks(job))


async def test_a_checkpoint_is_saved_with_the_request_under_its_lease(interlock_engine: Engine) -> None:
    job = await running(interlock_engine)
    progress = Checkpoint("not this job", 99, "somebody", 3, '"here \\ud800"')
    await interlock_engine.approvals.open(AGENT, asks(job, checkpoint=progress))
    now = await interlock_engine.queries.job("acme", job.id)
    assert (now.checkpoint_seq, now.checkpoint, now.sanitized) == (3, '"here \\ufffd"', True)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"prompt": ""}, "/prompt"),
        ({"prompt": " \n "}, "/prompt"),
        ({"prompt": "\u200b"}, "/prompt"),
        ({"required": 0}, "/required"),
        ({"required": 101}, "/required"),
        ({"expires_in_seconds": 0.5}, "/expires_in_seconds"),
        ({"expires_in_seconds": MAX_EXPIRY_SECONDS + 1}, "/expires_in_seconds"),
        ({"expires_in_seconds": float("nan")}, "/expires_in_seconds"),
        ({"risk": "\n"}, "/risk"),
        ({"schema": '{"type": "sometimes"}'}, "/schema"),
        ({"schema": "{}", "required": 2}, "/schema"),
    ],
)
async def test_an_invalid_request_is_rejected_and_the_lease_continues(
    interlock_engine: Engine, fields: dict[str, Any], pointer: str
) -> None:
    job = await running(interlock_engine)
    with pytest.raises(Invalid) as caught:
        await interlock_engine.approvals.open(AGENT, asks(job, **fields))
    assert caught.value.pointer == pointer
    await interlock_engine.leases.complete("acme", CompleteJob(job.id, job.fence, "w"))


async def test_each_limit_applies_at_its_boundary(interlock_engine: Engine) -> None:
    job = await running(interlock_engine)
    for fields in (
        {"prompt": "x" * 8193},
        {"details": json.dumps("x" * 262_143)},
        {"schema": json.dumps("x" * 262_143)},
    ):
        with pytest.raises(TooLarge):
            await interlock_engine.approvals.open(AGENT, asks(job, **fields))
    with pytest.raises(Malformed):
        await interlock_engine.approvals.open(AGENT, asks(job, details="{"))
    at_the_edge = asks(
        job,
        prompt="x" * 8192,
        details=json.dumps("x" * 262_142),
        expires_in_seconds=MAX_EXPIRY_SECONDS,
        required=100,
    )
    approval = (await interlock_engine.approvals.open(AGENT, at_the_edge)).approval
    assert approval is not None
    assert approval.expires_at - approval.opened_at == 7 * 86_400 * SECOND


async def test_a_request_with_invalid_unicode_is_sanitized_and_marked(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine, prompt="Send \ud800 \x00?", details='"\\ud800"')
    assert (approval.prompt, approval.details) == ("Send \ufffd \ufffd?", '"\\ufffd"')
    assert (await interlock_engine.queries.job("acme", approval.job_id)).sanitized


@pytest.mark.parametrize(
    "who",
    [
        AGENT,
        OPERATOR,
        ADA._replace(roles=frozenset({"approve", "work"})),
        ADA._replace(roles=frozenset({"read"})),
        ADA._replace(actor="token:agent"),  # the requester, with any other roles
    ],
    ids=["the agent", "no approver", "an approver that works", "a reader", "the opener"],
)
async def test_workers_and_requesters_can_neither_decide_nor_create_links(
    interlock_engine: Engine, who: Principal
) -> None:
    approval = await approval_of(interlock_engine)
    for act in (
        interlock_engine.approvals.decide(who, approval.id, APPROVE),
        interlock_engine.approvals.create_link(who, approval.id),
    ):
        with pytest.raises(Forbidden):
            await act
    assert await interlock_engine.approvals.get("acme", approval.id) == approval


async def test_a_worker_credential_beside_a_link_is_rejected(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    token = (await interlock_engine.approvals.create_link(ADA, approval.id)).token
    with pytest.raises(Forbidden):
        await interlock_engine.approvals.decide_by_token(token, APPROVE, who=AGENT)
    assert (await interlock_engine.approvals.decide_by_token(token, APPROVE, who=BOB)).closed_by == "bearer:user:ada"


async def test_foreign_approvals_are_treated_like_unknown_ones(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    given = set()
    for id in (approval.id, "0193a1b2-ffff-7fff-8fff-ffffffffffff", "no id at all", "\ud800"):
        for act in (
            interlock_engine.approvals.get("other", id),
            interlock_engine.approvals.decide(STRANGER, id, APPROVE),
            interlock_engine.approvals.create_link(STRANGER, id),
        ):
            with pytest.raises(NotFound) as caught:
                await act
            given.add(str(caught.value).replace(id, "ID"))
    assert given == {"no approval ID"}


async def test_reading_an_approval_decides_nothing(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    created_link = await interlock_engine.approvals.create_link(ADA, approval.id)
    before = await interlock_engine.queries.job("acme", approval.job_id)
    for _ in range(50):
        assert await interlock_engine.approvals.of_token(created_link.token) == created_link.approval
        assert await interlock_engine.approvals.get("acme", approval.id) == created_link.approval
    assert await interlock_engine.queries.job("acme", approval.job_id) == before


async def test_a_wrong_token_finds_nothing(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    token = (await interlock_engine.approvals.create_link(ADA, approval.id)).token
    for wrong in ("", token[:-1], token + "x", token.upper(), token + "\n", "\ud800", approval.id, "x" * 100_000):
        with pytest.raises(NotFound):
            await interlock_engine.approvals.decide_by_token(wrong, APPROVE)
    assert (await interlock_engine.approvals.get("acme", approval.id)).status is ApprovalStatus.OPEN


async def test_tokens_are_long_and_unique(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    tokens = [(await interlock_engine.approvals.create_link(ADA, approval.id)).token for _ in range(20)]
    assert len(set(tokens)) == 20
    assert {len(token) for token in tokens} == {47}  # four of a prefix, and 256 bits six at a time


SCHEMA = '{"type": "object", "properties": {"amount": {"type": "integer", "maximum": 10}}, "required": ["amount"]}'


async def test_data_must_match_the_schema_and_is_stored_byte_for_byte(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine, schema=SCHEMA)
    for data, pointer in (('{"amount": 11}', "/data/amount"), ('{"amount": "1"}', "/data/amount"), ("[]", "/data")):
        with pytest.raises(Invalid) as caught:
            await interlock_engine.approvals.decide(ADA, approval.id, APPROVE, data=data)
        assert caught.value.pointer == pointer
    for broken in ('{"amount": NaN}', '{"amount": 1, "amount": 2}', ""):
        with pytest.raises(Malformed):
            await interlock_engine.approvals.decide(ADA, approval.id, APPROVE, data=broken)
    with pytest.raises(TooLarge):
        await interlock_engine.approvals.decide(ADA, approval.id, APPROVE, data=" " * 262_145)
    decided = await interlock_engine.approvals.decide(
        ADA, approval.id, APPROVE, data=b'{"amount" :  3}', comment="less\x00"
    )
    assert (decided.data, decided.comment) == ('{"amount" :  3}', "less\ufffd")
    (job,) = await interlock_engine.leases.claim("acme", ClaimFilter("w2"))
    reported = await interlock_engine.approvals.decisions("acme", [job])
    assert bytes(decision_to_dict(reported[job.id][-1])["data"]) == b'{"amount" :  3}'


async def test_data_whose_validation_takes_too_long_is_rejected(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine, schema='{"pattern": ".{0,3000}z"}')
    with pytest.raises(Invalid, match="takes too long to compare with its schema") as caught:
        await interlock_engine.approvals.decide(ADA, approval.id, APPROVE, data=f'"{"a" * 5000}"')
    assert caught.value.pointer == "/data"
    assert (await interlock_engine.approvals.decide(ADA, approval.id, APPROVE, data='"abcz"')).data == '"abcz"'


async def test_an_approve_without_data_takes_the_proposal(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine, schema=SCHEMA)
    assert (await interlock_engine.approvals.decide(ADA, approval.id, APPROVE)).data is None


async def test_a_first_run_has_no_decisions(interlock_engine: Engine) -> None:
    job = await running(interlock_engine)
    assert await interlock_engine.approvals.decisions("acme", [job]) == {}


async def test_results_never_contain_a_token_and_for_a_worker_never_a_voter(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    created_link = await interlock_engine.approvals.create_link(ADA, approval.id)
    decided = await interlock_engine.approvals.decide(BOB, approval.id, DENY, comment="no")
    for_people, for_workers = approval_to_dict(decided), decision_to_dict(decided)
    assert for_people["votes"][0]["by"] == for_people["closed_by"] == "user:bob"
    assert not {"token", "token_sha256"} & (for_people.keys() | for_workers.keys())
    text = repr(for_people) + repr(for_workers)
    assert created_link.token not in text
    assert "user:bob" not in repr(for_workers)


async def test_lists_have_at_most_two_hundred_items(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    assert await interlock_engine.approvals.list("acme", ApprovalFilter(status=ApprovalStatus.OPEN, limit=200)) == [
        approval
    ]
    for limit in (0, 201):
        with pytest.raises(Invalid):
            await interlock_engine.approvals.list("acme", ApprovalFilter(limit=limit))


async def test_the_sweep_expires_approvals(interlock_engine: Engine, clock: ManualClock) -> None:
    approval = await approval_of(interlock_engine, expires_in_seconds=60.0)
    assert (await interlock_engine.maintenance.sweep()).approvals == 0
    clock.advance(60)
    assert (await interlock_engine.maintenance.sweep()).approvals == 1
    assert (await interlock_engine.maintenance.sweep()).approvals == 0
    assert (await interlock_engine.queries.job("acme", approval.job_id)).status is Status.FAILED
    with pytest.raises(Error):
        await interlock_engine.approvals.decide(ADA, approval.id, APPROVE)


async def test_a_cancelled_job_leaves_nothing_to_decide(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    token = (await interlock_engine.approvals.create_link(ADA, approval.id)).token
    await interlock_engine.jobs.cancel(OPERATOR, approval.job_id)
    with pytest.raises(ApprovalVoid):
        await interlock_engine.approvals.decide(ADA, approval.id, APPROVE)
    with pytest.raises(ApprovalVoid):
        await interlock_engine.approvals.decide_by_token(token, APPROVE)
    with pytest.raises(ApprovalVoid):
        await interlock_engine.approvals.create_link(ADA, approval.id)


async def test_a_second_decision_gets_the_first_one(interlock_engine: Engine) -> None:
    approval = await approval_of(interlock_engine)
    await interlock_engine.approvals.decide(ADA, approval.id, APPROVE)
    with pytest.raises(AlreadyDecided, match="approved"):
        await interlock_engine.approvals.decide(BOB, approval.id, DENY)


async def test_an_edit_is_validated_like_a_new_job(interlock_engine: Engine) -> None:
    job = await interlock_engine.jobs.enqueue(OPERATOR, job_request({"type": "t"}))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"priority": 1001}, "/priority"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"max_attempts": 101}, "/max_attempts"),
        ({"tags": ["a", "a"]}, "/tags"),
        ({"tags": [""]}, "/tags"),
    ]
    for fields, pointer in wrong:
        with pytest.raises(Invalid) as caught:
            await interlock_engine.jobs.edit(OPERATOR, job.id, **fields)
        assert caught.value.pointer == pointer
    receipt = await interlock_engine.jobs.edit(OPERATOR, job.id, priority=-1000, max_attempts=100, tags=[" b ", "a"])
    now = await interlock_engine.queries.job("acme", job.id)
    assert (receipt.version, now.priority, now.max_attempts, list(now.tags)) == (2, -1000, 100, ["a", "b"])
    with pytest.raises(NotFound):
        await interlock_engine.jobs.edit(STRANGER, job.id, priority=1)
