"""Limits with many keys: jobs of exhausted keys wait apart, in their order, and come back whatever gives them room."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from interlock.domain.decide import Command
from interlock.domain.edit import EditJob
from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.limits import Limit, check, demands_of
from tests.contract.builders import (
    FIXED,
    OPERATOR,
    TenantQueue,
    cancel,
    complete,
    fail,
    release,
    revoke,
)
from tests.contract.concurrency import BOT, limit
from tests.contract.connections import SqlConnection
from tests.contract.test_limits import add, claim, ids, set_limit, used, uses

Named = tuple[str, str | None, dict[str, float]]


def of(key: str, **cost: float) -> str:
    return uses(("llm", key, cost))


async def close(queue: TenantQueue, key: str, n: int = 1) -> list[Job]:
    """Run as many jobs of a key as its limit admits, and park the others."""
    jobs = await claim(queue, limit=100)
    assert len([job for job in jobs if demands_of(job.limits or "[]")[0].key == key]) == n
    return jobs


def edited(job_id: str, **fields: object) -> EditJob:
    return EditJob(job_id, actor=OPERATOR, **fields)  # type: ignore[arg-type]


async def test_many_keys_are_few_eligibility_keys(queue: TenantQueue, sql: SqlConnection) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    for i in range(60):
        await add(queue, 3, limits=of(f"k{i}"))
    assert len(await claim(queue, limit=200)) == 60
    assert await ids(queue, limit=200) == []
    ((n,),) = await sql.run("SELECT count(*) FROM eligibility_key WHERE tenant = $1", queue.tenant)
    assert n <= 2


async def test_parked_jobs_of_a_key_come_in_their_order(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    made = await add(queue, 4, limits=of("a"))
    (running,) = await close(queue, "a")
    (urgent,) = await add(queue, 1, limits=of("a"), priority=5)
    for expected in [urgent, *made[1:]]:
        await queue.do(complete(running))
        (running,) = await claim(queue)
        assert running.id == expected


async def test_a_job_that_arrives_does_not_pass_a_parked_one(queue: TenantQueue) -> None:
    await set_limit(queue, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": 10.0}, keyed=True)
    await add(queue, 1, limits=of("a", tokens=8.0))
    await claim(queue)
    (large,) = await add(queue, 1, limits=of("a", tokens=8.0))
    assert await claim(queue) == []
    (small,) = await add(queue, 1, limits=of("a", tokens=1.0))
    queue.clock.now = queue.after(3)
    assert await claim(queue) == []
    queue.clock.now = queue.after(3)
    assert await ids(queue) == [large]
    queue.clock.now = queue.after(1)
    assert await ids(queue) == [small]


@pytest.mark.parametrize("how", ["complete", "fail", "release", "revoke", "cancel", "expire"])
async def test_every_end_of_a_lease_brings_back_the_next_parked_job(queue: TenantQueue, how: str) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    made = await add(queue, 3, limits=of("a"), backoff=FIXED)
    (job,) = await claim(queue, lease_seconds=30.0)
    match how:
        case "complete":
            await queue.do(complete(job))
        case "fail":
            await queue.do(fail(job))
        case "release":
            await queue.do(release(job, delay_seconds=100))
        case "revoke":
            await queue.do(revoke(job.id))
        case "cancel":
            await queue.do(cancel(job.id, force=True))
        case "expire":
            queue.clock.advance(31)
            await queue.sweep()
    found = await ids(queue)
    assert found == [made[0] if how == "revoke" else made[1]]


async def test_a_waiting_job_that_was_next_and_is_cancelled_lets_the_one_after_it_in(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    made = await add(queue, 4, limits=of("a"))
    (running,) = await close(queue, "a")
    await queue.do(complete(running))
    assert await ids(queue, types=frozenset({"other"})) == []  # shows the next one
    await queue.do(cancel(made[1]))
    assert await ids(queue) == [made[2]]


async def test_a_deadline_of_the_next_job_lets_the_one_after_it_in(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    await add(queue, 1, limits=of("a"))
    await add(queue, 1, limits=of("a"), deadline=queue.after(10))
    (last,) = await add(queue, 1, limits=of("a"))
    (running,) = await close(queue, "a")
    queue.clock.advance(11)
    await queue.sweep()
    await queue.do(complete(running))
    assert await ids(queue) == [last]


async def test_a_higher_priority_given_to_a_parked_job_takes_effect(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    made = await add(queue, 4, limits=of("a"))
    (running,) = await close(queue, "a")
    await queue.do(edited(made[3], priority=9))
    await queue.do(complete(running))
    assert await ids(queue) == [made[3]]


async def test_a_parked_job_that_is_postponed_comes_at_its_time(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    made = await add(queue, 3, limits=of("a"))
    (running,) = await close(queue, "a")
    await queue.do(edited(made[1], run_at=queue.after(60)))
    await queue.do(complete(running))
    (running,) = await claim(queue)
    assert running.id == made[2]
    await queue.do(complete(running))
    assert await claim(queue) == []
    queue.clock.advance(60)
    assert await ids(queue) == [made[1]]


@pytest.mark.parametrize("how", ["raise", "concurrency goes", "hold ends", "hold is released"])
async def test_operators_bring_back_parked_jobs(queue: TenantQueue, how: str) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    made = await add(queue, 3, limits=of("a"))
    limits = queue.store.limits
    if how.startswith("hold"):
        await limits.hold(queue.tenant, "llm", key="a", until=queue.after(60), actor=OPERATOR, reason=None)
        assert await claim(queue) == []
    else:
        await close(queue, "a")
    match how:
        case "raise":
            await set_limit(queue, concurrency=3, keyed=True)
            assert await ids(queue) == made[1:]
        case "concurrency goes":
            await set_limit(queue, units={"tokens": 1e6}, keyed=True)
            assert await ids(queue) == made[1:]
        case "hold ends":
            queue.clock.advance(60)
            assert await ids(queue) == made[:1]
        case "hold is released":
            await limits.release(queue.tenant, "llm", key="a", actor=OPERATOR)
            assert await ids(queue) == made[:1]


async def test_a_rate_brings_back_parked_jobs_as_it_refills(queue: TenantQueue) -> None:
    await set_limit(queue, units={"requests": 2.0}, per_seconds=1.0, burst={"requests": 2.0}, keyed=True)
    made = await add(queue, 60, limits=of("a", requests=1.0))
    got = []
    for _ in range(30):
        found = await ids(queue, limit=100)
        assert len(found) == 2
        got += found
        queue.clock.advance(1)
    assert got == made


async def test_parked_jobs_of_a_type_without_workers_hold_no_room(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    await add(queue, 30, limits=of("a"), type="idle")
    work = await add(queue, 2, limits=of("a"))
    (running,) = await claim(queue)  # of type idle
    assert await claim(queue) == []
    await queue.do(complete(running))
    (running,) = await claim(queue, types=frozenset({"work"}))
    assert running.id == work[0]
    await queue.do(complete(running))
    assert await ids(queue, types=frozenset({"work"})) == work[1:]


async def test_a_job_with_two_keys_parked_in_one_holds_nothing_of_the_other(queue: TenantQueue) -> None:
    await set_limit(queue, "model", concurrency=1, keyed=True)
    await set_limit(queue, "customer", concurrency=1, keyed=True)
    blocked = await add(queue, 40, limits=uses(("model", "m", {}), ("customer", "a", {})))
    await add(queue, 1, limits=uses(("customer", "b", {})))
    free = await add(queue, 2, limits=uses(("model", "m", {}), ("customer", "c", {})))
    first = await claim(queue, limit=2, lease_seconds=600.0)
    assert first[0].id == blocked[0]
    await queue.do(complete(first[0]))
    await queue.store.limits.hold(queue.tenant, "customer", key="a", until=queue.after(60), actor=OPERATOR, reason=None)
    (next_one,) = await claim(queue, limit=10, lease_seconds=600.0)
    assert next_one.id == free[0]
    await queue.do(complete(next_one))
    (last,) = await claim(queue, lease_seconds=600.0)
    assert last.id == free[1]
    queue.clock.advance(60)
    await queue.do(complete(last))
    assert await ids(queue) == [blocked[1]]


async def test_the_state_of_each_key_counts_parked_jobs(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, keyed=True)
    await add(queue, 3, limits=of("a"))
    await close(queue, "a")
    await add(queue, 2, limits=of("a"))
    await add(queue, 2, limits=of("b"))
    await claim(queue, limit=1)
    states = {state.key: state for state in await queue.store.limits.keys(queue.tenant, "llm")}
    assert (states["a"].used, states["a"].waiting, states["b"].used, states["b"].waiting) == (1, 4, 1, 1)
    found = await queue.store.limits.get(queue.tenant, "llm")
    assert found is not None
    assert (found.state.used, found.state.waiting) == (2, 5)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_stranded_whatever_happens(queue: TenantQueue, sql: SqlConnection, seed: int) -> None:
    """Random operations; then everything is drained: no job is left, and every lease was settled once."""
    dice = random.Random(seed)
    await set_limit(queue, "customer", concurrency=2, keyed=True)
    await set_limit(queue, "tokens", units={"tokens": 20.0}, per_seconds=1.0, keyed=True)
    await set_limit(queue, "all", concurrency=9)
    await limit(queue, 2, strict=False)
    await limit(queue, 1, strict=True, id="2")
    made: list[str] = []
    running: list[Job] = []
    for _ in range(60):
        roll = dice.random()
        if roll < 0.25:
            named: list[Named] = [("customer", f"c{dice.randrange(5)}", {})] if dice.random() < 0.8 else []
            named += [("tokens", f"t{dice.randrange(2)}", {"tokens": dice.choice((1.0, 7.0, 15.0))})] * (
                dice.random() < 0.5
            )
            named += [("all", None, {})] * (dice.random() < 0.5)
            dice.shuffle(named)
            fields = {"type": dice.choice(("work", "other")), "priority": dice.choice((0, 0, 5)), "max_attempts": 50}
            fields |= dice.choice(({}, BOT, BOT | {"agent_id": "2"}))
            made += await add(queue, dice.randrange(1, 8), limits=uses(*named) if named else None, **fields)
        elif roll < 0.55:
            types = dice.choice((None, frozenset({"work"})))
            running += await claim(queue, limit=dice.choice((1, 3, 20)), types=types, lease_seconds=30.0)
            most_at_once(running)
        elif roll < 0.75:
            for job in dice.sample(running, min(len(running), 3)):
                running.remove(job)
                ends: list[Command] = [complete(job), fail(job), release(job), revoke(job.id)]
                order = dice.choice(ends)
                await queue.store.carry_out(queue.tenant, [order])
        elif roll < 0.85:
            queue.clock.advance(dice.choice((0.3, 1.0, 5.0)))
            if dice.random() < 0.2:
                queue.clock.advance(31)
                await queue.sweep()
                running.clear()
        elif made:
            await disturb(queue, dice, dice.choice(made))
    await set_limit(queue, "customer", concurrency=2, keyed=True)
    left = await drain(queue, made)
    assert left == Counter()
    for name in ("customer", "tokens", "all"):
        assert await used(queue, name) == 0
    ((parked,),) = await sql.run("SELECT count(*) FROM flow_bucket WHERE tenant = $1 AND used <> 0", queue.tenant)
    assert parked == 0
    await queue.verify()


def most_at_once(running: Sequence[Job]) -> None:
    taken = Counter(
        (demand.name, demand.key)
        for job in running
        for demand in demands_of(job.limits or "[]")
        if demand.name == "customer"
    )
    assert all(n <= 3 for n in taken.values()), taken


async def disturb(queue: TenantQueue, dice: random.Random, job_id: str) -> None:
    limits, key = queue.store.limits, f"c{dice.randrange(5)}"
    match dice.randrange(5):
        case 0:
            await queue.store.carry_out(queue.tenant, [cancel(job_id)])
        case 1:
            await queue.store.carry_out(queue.tenant, [edited(job_id, priority=dice.choice((-3, 0, 7)))])
        case 2:
            await set_limit(queue, "customer", concurrency=dice.choice((1, 2, 3)), keyed=True)
        case 3:
            await limits.hold(
                queue.tenant, "customer", key=key, until=queue.after(dice.choice((1, 60))), actor=OPERATOR, reason=None
            )
        case 4:
            await limits.release(queue.tenant, "customer", key=key, actor=OPERATOR)


async def drain(queue: TenantQueue, made: Sequence[str]) -> Counter[Status]:
    """Complete everything, and count the jobs that no claim returned."""
    quiet = 0
    while quiet < 5:
        queue.clock.advance(120 if quiet == 0 else 20)
        await queue.sweep()
        found = await claim(queue, limit=7)
        quiet = 0 if found else quiet + 1
        for job in found:
            await queue.store.carry_out(queue.tenant, [complete(job)])
    jobs = await queue.store.get(queue.tenant, made)
    return Counter(job.status for job in jobs if job is not None and job.status not in TERMINAL)


async def test_idle_keys_are_forgotten_and_others_stay(queue: TenantQueue) -> None:
    await set_limit(queue, concurrency=1, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": 10.0}, keyed=True)
    for key in ("debt", "held", "idle", "running", "waiting", "waiting"):
        await add(queue, 1, limits=of(key, tokens=10.0))
    jobs = {demands_of(job.limits or "")[0].key: job for job in await claim(queue, lease_seconds=600.0)}
    for key in ("debt", "held", "idle"):
        usage = '{"tokens":100}' if key == "debt" else None
        await queue.do(complete(jobs[key], usage=usage))
    await queue.store.limits.hold(queue.tenant, "llm", key="held", until=queue.after(60), actor=OPERATOR, reason=None)
    assert await claim(queue) == []
    queue.clock.advance(10)
    await queue.store.limits.forget_idle(2)
    states = await queue.store.limits.keys(queue.tenant, "llm")
    assert [state.key for state in states] == ["debt", "held", "running", "waiting"]
    queue.clock.advance(90)
    await queue.store.limits.forget_idle(2)
    states = await queue.store.limits.keys(queue.tenant, "llm")
    assert [state.key for state in states] == ["running", "waiting"]


async def test_held_limits_and_keys_are_listed_until_their_holds_end(queue: TenantQueue) -> None:
    limits = queue.store.limits
    await limits.set(queue.tenant, check(Limit("llm", 1)), actor=OPERATOR)
    await limits.set(queue.tenant, check(Limit("customer", 1, keyed=True)), actor=OPERATOR)
    for name, key, seconds in (("llm", "", 60), ("customer", "b", 90), ("customer", "a", 60)):
        await limits.hold(
            queue.tenant, name, key=key, until=queue.after(seconds), actor=OPERATOR, reason=f"{name}{key}"
        )
    found = await limits.held(queue.tenant, 10)
    assert [(name, state.key, state.hold_reason) for name, state in found] == [
        ("customer", "a", "customera"), ("customer", "b", "customerb"), ("llm", "", "llm"),
    ]  # fmt: skip
    assert {state.held_by for _, state in found} == {OPERATOR}
    assert len(await limits.held(queue.tenant, 2)) == 2
    assert await limits.held("another", 10) == []
    assert queue.tenant in await limits.tenants()
    queue.clock.advance(61)
    assert [(name, state.key) for name, state in await limits.held(queue.tenant, 10)] == [("customer", "b")]
    await limits.release(queue.tenant, "customer", key="b", actor=OPERATOR)
    assert await limits.held(queue.tenant, 10) == []
