"""Why a job does not run, clause by clause: what is said is what holds the job back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from interlock.domain.explain import Clause
from interlock.domain.registry import Agent
from interlock.domain.worker_presence import LATELY_SECONDS, Sighting
from tests.contract.approvals import ballot, decided, open_gate, waiting
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


async def test_a_ready_job_is_granted_to_the_worker_that_is_named(desk: Desk) -> None:
    id = await desk.add()
    await seen(desk, worker="w7")
    told = await why(desk, id)
    assert (told.clause, told.also) == (Clause.READY, ())
    assert (told.reason.details["workers"], told.reason.details["workers_count"]) == (["w7"], 1)
    assert "w7" in told.reason.message
    assert await desk.claimed(worker="w7") == [id]


async def test_without_a_worker_that_takes_the_type_the_type_is_the_clause(desk: Desk) -> None:
    id = await desk.add(type="render")
    assert await clauses(desk, id) == ["no_worker_for_type"]
    await seen(desk, types=frozenset({"mail"}))
    assert await desk.claimed(types=frozenset({"mail"})) == []
    assert await clauses(desk, id) == ["no_worker_for_type"]
    assert await details(desk, id) == {"type": "render", "workers_seen": 1}
    await seen(desk, types=frozenset({"mail", "render"}))
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed(types=frozenset({"mail", "render"})) == [id]


async def test_a_worker_that_has_not_asked_for_long_and_holds_nothing_is_not_there(desk: Desk) -> None:
    id = await desk.add()
    await seen(desk)
    desk.clock.advance(LATELY_SECONDS - 0.001)
    assert await clauses(desk, id) == ["ready"]
    desk.clock.advance(0.001)
    assert await clauses(desk, id) == ["no_worker_for_type"]


async def test_a_worker_that_holds_a_lease_is_there_though_it_asks_no_more(desk: Desk) -> None:
    held = await desk.running(type="long", lease_seconds=600)
    await seen(desk, types=frozenset({"long"}))
    id = await desk.add(type="long")
    desk.clock.advance(599)
    told = await why(desk, id)
    assert told.clause == Clause.READY
    assert "busy" in told.reason.message
    assert await desk.claimed(types=frozenset({"long"}), worker=held.worker) == [id]
    another = await desk.add(type="long")
    desk.clock.advance(61)  # both leases have run out
    assert await clauses(desk, another) == ["no_worker_for_type"]


async def test_the_capabilities_that_nobody_has_are_named(desk: Desk) -> None:
    id = await desk.add(requires=("gpu", "net"))
    await seen(desk, worker="w1", capabilities=frozenset({"net"}))
    assert await clauses(desk, id) == ["no_worker_with_capabilities"]
    assert await details(desk, id) == {"requires": ["gpu", "net"], "missing": ["gpu"]}
    assert await desk.claimed(capabilities=frozenset({"net"})) == []
    await seen(desk, worker="w2", capabilities=frozenset({"gpu"}))
    assert (await details(desk, id))["missing"] == []  # each is there, but in no one worker
    await seen(desk, worker="w3", types=frozenset({"other"}), capabilities=frozenset({"gpu", "net"}))
    assert await clauses(desk, id) == ["no_worker_with_capabilities"]
    await seen(desk, worker="w4", capabilities=frozenset({"gpu", "net", "disk"}))
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed(worker="w4", capabilities=frozenset({"gpu", "net", "disk"})) == [id]


async def test_a_repository_that_no_able_worker_may_have_is_named(desk: Desk) -> None:
    id = await desk.add(repository="org/x", requires=("gpu",))
    able = {"capabilities": frozenset({"gpu"})}
    await seen(desk, repositories=frozenset({"org/y"}), **able)
    await seen(desk, worker="w2", repositories=frozenset({"org/x"}))
    assert await clauses(desk, id) == ["no_worker_for_repository"]
    assert await details(desk, id) == {"repository": "org/x"}
    assert await desk.claimed(repositories=frozenset({"org/y"}), **able) == []
    await seen(desk, repositories=frozenset({"org/x"}), **able)
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed(repositories=frozenset({"org/x"}), **able) == [id]


async def test_a_job_without_a_repository_waits_for_a_worker_bound_to_none(desk: Desk) -> None:
    id = await desk.add()
    await seen(desk, repositories=frozenset({"org/x"}))
    await seen(desk, worker="w2", repositories=frozenset())
    assert await clauses(desk, id) == ["no_worker_for_repository"]
    assert await details(desk, id) == {"repository": None}
    await seen(desk, worker="w3")
    assert await clauses(desk, id) == ["ready"]


async def test_an_affinity_key_that_nobody_names_is_the_clause(desk: Desk) -> None:
    id = await desk.add(affinity_key="h1")
    await seen(desk)
    assert await clauses(desk, id) == ["no_worker_for_affinity_key"]
    assert await details(desk, id) == {"affinity_key": "h1"}
    assert await desk.claimed() == []
    await seen(desk, affinity_keys=None)
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed(affinity_keys=None) == [id]


async def test_one_worker_may_ask_for_several_things(desk: Desk) -> None:
    mail, gpu = await desk.add(type="mail"), await desk.add(type="render", requires=("gpu",))
    asks = (
        ask(types=frozenset({"mail"})),
        ask(types=frozenset({"render"}), capabilities=frozenset({"gpu"})),
    )
    await desk.store.note_workers(desk.tenant, [Sighting("w1", asks)])
    assert await clauses(desk, mail) == ["ready"]
    assert await clauses(desk, gpu) == ["ready"]
    assert [await desk.claimed(**one._asdict()) for one in asks] == [[mail], [gpu]]


async def test_a_job_that_is_due_later_says_when(desk: Desk) -> None:
    id = await desk.add(delay_seconds=5)
    await seen(desk)
    assert await clauses(desk, id) == ["due_later"]
    assert (await why(desk, id)).reason.message == "it is due at 2027-01-15T08:00:05.000000Z"
    assert await desk.claimed() == []
    desk.clock.advance(5)
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed() == [id]


async def test_a_failed_attempt_is_due_later_too(desk: Desk) -> None:
    job = await desk.running(backoff=FIXED)
    await seen(desk)
    await desk.do(fail(job))
    assert await clauses(desk, job.id) == ["due_later"]
    assert "last attempt failed" in (await why(desk, job.id)).reason.message
    desk.clock.advance(10)
    assert await clauses(desk, job.id) == ["ready"]
    assert await desk.claimed() == [job.id]


async def test_a_paused_type_says_who_paused_it_since_when_and_why(desk: Desk) -> None:
    id = await desk.add()
    await seen(desk)
    await desk.store.pause(desk.tenant, "work", actor=OPERATOR, reason="deploy")
    assert await clauses(desk, id) == ["paused"]
    told = await details(desk, id)
    assert (told["by"], told["reason"], told["since"]) == (OPERATOR, "deploy", "2027-01-15T08:00:00.000000Z")
    assert await desk.claimed() == []
    await desk.store.pause(desk.tenant, "work", actor=None, reason=None)
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed() == [id]


async def test_the_line_of_an_agent_says_who_has_its_places_and_how_many_are_ahead(desk: Desk) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "a", 1))
    mine = {"agent_kind": "bot", "agent_id": "a"}
    first, second, third = [await desk.add(**mine) for _ in range(3)]
    later = await desk.add(**mine, delay_seconds=30)
    await seen(desk)
    assert [await clauses(desk, id) for id in (first, second, third, later)] == [
        ["ready"], ["agent_busy"], ["agent_busy"], ["due_later"],
    ]  # fmt: skip
    (held,) = await desk.claim(limit=10)
    assert held.id == first
    agent = {"kind": "bot", "id": "a"}
    told = {"agent": agent, "max_concurrency": 1, "busy_with": [first], "ahead": 0}
    assert await details(desk, second) == told
    assert await details(desk, third) == told | {"ahead": 1}
    await desk.do(complete(held))
    assert await clauses(desk, second) == ["ready"]
    assert await details(desk, third) == told | {"busy_with": [second], "ahead": 0}
    assert await desk.claimed(limit=10) == [second]


async def test_a_strict_agent_is_busy_with_a_job_that_waits_for_people_and_another_is_not(desk: Desk) -> None:
    for agent, strict in (("strict", True), ("loose", False)):
        await desk.store.set_agent(desk.tenant, Agent("bot", agent, 1, strict))
        mine: dict[str, Any] = {"agent_kind": "bot", "agent_id": agent, "type": agent}
        held = await desk.running(**mine)
        next_one = await desk.add(**mine)
        await seen(desk, types=frozenset({agent}))
        await desk.do(open_gate(held))
        if strict:
            assert (await details(desk, next_one))["busy_with"] == [held.id]
        granted = await desk.claimed(types=frozenset({agent}))
        assert (await clauses(desk, next_one), granted) == (
            (["agent_busy"], []) if strict else (["running"], [next_one])
        )


async def test_a_strict_agent_is_busy_with_a_job_that_waits_for_its_children(desk: Desk) -> None:
    await desk.store.set_agent(desk.tenant, Agent("bot", "a", 1, strict=True))
    mine: dict[str, Any] = {"agent_kind": "bot", "agent_id": "a", "type": "parent"}
    parent = await desk.running(**mine)
    child = await desk.add(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child,)))
    next_one = await desk.add(**mine)
    await seen(desk)
    assert (await details(desk, next_one))["busy_with"] == [parent.id]
    assert await clauses(desk, parent.id) == ["waiting_for_children"]


async def test_waiting_for_approval_counts_the_votes(desk: Desk) -> None:
    job, gate = await waiting(desk, required=2, expires_in_seconds=3600)
    await seen(desk)
    await decided(desk, ballot(gate))
    assert await clauses(desk, job.id) == ["waiting_for_approval"]
    assert await details(desk, job.id) == {
        "approval_id": gate.id,
        "votes": 1,
        "required": 2,
        "opened_at": "2027-01-15T08:00:00.000000Z",
        "expires_at": "2027-01-15T09:00:00.000000Z",
    }
    assert "1 of 2 approvals" in (await why(desk, job.id)).reason.message
    assert await desk.claimed() == []
    await decided(desk, ballot(gate, actor="user:bob"))
    assert await clauses(desk, job.id) == ["ready"]
    assert await desk.claimed() == [job.id]


async def test_a_gate_that_expired_will_end_its_job(desk: Desk) -> None:
    job, _ = await waiting(desk, expires_in_seconds=10)
    await seen(desk)
    desk.clock.advance(10)
    assert "will be ended" in (await why(desk, job.id)).reason.message


async def test_waiting_for_children_names_those_that_have_not_ended(desk: Desk) -> None:
    parent = await desk.running()
    children = [await desk.add(type="child", parent_id=parent.id) for _ in range(2)]
    await desk.do(release(parent, children=tuple(children)))
    await seen(desk, types=frozenset({"work"}))
    assert await clauses(desk, parent.id) == ["waiting_for_children"]
    assert await details(desk, parent.id) == {"children": sorted(children)}
    await desk.do(cancel(children[0]))
    assert await details(desk, parent.id) == {"children": [children[1]]}
    assert await desk.claimed(types=frozenset({"work"})) == []
    await desk.do(cancel(children[1]))
    assert await clauses(desk, parent.id) == ["ready"]
    assert await desk.claimed(types=frozenset({"work"})) == [parent.id]


async def test_a_passed_deadline_decides_before_anything_else(desk: Desk) -> None:
    id = await desk.add(deadline=desk.after(5), delay_seconds=60)
    await desk.store.pause(desk.tenant, "work", actor=OPERATOR, reason=None)
    assert "comes first" in (await why(desk, id)).reason.message
    desk.clock.advance(5)
    assert await clauses(desk, id) == ["deadline_passed"]
    await desk.claim()
    assert await clauses(desk, id) == ["ended"]
    assert await details(desk, id) == {
        "status": "cancelled", "reason": "deadline", "finished_at": "2027-01-15T08:00:05.000000Z",
    }  # fmt: skip


async def test_a_running_job_says_who_has_it_until_when_and_that_it_was_asked_to_stop(desk: Desk) -> None:
    job = await desk.running(worker="w3", lease_seconds=60)
    assert await clauses(desk, job.id) == ["running"]
    assert await details(desk, job.id) == {
        "worker": "w3", "lease_expires_at": "2027-01-15T08:01:00.000000Z", "cancel_requested_at": None,
    }  # fmt: skip
    desk.clock.advance(1)
    await desk.do(cancel(job.id, reason="enough"))
    told = await details(desk, job.id)
    assert (told["cancel_requested_at"], told["cancel_reason"]) == ("2027-01-15T08:00:01.000000Z", "enough")
    desk.clock.advance(60)
    assert "ran out" in (await why(desk, job.id)).reason.message


async def test_an_ended_job_says_how_it_ended(desk: Desk) -> None:
    done, broken = await desk.running(type="a"), await desk.running(type="b")
    await desk.do(complete(done))
    await desk.do(fail(broken, retryable=False))
    assert await details(desk, done.id) == {"status": "succeeded", "finished_at": "2027-01-15T08:00:00.000000Z"}
    assert (await details(desk, broken.id))["error"] == {"message": "boom", "kind": "test"}
    assert (await why(desk, broken.id)).reason.message == "it has ended: failed (boom)"


async def test_clauses_that_would_still_hold_are_named_behind_the_one_that_decides(desk: Desk) -> None:
    id = await desk.add(delay_seconds=5, requires=("gpu",))
    await desk.store.pause(desk.tenant, "work", actor=OPERATOR, reason=None)
    lift: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("due_later", lambda: _later(desk, 5)),
        ("paused", lambda: desk.store.pause(desk.tenant, "work", actor=None, reason=None)),
        ("no_worker_for_type", lambda: seen(desk)),
        ("no_worker_with_capabilities", lambda: seen(desk, capabilities=frozenset({"gpu"}))),
    ]
    for clause, lifted in lift:
        assert (await clauses(desk, id))[0] == clause
        assert await desk.claimed() == []
        await lifted()
    assert await clauses(desk, id) == ["ready"]
    assert await desk.claimed(capabilities=frozenset({"gpu"})) == [id]


async def _later(desk: Desk, seconds: float) -> None:
    desk.clock.advance(seconds)


async def test_another_tenants_job_is_unknown_and_its_workers_are_nobody(desk: Desk, rival: Desk) -> None:
    id = await desk.add()
    await seen(rival)
    assert await rival.store.circumstances(rival.tenant, id) is None
    assert await desk.store.circumstances(desk.tenant, NEVER) is None
    assert await clauses(desk, id) == ["no_worker_for_type"]
