"""Limits: concurrency and rates that jobs reserve while they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from interlock.domain import limits
from interlock.domain.explain import ReasonCode, explain
from interlock.domain.job import Job, NewJob
from interlock.domain.limits import Limit
from interlock.domain.timestamps import when
from interlock.errors import Forbidden, LimitInUse
from interlock.storage.contract import Terms
from tests.contract.builders import OPERATOR, TenantQueue, ask, complete, fail, new_job, release, revoke


async def set_limit(queue: TenantQueue, name: str = "llm", **rules: object) -> None:
    await queue.store.limits.set(queue.tenant, limits.check(Limit(name, **rules)), actor=OPERATOR)  # type: ignore[arg-type]


def uses(*named: tuple[str, str | None, Mapping[str, float]]) -> str:
    return json.dumps([{"name": name, "key": key, "cost": dict(cost)} for name, key, cost in named])


LLM = uses(("llm", None, {}))


async def add(queue: TenantQueue, n: int, **fields: object) -> list[str]:
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    jobs: list[NewJob] = [new_job(**{"limits": LLM, **fields}) for _ in range(n)]
    await queue.store.enqueue(queue.tenant, jobs, terms=terms)
    return [job.id for job in jobs]


async def used(queue: TenantQueue, name: str = "llm") -> int:
    found = await queue.store.limits.get(queue.tenant, name)
    assert found is not None
    return found.state.used


async def available(queue: TenantQueue, unit: str, name: str = "llm") -> float:
    found = await queue.store.limits.get(queue.tenant, name)
    assert found is not None
    return found.state.available[unit]


async def ids(queue: TenantQueue, **fields: object) -> list[str]:
    return [job.id for job in await claim(queue, **fields)]


async def claim(queue: TenantQueue, **fields: object) -> list[Job]:
    return await queue.claim(**{"limit": 10, **fields})


async def test_no_more_jobs_run_than_the_concurrency_allows_and_an_end_lets_the_next_in(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=2)
    made = await add(queue, 4)
    first = await claim(queue)
    assert [job.id for job in first] == made[:2]
    assert await claim(queue) == []
    await queue.do(complete(first[0]))
    assert await ids(queue) == made[2:3]
    assert await used(queue) == 2


async def test_a_full_limit_hides_no_other_job(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1)
    await add(queue, 50)
    other = await add(queue, 1, limits=None)
    assert len(await claim(queue, limit=3)) == 2
    more = await add(queue, 2, limits=None)
    assert await ids(queue) == more
    assert other


async def test_a_rate_admits_its_burst_and_then_what_time_adds(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 10.0}, per_seconds=10.0, burst={"tokens": 4.0})
    made = await add(queue, 10, limits=uses(("llm", None, {"tokens": 2.0})))
    assert await ids(queue) == made[:2]
    queue.clock.now = queue.after(1.9)
    assert await claim(queue) == []
    queue.clock.now = queue.after(0.1)
    assert await ids(queue) == made[2:3]
    queue.clock.now = queue.after(100)
    assert await ids(queue) == made[3:5]  # no more than the burst


@pytest.mark.parametrize(("usage", "left"), [('{"tokens": 1}', 9.0), ('{"tokens": 15}', -5.0), (None, 6.0)])
async def test_the_reported_usage_replaces_the_estimate(queue: TenantQueue, usage: str | None, left: float) -> None:
    await set_limit(queue, units={"tokens": 10.0}, per_seconds=1000.0)
    await add(queue, 1, limits=uses(("llm", None, {"tokens": 4.0})))
    (job,) = await claim(queue)
    assert await available(queue, "tokens") == 6.0
    await queue.do(complete(job, usage=usage))
    assert await available(queue, "tokens") == left
    await queue.do(complete(job, usage=usage))  # a repeated report settles nothing
    assert await available(queue, "tokens") == left


@pytest.mark.parametrize("end", ["fail", "release", "revoke", "expire"])
async def test_every_end_of_a_lease_frees_its_place_and_keeps_the_estimate(queue: TenantQueue, end: str) -> None:
    await set_limit(queue, concurrency=1, units={"tokens": 10.0}, per_seconds=1e6)
    await add(queue, 1, limits=uses(("llm", None, {"tokens": 4.0})))
    (job,) = await claim(queue, lease_seconds=5)
    match end:
        case "fail":
            await queue.do(fail(job))
        case "release":
            await queue.do(release(job))
        case "revoke":
            await queue.do(revoke(job.id))
        case "expire":
            queue.clock.now = queue.after(6)
            await queue.sweep()
    assert await used(queue) == 0
    assert 6.0 <= await available(queue, "tokens") < 6.001
    assert isinstance(await queue.store.carry_out(queue.tenant, [complete(job, usage='{"tokens": 0}')]), list)
    assert 6.0 <= await available(queue, "tokens") < 6.001  # a late report charges nothing


async def test_a_job_that_lacks_room_in_one_limit_holds_nothing_in_another(queue: TenantQueue) -> None:
    await set_limit(queue, "a", concurrency=1)
    await set_limit(queue, "b", concurrency=1)
    both = uses(("a", None, {}), ("b", None, {}))
    (only_b,) = await add(queue, 1, limits=uses(("b", None, {})))
    await add(queue, 1, limits=both)
    assert await ids(queue) == [only_b]
    assert await used(queue, "a") == 0
    (only_a,) = await add(queue, 1, limits=uses(("a", None, {})))
    assert await ids(queue) == [only_a]


async def test_each_key_has_its_own_room(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    a = await add(queue, 3, limits=uses(("llm", "a", {})))
    b = await add(queue, 3, limits=uses(("llm", "b", {})))
    assert await ids(queue) == [a[0], b[0]]
    states = await queue.store.limits.keys(queue.tenant, "llm")
    assert [(state.key, state.used, state.waiting) for state in states] == [("a", 1, 2), ("b", 1, 2)]


async def test_a_large_cost_is_not_starved_by_small_ones(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": 10.0})
    await add(queue, 1, limits=uses(("llm", None, {"tokens": 8.0})))
    assert len(await claim(queue)) == 1
    (large,) = await add(queue, 1, limits=uses(("llm", None, {"tokens": 10.0})))
    await add(queue, 5, limits=uses(("llm", None, {"tokens": 1.0})), type="small")
    for _ in range(7):
        queue.clock.now = queue.after(1)
        assert await claim(queue) == []
    queue.clock.now = queue.after(1)
    assert await claim(queue, types=frozenset({"small"})) == []  # the place of the large one
    assert await ids(queue, types=frozenset({"work"})) == [large]


async def test_priority_goes_first_within_a_limit(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1)
    await add(queue, 2)
    (urgent,) = await add(queue, 1, priority=5)
    assert await ids(queue) == [urgent]


async def test_a_hold_stops_claims_until_its_time_and_the_later_one_wins(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=5)
    await add(queue, 1)
    hold = queue.store.limits.hold
    await hold(queue.tenant, "llm", key="", until=queue.after(60), actor=OPERATOR, reason="429")
    await hold(queue.tenant, "llm", key="", until=queue.after(30), actor=OPERATOR, reason=None)
    queue.clock.now = queue.after(59)
    assert await claim(queue) == []
    queue.clock.now = queue.after(1)
    assert len(await claim(queue)) == 1


async def test_releasing_a_hold_opens_the_limit(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=5)
    await add(queue, 1)
    await queue.store.limits.hold(queue.tenant, "llm", key="", until=queue.after(60), actor=OPERATOR, reason=None)
    await queue.store.limits.release(queue.tenant, "llm", key="", actor=OPERATOR)
    assert len(await claim(queue)) == 1


async def test_a_lower_limit_acts_as_jobs_end_and_a_higher_one_at_once(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=3)
    made = await add(queue, 5)
    running = await claim(queue)
    await set_limit(queue, concurrency=2)
    await queue.do(complete(running[0]))
    assert await claim(queue) == []
    await set_limit(queue, concurrency=4)
    assert await ids(queue) == made[3:5]


async def test_a_new_rate_keeps_what_is_available_up_to_the_new_burst(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 10.0}, per_seconds=1e6)
    await add(queue, 1, limits=uses(("llm", None, {"tokens": 4.0})))
    await claim(queue)
    await set_limit(queue, units={"tokens": 100.0}, per_seconds=1e6)
    assert await available(queue, "tokens") == 6.0
    await set_limit(queue, units={"tokens": 5.0}, per_seconds=1e6)
    assert await available(queue, "tokens") == 5.0


async def test_a_cost_above_a_lowered_burst_takes_a_full_bucket_and_leaves_a_debt(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 10.0}, per_seconds=10.0)
    await add(queue, 1, limits=uses(("llm", None, {"tokens": 8.0})))
    await set_limit(queue, units={"tokens": 10.0}, per_seconds=10.0, burst={"tokens": 5.0})
    assert len(await claim(queue)) == 1
    assert await available(queue, "tokens") == -3.0


async def test_a_limit_that_unfinished_jobs_name_cannot_be_deleted(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1)
    await add(queue, 1)
    (job,) = await claim(queue)
    with pytest.raises(LimitInUse):
        await queue.store.limits.delete(queue.tenant, "llm", actor=OPERATOR)
    await queue.do(complete(job))
    assert await queue.store.limits.delete(queue.tenant, "llm", actor=OPERATOR)
    assert await queue.store.limits.get(queue.tenant, "llm") is None


async def test_a_clock_that_goes_back_adds_no_room(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": 1.0})
    await add(queue, 3, limits=uses(("llm", None, {"tokens": 1.0})))
    assert len(await claim(queue)) == 1
    queue.clock.now = queue.after(-0.5)
    await add(queue, 1, limits=uses(("llm", None, {"tokens": 1.0})))
    assert await claim(queue) == []
    queue.clock.now = queue.after(0.5)
    assert await claim(queue) == []


async def test_a_paused_type_holds_no_limit(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1)
    await add(queue, 3, type="paused")
    await queue.store.registry.pause(queue.tenant, "paused", actor=OPERATOR, reason=None)
    (other,) = await add(queue, 1)
    assert await ids(queue) == [other]


async def test_merged_claims_share_the_room(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=2)
    made = await add(queue, 4)
    leased = await queue.store.claim(queue.tenant, ask(limit=3), claimants=("w1", "w2", "w3"))
    assert [job.id for job in leased] == made[:2]
    assert {job.worker for job in leased} == {"w1", "w2"}


async def test_a_worker_holds_only_a_limit_that_its_running_job_names(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=5, keyed=True)
    await add(queue, 2, limits=uses(("llm", "a", {})))
    (job,) = await claim(queue, limit=1, worker="w/1")

    async def hold(worker: str, key: str = "a") -> None:
        until = queue.after(60)
        await queue.store.limits.hold(
            queue.tenant, "llm", key=key, until=until, actor=OPERATOR, reason=None, worker=worker
        )

    for worker, key in (("v", "a"), ("w/", "a"), ("w", "b")):
        with pytest.raises(Forbidden):
            await hold(worker, key)
    await hold("w")
    assert await claim(queue) == []
    await queue.do(complete(job))
    with pytest.raises(Forbidden):
        await hold("w")


async def why(queue: TenantQueue, job_id: str) -> Mapping[str, Any]:
    snapshot = await queue.store.workers.job_snapshot(queue.tenant, job_id)
    assert snapshot is not None
    found = explain(snapshot)
    assert found.clause is ReasonCode.WAITING_FOR_LIMIT
    return found.reason.details


async def test_why_names_the_limit_that_a_job_waits_for(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": 10.0}, keyed=True)
    made = await add(queue, 3, limits=uses(("llm", "a", {"tokens": 8.0})))
    (job,) = await claim(queue, limit=1)
    full = await why(queue, made[2])
    assert (full["limit"], full["key"], full["unit"], full["opens_at"], full["ahead"]) == (
        "llm", "a", "concurrency", None, 1,
    )  # fmt: skip
    await queue.do(complete(job))
    assert await claim(queue) == []
    lacking = await why(queue, made[1])
    assert (lacking["unit"], lacking["available"], lacking["needed"], lacking["ahead"]) == ("tokens", 2.0, 8.0, 0)
    assert lacking["opens_at"] == when(queue.after(6))
    assert (await why(queue, made[2]))["opens_at"] == when(queue.after(6))  # it does not pass the other one
    until = queue.after(60)
    await queue.store.limits.hold(queue.tenant, "llm", key="a", until=until, actor=OPERATOR, reason="429")
    held = await why(queue, made[1])
    assert (held["held"], held["opens_at"], held["hold_reason"]) == (True, when(until), "429")


async def test_due_jobs_are_listed_by_limit_and_key(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1)
    await set_limit(queue, "customer", concurrency=1, keyed=True)
    made = await add(queue, 3)
    acme, other = [
        (await add(queue, 1, limits=uses(("llm", None, {}), ("customer", key, {}))))[0] for key in ("acme", "other")
    ]
    await claim(queue)
    due = queue.store.limits.due
    assert set(await due(queue.tenant, "llm", 10)) == {*made[1:], acme, other}
    assert len(await due(queue.tenant, "llm", 2)) == 2
    assert set(await due(queue.tenant, "customer", 10)) == {acme, other}
    assert await due(queue.tenant, "customer", 10, key="acme") == [acme]
    assert await due(queue.tenant, "unknown", 10) == []
