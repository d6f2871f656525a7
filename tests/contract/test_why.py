"""Why a job does not run, reason by reason: the named reason is the one that blocks the job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from interlock.domain.approval import ApprovalKind, OnDeny
from interlock.domain.explain import ReasonCode
from interlock.domain.registry import Agent
from interlock.domain.worker_presence import LATELY_SECONDS, WorkerSeen
from tests.contract.approvals import command, decided, request_approval, waiting
from tests.contract.builders import (
    FIXED,
    NEVER,
    OPERATOR,
    TenantQueue,
    ask,
    cancel,
    complete,
    fail,
    release,
)
from tests.contract.reasons import clauses, details, seen, why


async def test_a_ready_job_is_leased_to_the_worker_that_is_named(queue: TenantQueue) -> None:
    id = await queue.add()
    await seen(queue, worker="w7")
    reported = await why(queue, id)
    assert (reported.clause, reported.also) == (ReasonCode.READY, ())
    assert (reported.reason.details["workers"], reported.reason.details["workers_count"]) == (["w7"], 1)
    assert "w7" in reported.reason.message
    assert await queue.claimed(worker="w7") == [id]


async def test_without_a_worker_for_the_type_the_type_is_the_reason(queue: TenantQueue) -> None:
    id = await queue.add(type="render")
    assert await clauses(queue, id) == ["no_worker_for_type"]
    await seen(queue, types=frozenset({"mail"}))
    assert await queue.claimed(types=frozenset({"mail"})) == []
    assert await clauses(queue, id) == ["no_worker_for_type"]
    assert await details(queue, id) == {"type": "render", "workers_seen": 1}
    await seen(queue, types=frozenset({"mail", "render"}))
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed(types=frozenset({"mail", "render"})) == [id]


async def test_a_worker_without_a_recent_poll_and_without_a_lease_is_not_present(queue: TenantQueue) -> None:
    id = await queue.add()
    await seen(queue)
    queue.clock.advance(LATELY_SECONDS - 0.001)
    assert await clauses(queue, id) == ["ready"]
    queue.clock.advance(0.001)
    assert await clauses(queue, id) == ["no_worker_for_type"]


async def test_a_worker_with_a_lease_is_present_without_polling(queue: TenantQueue) -> None:
    held = await queue.running(type="long", lease_seconds=600)
    await seen(queue, types=frozenset({"long"}))
    id = await queue.add(type="long")
    queue.clock.advance(599)
    reported = await why(queue, id)
    assert reported.clause == ReasonCode.READY
    assert "busy" in reported.reason.message
    assert await queue.claimed(types=frozenset({"long"}), worker=held.worker) == [id]
    another = await queue.add(type="long")
    queue.clock.advance(61)  # both leases have expired
    assert await clauses(queue, another) == ["no_worker_for_type"]


async def test_missing_capabilities_are_named(queue: TenantQueue) -> None:
    id = await queue.add(requires=("gpu", "net"))
    await seen(queue, worker="w1", capabilities=frozenset({"net"}))
    assert await clauses(queue, id) == ["no_worker_with_capabilities"]
    assert await details(queue, id) == {"requires": ["gpu", "net"], "missing": ["gpu"]}
    assert await queue.claimed(capabilities=frozenset({"net"})) == []
    await seen(queue, worker="w2", capabilities=frozenset({"gpu"}))
    assert (await details(queue, id))["missing"] == []  # each is there, but in no one worker
    await seen(queue, worker="w3", types=frozenset({"other"}), capabilities=frozenset({"gpu", "net"}))
    assert await clauses(queue, id) == ["no_worker_with_capabilities"]
    await seen(queue, worker="w4", capabilities=frozenset({"gpu", "net", "disk"}))
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed(worker="w4", capabilities=frozenset({"gpu", "net", "disk"})) == [id]


async def test_a_repository_that_no_capable_worker_may_access_is_named(queue: TenantQueue) -> None:
    id = await queue.add(repository="org/x", requires=("gpu",))
    able = {"capabilities": frozenset({"gpu"})}
    await seen(queue, repositories=frozenset({"org/y"}), **able)
    await seen(queue, worker="w2", repositories=frozenset({"org/x"}))
    assert await clauses(queue, id) == ["no_worker_for_repository"]
    assert await details(queue, id) == {"repository": "org/x"}
    assert await queue.claimed(repositories=frozenset({"org/y"}), **able) == []
    await seen(queue, repositories=frozenset({"org/x"}), **able)
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed(repositories=frozenset({"org/x"}), **able) == [id]


async def test_a_job_without_a_repository_waits_for_an_unbound_worker(queue: TenantQueue) -> None:
    id = await queue.add()
    await seen(queue, repositories=frozenset({"org/x"}))
    await seen(queue, worker="w2", repositories=frozenset())
    assert await clauses(queue, id) == ["no_worker_for_repository"]
    assert await details(queue, id) == {"repository": None}
    await seen(queue, worker="w3")
    assert await clauses(queue, id) == ["ready"]


async def test_an_affinity_key_that_no_worker_names_is_the_reason(queue: TenantQueue) -> None:
    id = await queue.add(affinity_key="h1")
    await seen(queue)
    assert await clauses(queue, id) == ["no_worker_for_affinity_key"]
    assert await details(queue, id) == {"affinity_key": "h1"}
    assert await queue.claimed() == []
    await seen(queue, affinity_keys=None)
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed(affinity_keys=None) == [id]


async def test_one_worker_may_poll_with_several_filters(queue: TenantQueue) -> None:
    mail, gpu = await queue.add(type="mail"), await queue.add(type="render", requires=("gpu",))
    asks = (
        ask(types=frozenset({"mail"})),
        ask(types=frozenset({"render"}), capabilities=frozenset({"gpu"})),
    )
    await queue.store.workers.note(queue.tenant, [WorkerSeen("w1", asks)])
    assert await clauses(queue, mail) == ["ready"]
    assert await clauses(queue, gpu) == ["ready"]
    assert [await queue.claimed(**one._asdict()) for one in asks] == [[mail], [gpu]]


async def test_a_delayed_job_names_its_due_time(queue: TenantQueue) -> None:
    id = await queue.add(delay_seconds=5)
    await seen(queue)
    assert await clauses(queue, id) == ["due_later"]
    assert (await why(queue, id)).reason.message == "it is due at 2027-01-15T08:00:05.000000Z"
    assert await queue.claimed() == []
    queue.clock.advance(5)
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed() == [id]


async def test_a_retrying_job_names_its_due_time(queue: TenantQueue) -> None:
    job = await queue.running(backoff=FIXED)
    await seen(queue)
    await queue.do(fail(job))
    assert await clauses(queue, job.id) == ["due_later"]
    assert "last attempt failed" in (await why(queue, job.id)).reason.message
    queue.clock.advance(10)
    assert await clauses(queue, job.id) == ["ready"]
    assert await queue.claimed() == [job.id]


async def test_a_paused_type_names_principal_time_and_reason(queue: TenantQueue) -> None:
    id = await queue.add()
    await seen(queue)
    await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason="deploy")
    assert await clauses(queue, id) == ["paused"]
    reported = await details(queue, id)
    assert (reported["by"], reported["reason"], reported["since"]) == (
        OPERATOR,
        "deploy",
        "2027-01-15T08:00:00.000000Z",
    )
    assert await queue.claimed() == []
    await queue.store.registry.pause(queue.tenant, "work", actor=None, reason=None)
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed() == [id]


async def test_a_blocked_job_names_the_jobs_with_slots_and_how_many_are_ahead(queue: TenantQueue) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "a", 1))
    mine = {"agent_kind": "bot", "agent_id": "a"}
    first, second, third = [await queue.add(**mine) for _ in range(3)]
    later = await queue.add(**mine, delay_seconds=30)
    await seen(queue)
    assert [await clauses(queue, id) for id in (first, second, third, later)] == [
        ["ready"], ["agent_busy"], ["agent_busy"], ["due_later"],
    ]  # fmt: skip
    (held,) = await queue.claim(limit=10)
    assert held.id == first
    agent = {"kind": "bot", "id": "a"}
    reported = {"agent": agent, "max_concurrency": 1, "busy_with": [first], "ahead": 0}
    assert await details(queue, second) == reported
    assert await details(queue, third) == reported | {"ahead": 1}
    await queue.do(complete(held))
    assert await clauses(queue, second) == ["ready"]
    assert await details(queue, third) == reported | {"busy_with": [second], "ahead": 0}
    assert await queue.claimed(limit=10) == [second]


async def test_a_strict_agent_is_busy_with_a_job_that_waits_for_approval_and_another_is_not(queue: TenantQueue) -> None:
    for agent, strict in (("strict", True), ("loose", False)):
        await queue.store.registry.set_agent(queue.tenant, Agent("bot", agent, 1, strict))
        mine: dict[str, Any] = {"agent_kind": "bot", "agent_id": agent, "type": agent}
        held = await queue.running(**mine)
        next_one = await queue.add(**mine)
        await seen(queue, types=frozenset({agent}))
        await queue.do(request_approval(held))
        if strict:
            assert (await details(queue, next_one))["busy_with"] == [held.id]
        leased = await queue.claimed(types=frozenset({agent}))
        assert (await clauses(queue, next_one), leased) == (
            (["agent_busy"], []) if strict else (["running"], [next_one])
        )


async def test_a_strict_agent_is_busy_with_a_job_that_waits_for_its_children(queue: TenantQueue) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "a", 1, strict=True))
    mine: dict[str, Any] = {"agent_kind": "bot", "agent_id": "a", "type": "parent"}
    parent = await queue.running(**mine)
    child = await queue.add(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child,)))
    next_one = await queue.add(**mine)
    await seen(queue)
    assert (await details(queue, next_one))["busy_with"] == [parent.id]
    assert await clauses(queue, parent.id) == ["waiting_for_children"]


async def test_waiting_for_approval_counts_the_votes(queue: TenantQueue) -> None:
    job, approval = await waiting(queue, required=2, expires_in_seconds=3600)
    await seen(queue)
    await decided(queue, command(approval))
    assert await clauses(queue, job.id) == ["waiting_for_approval"]
    assert await details(queue, job.id) == {
        "approval_id": approval.id,
        "votes": 1,
        "required": 2,
        "opened_at": "2027-01-15T08:00:00.000000Z",
        "expires_at": "2027-01-15T09:00:00.000000Z",
    }
    assert "1 of 2 approvals" in (await why(queue, job.id)).reason.message
    assert await queue.claimed() == []
    await decided(queue, command(approval, actor="user:bob"))
    assert await clauses(queue, job.id) == ["ready"]
    assert await queue.claimed() == [job.id]


async def test_a_question_waits_for_an_answer_and_not_for_votes(queue: TenantQueue) -> None:
    job, _ = await waiting(queue, kind=ApprovalKind.QUESTION, on_deny=OnDeny.RESUME)
    assert "waits for the answer to a question" in (await why(queue, job.id)).reason.message


async def test_an_expired_approval_will_end_its_job(queue: TenantQueue) -> None:
    job, _ = await waiting(queue, expires_in_seconds=10)
    await seen(queue)
    queue.clock.advance(10)
    assert "will fail" in (await why(queue, job.id)).reason.message


async def test_waiting_for_children_names_those_that_are_not_terminal(queue: TenantQueue) -> None:
    parent = await queue.running()
    children = [await queue.add(type="child", parent_id=parent.id) for _ in range(2)]
    await queue.do(release(parent, children=tuple(children)))
    await seen(queue, types=frozenset({"work"}))
    assert await clauses(queue, parent.id) == ["waiting_for_children"]
    assert await details(queue, parent.id) == {"children": sorted(children)}
    await queue.do(cancel(children[0]))
    assert await details(queue, parent.id) == {"children": [children[1]]}
    assert await queue.claimed(types=frozenset({"work"})) == []
    await queue.do(cancel(children[1]))
    assert await clauses(queue, parent.id) == ["ready"]
    assert await queue.claimed(types=frozenset({"work"})) == [parent.id]


async def test_a_passed_deadline_is_the_first_reason(queue: TenantQueue) -> None:
    id = await queue.add(deadline=queue.after(5), delay_seconds=60)
    await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason=None)
    assert "comes first" in (await why(queue, id)).reason.message
    queue.clock.advance(5)
    assert await clauses(queue, id) == ["deadline_passed"]
    await queue.claim()
    assert await clauses(queue, id) == ["ended"]
    assert await details(queue, id) == {
        "status": "cancelled", "reason": "deadline", "finished_at": "2027-01-15T08:00:05.000000Z",
    }  # fmt: skip


async def test_a_running_job_names_its_worker_lease_expiry_and_pending_cancel(queue: TenantQueue) -> None:
    job = await queue.running(worker="w3", lease_seconds=60)
    assert await clauses(queue, job.id) == ["running"]
    assert await details(queue, job.id) == {
        "worker": "w3", "lease_expires_at": "2027-01-15T08:01:00.000000Z", "cancel_requested_at": None,
    }  # fmt: skip
    queue.clock.advance(1)
    await queue.do(cancel(job.id, reason="enough"))
    reported = await details(queue, job.id)
    assert (reported["cancel_requested_at"], reported["cancel_reason"]) == ("2027-01-15T08:00:01.000000Z", "enough")
    queue.clock.advance(60)
    assert "expired" in (await why(queue, job.id)).reason.message


async def test_a_terminal_job_names_its_outcome(queue: TenantQueue) -> None:
    done, broken = await queue.running(type="a"), await queue.running(type="b")
    await queue.do(complete(done))
    await queue.do(fail(broken, retryable=False))
    assert await details(queue, done.id) == {"status": "succeeded", "finished_at": "2027-01-15T08:00:00.000000Z"}
    assert (await details(queue, broken.id))["error"] == {"message": "boom", "kind": "test"}
    assert (await why(queue, broken.id)).reason.message == "it has ended: failed (boom)"


async def test_other_reasons_are_listed_after_the_first_one(queue: TenantQueue) -> None:
    id = await queue.add(delay_seconds=5, requires=("gpu",))
    await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason=None)
    lift: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("due_later", lambda: _later(queue, 5)),
        ("paused", lambda: queue.store.registry.pause(queue.tenant, "work", actor=None, reason=None)),
        ("no_worker_for_type", lambda: seen(queue)),
        ("no_worker_with_capabilities", lambda: seen(queue, capabilities=frozenset({"gpu"}))),
    ]
    for clause, lifted in lift:
        assert (await clauses(queue, id))[0] == clause
        assert await queue.claimed() == []
        await lifted()
    assert await clauses(queue, id) == ["ready"]
    assert await queue.claimed(capabilities=frozenset({"gpu"})) == [id]


async def _later(queue: TenantQueue, seconds: float) -> None:
    queue.clock.advance(seconds)


async def test_a_job_of_another_tenant_is_unknown_and_its_workers_are_hidden(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    id = await queue.add()
    await seen(rival)
    assert await rival.store.workers.job_snapshot(rival.tenant, id) is None
    assert await queue.store.workers.job_snapshot(queue.tenant, NEVER) is None
    assert await clauses(queue, id) == ["no_worker_for_type"]
