"""Why a job does not run, clause by clause: what is said is what holds the job back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from interlock.domain.explain import ReasonCode
from interlock.domain.registry import Agent
from interlock.domain.worker_presence import LATELY_SECONDS, WorkerSeen
from tests.contract.approvals import command, decided, request_approval, waiting
from tests.contract.builders import (
    FIXED,
    NEVER,
    OPERATOR,
    Desk,
    ask,
    cancel,
    complete,
    fail,
    release,
)
from tests.contract.reasons import clauses, details, seen, why


async def test_a_ready_job_is_granted_to_the_worker_that_is_named(remote: Desk) -> None:
    id = await remote.add()
    await seen(remote, worker="w7")
    reported = await why(remote, id)
    assert (reported.clause, reported.also) == (ReasonCode.READY, ())
    assert (reported.reason.details["workers"], reported.reason.details["workers_count"]) == (["w7"], 1)
    assert "w7" in reported.reason.message
    assert await remote.claimed(worker="w7") == [id]


async def test_without_a_worker_that_takes_the_type_the_type_is_the_clause(remote: Desk) -> None:
    id = await remote.add(type="render")
    assert await clauses(remote, id) == ["no_worker_for_type"]
    await seen(remote, types=frozenset({"mail"}))
    assert await remote.claimed(types=frozenset({"mail"})) == []
    assert await clauses(remote, id) == ["no_worker_for_type"]
    assert await details(remote, id) == {"type": "render", "workers_seen": 1}
    await seen(remote, types=frozenset({"mail", "render"}))
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed(types=frozenset({"mail", "render"})) == [id]


async def test_a_worker_that_has_not_asked_for_long_and_holds_nothing_is_not_there(remote: Desk) -> None:
    id = await remote.add()
    await seen(remote)
    remote.clock.advance(LATELY_SECONDS - 0.001)
    assert await clauses(remote, id) == ["ready"]
    remote.clock.advance(0.001)
    assert await clauses(remote, id) == ["no_worker_for_type"]


async def test_a_worker_that_holds_a_lease_is_there_though_it_asks_no_more(remote: Desk) -> None:
    held = await remote.running(type="long", lease_seconds=600)
    await seen(remote, types=frozenset({"long"}))
    id = await remote.add(type="long")
    remote.clock.advance(599)
    reported = await why(remote, id)
    assert reported.clause == ReasonCode.READY
    assert "busy" in reported.reason.message
    assert await remote.claimed(types=frozenset({"long"}), worker=held.worker) == [id]
    another = await remote.add(type="long")
    remote.clock.advance(61)  # both leases have run out
    assert await clauses(remote, another) == ["no_worker_for_type"]


async def test_the_capabilities_that_nobody_has_are_named(remote: Desk) -> None:
    id = await remote.add(requires=("gpu", "net"))
    await seen(remote, worker="w1", capabilities=frozenset({"net"}))
    assert await clauses(remote, id) == ["no_worker_with_capabilities"]
    assert await details(remote, id) == {"requires": ["gpu", "net"], "missing": ["gpu"]}
    assert await remote.claimed(capabilities=frozenset({"net"})) == []
    await seen(remote, worker="w2", capabilities=frozenset({"gpu"}))
    assert (await details(remote, id))["missing"] == []  # each is there, but in no one worker
    await seen(remote, worker="w3", types=frozenset({"other"}), capabilities=frozenset({"gpu", "net"}))
    assert await clauses(remote, id) == ["no_worker_with_capabilities"]
    await seen(remote, worker="w4", capabilities=frozenset({"gpu", "net", "disk"}))
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed(worker="w4", capabilities=frozenset({"gpu", "net", "disk"})) == [id]


async def test_a_repository_that_no_able_worker_may_have_is_named(remote: Desk) -> None:
    id = await remote.add(repository="org/x", requires=("gpu",))
    able = {"capabilities": frozenset({"gpu"})}
    await seen(remote, repositories=frozenset({"org/y"}), **able)
    await seen(remote, worker="w2", repositories=frozenset({"org/x"}))
    assert await clauses(remote, id) == ["no_worker_for_repository"]
    assert await details(remote, id) == {"repository": "org/x"}
    assert await remote.claimed(repositories=frozenset({"org/y"}), **able) == []
    await seen(remote, repositories=frozenset({"org/x"}), **able)
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed(repositories=frozenset({"org/x"}), **able) == [id]


async def test_a_job_without_a_repository_waits_for_a_worker_bound_to_none(remote: Desk) -> None:
    id = await remote.add()
    await seen(remote, repositories=frozenset({"org/x"}))
    await seen(remote, worker="w2", repositories=frozenset())
    assert await clauses(remote, id) == ["no_worker_for_repository"]
    assert await details(remote, id) == {"repository": None}
    await seen(remote, worker="w3")
    assert await clauses(remote, id) == ["ready"]


async def test_an_affinity_key_that_nobody_names_is_the_clause(remote: Desk) -> None:
    id = await remote.add(affinity_key="h1")
    await seen(remote)
    assert await clauses(remote, id) == ["no_worker_for_affinity_key"]
    assert await details(remote, id) == {"affinity_key": "h1"}
    assert await remote.claimed() == []
    await seen(remote, affinity_keys=None)
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed(affinity_keys=None) == [id]


async def test_one_worker_may_ask_for_several_things(remote: Desk) -> None:
    mail, gpu = await remote.add(type="mail"), await remote.add(type="render", requires=("gpu",))
    asks = (
        ask(types=frozenset({"mail"})),
        ask(types=frozenset({"render"}), capabilities=frozenset({"gpu"})),
    )
    await remote.store.note_workers(remote.tenant, [WorkerSeen("w1", asks)])
    assert await clauses(remote, mail) == ["ready"]
    assert await clauses(remote, gpu) == ["ready"]
    assert [await remote.claimed(**one._asdict()) for one in asks] == [[mail], [gpu]]


async def test_a_job_that_is_due_later_says_when(remote: Desk) -> None:
    id = await remote.add(delay_seconds=5)
    await seen(remote)
    assert await clauses(remote, id) == ["due_later"]
    assert (await why(remote, id)).reason.message == "it is due at 2027-01-15T08:00:05.000000Z"
    assert await remote.claimed() == []
    remote.clock.advance(5)
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed() == [id]


async def test_a_failed_attempt_is_due_later_too(remote: Desk) -> None:
    job = await remote.running(backoff=FIXED)
    await seen(remote)
    await remote.do(fail(job))
    assert await clauses(remote, job.id) == ["due_later"]
    assert "last attempt failed" in (await why(remote, job.id)).reason.message
    remote.clock.advance(10)
    assert await clauses(remote, job.id) == ["ready"]
    assert await remote.claimed() == [job.id]


async def test_a_paused_type_says_who_paused_it_since_when_and_why(remote: Desk) -> None:
    id = await remote.add()
    await seen(remote)
    await remote.store.pause(remote.tenant, "work", actor=OPERATOR, reason="deploy")
    assert await clauses(remote, id) == ["paused"]
    reported = await details(remote, id)
    assert (reported["by"], reported["reason"], reported["since"]) == (
        OPERATOR,
        "deploy",
        "2027-01-15T08:00:00.000000Z",
    )
    assert await remote.claimed() == []
    await remote.store.pause(remote.tenant, "work", actor=None, reason=None)
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed() == [id]


async def test_the_line_of_an_agent_says_who_has_its_places_and_how_many_are_ahead(remote: Desk) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "a", 1))
    mine = {"agent_kind": "bot", "agent_id": "a"}
    first, second, third = [await remote.add(**mine) for _ in range(3)]
    later = await remote.add(**mine, delay_seconds=30)
    await seen(remote)
    assert [await clauses(remote, id) for id in (first, second, third, later)] == [
        ["ready"], ["agent_busy"], ["agent_busy"], ["due_later"],
    ]  # fmt: skip
    (held,) = await remote.claim(limit=10)
    assert held.id == first
    agent = {"kind": "bot", "id": "a"}
    reported = {"agent": agent, "max_concurrency": 1, "busy_with": [first], "ahead": 0}
    assert await details(remote, second) == reported
    assert await details(remote, third) == reported | {"ahead": 1}
    await remote.do(complete(held))
    assert await clauses(remote, second) == ["ready"]
    assert await details(remote, third) == reported | {"busy_with": [second], "ahead": 0}
    assert await remote.claimed(limit=10) == [second]


async def test_a_strict_agent_is_busy_with_a_job_that_waits_for_people_and_another_is_not(remote: Desk) -> None:
    for agent, strict in (("strict", True), ("loose", False)):
        await remote.store.set_agent(remote.tenant, Agent("bot", agent, 1, strict))
        mine: dict[str, Any] = {"agent_kind": "bot", "agent_id": agent, "type": agent}
        held = await remote.running(**mine)
        next_one = await remote.add(**mine)
        await seen(remote, types=frozenset({agent}))
        await remote.do(request_approval(held))
        if strict:
            assert (await details(remote, next_one))["busy_with"] == [held.id]
        leased = await remote.claimed(types=frozenset({agent}))
        assert (await clauses(remote, next_one), leased) == (
            (["agent_busy"], []) if strict else (["running"], [next_one])
        )


async def test_a_strict_agent_is_busy_with_a_job_that_waits_for_its_children(remote: Desk) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "a", 1, strict=True))
    mine: dict[str, Any] = {"agent_kind": "bot", "agent_id": "a", "type": "parent"}
    parent = await remote.running(**mine)
    child = await remote.add(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child,)))
    next_one = await remote.add(**mine)
    await seen(remote)
    assert (await details(remote, next_one))["busy_with"] == [parent.id]
    assert await clauses(remote, parent.id) == ["waiting_for_children"]


async def test_waiting_for_approval_counts_the_votes(remote: Desk) -> None:
    job, approval = await waiting(remote, required=2, expires_in_seconds=3600)
    await seen(remote)
    await decided(remote, command(approval))
    assert await clauses(remote, job.id) == ["waiting_for_approval"]
    assert await details(remote, job.id) == {
        "approval_id": approval.id,
        "votes": 1,
        "required": 2,
        "opened_at": "2027-01-15T08:00:00.000000Z",
        "expires_at": "2027-01-15T09:00:00.000000Z",
    }
    assert "1 of 2 approvals" in (await why(remote, job.id)).reason.message
    assert await remote.claimed() == []
    await decided(remote, command(approval, actor="user:bob"))
    assert await clauses(remote, job.id) == ["ready"]
    assert await remote.claimed() == [job.id]


async def test_a_gate_that_expired_will_end_its_job(remote: Desk) -> None:
    job, _ = await waiting(remote, expires_in_seconds=10)
    await seen(remote)
    remote.clock.advance(10)
    assert "will fail" in (await why(remote, job.id)).reason.message


async def test_waiting_for_children_names_those_that_have_not_ended(remote: Desk) -> None:
    parent = await remote.running()
    children = [await remote.add(type="child", parent_id=parent.id) for _ in range(2)]
    await remote.do(release(parent, children=tuple(children)))
    await seen(remote, types=frozenset({"work"}))
    assert await clauses(remote, parent.id) == ["waiting_for_children"]
    assert await details(remote, parent.id) == {"children": sorted(children)}
    await remote.do(cancel(children[0]))
    assert await details(remote, parent.id) == {"children": [children[1]]}
    assert await remote.claimed(types=frozenset({"work"})) == []
    await remote.do(cancel(children[1]))
    assert await clauses(remote, parent.id) == ["ready"]
    assert await remote.claimed(types=frozenset({"work"})) == [parent.id]


async def test_a_passed_deadline_decides_before_anything_else(remote: Desk) -> None:
    id = await remote.add(deadline=remote.after(5), delay_seconds=60)
    await remote.store.pause(remote.tenant, "work", actor=OPERATOR, reason=None)
    assert "comes first" in (await why(remote, id)).reason.message
    remote.clock.advance(5)
    assert await clauses(remote, id) == ["deadline_passed"]
    await remote.claim()
    assert await clauses(remote, id) == ["ended"]
    assert await details(remote, id) == {
        "status": "cancelled", "reason": "deadline", "finished_at": "2027-01-15T08:00:05.000000Z",
    }  # fmt: skip


async def test_a_running_job_says_who_has_it_until_when_and_that_it_was_asked_to_stop(remote: Desk) -> None:
    job = await remote.running(worker="w3", lease_seconds=60)
    assert await clauses(remote, job.id) == ["running"]
    assert await details(remote, job.id) == {
        "worker": "w3", "lease_expires_at": "2027-01-15T08:01:00.000000Z", "cancel_requested_at": None,
    }  # fmt: skip
    remote.clock.advance(1)
    await remote.do(cancel(job.id, reason="enough"))
    reported = await details(remote, job.id)
    assert (reported["cancel_requested_at"], reported["cancel_reason"]) == ("2027-01-15T08:00:01.000000Z", "enough")
    remote.clock.advance(60)
    assert "expired" in (await why(remote, job.id)).reason.message


async def test_an_ended_job_says_how_it_ended(remote: Desk) -> None:
    done, broken = await remote.running(type="a"), await remote.running(type="b")
    await remote.do(complete(done))
    await remote.do(fail(broken, retryable=False))
    assert await details(remote, done.id) == {"status": "succeeded", "finished_at": "2027-01-15T08:00:00.000000Z"}
    assert (await details(remote, broken.id))["error"] == {"message": "boom", "kind": "test"}
    assert (await why(remote, broken.id)).reason.message == "it has ended: failed (boom)"


async def test_clauses_that_would_still_hold_are_named_behind_the_one_that_decides(remote: Desk) -> None:
    id = await remote.add(delay_seconds=5, requires=("gpu",))
    await remote.store.pause(remote.tenant, "work", actor=OPERATOR, reason=None)
    lift: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("due_later", lambda: _later(remote, 5)),
        ("paused", lambda: remote.store.pause(remote.tenant, "work", actor=None, reason=None)),
        ("no_worker_for_type", lambda: seen(remote)),
        ("no_worker_with_capabilities", lambda: seen(remote, capabilities=frozenset({"gpu"}))),
    ]
    for clause, lifted in lift:
        assert (await clauses(remote, id))[0] == clause
        assert await remote.claimed() == []
        await lifted()
    assert await clauses(remote, id) == ["ready"]
    assert await remote.claimed(capabilities=frozenset({"gpu"})) == [id]


async def _later(remote: Desk, seconds: float) -> None:
    remote.clock.advance(seconds)


async def test_another_tenants_job_is_unknown_and_its_workers_are_nobody(remote: Desk, rival: Desk) -> None:
    id = await remote.add()
    await seen(rival)
    assert await rival.store.job_snapshot(rival.tenant, id) is None
    assert await remote.store.job_snapshot(remote.tenant, NEVER) is None
    assert await clauses(remote, id) == ["no_worker_for_type"]
