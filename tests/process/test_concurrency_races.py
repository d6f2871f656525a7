"""Agents with limits under load from several processes: none gets ahead of its agent_no, none runs too many, none is stuck."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from interlock.domain.decide import CancelJob, Command, ExpireLease, RevokeLease
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.process.actions import TENANT
from tests.process.concurrency import (
    HOT,
    KIND,
    STEADY,
    Cut,
    LeaseInterval,
    Log,
    agent,
    check_used,
    clock,
    ended,
    moment,
    nothing_is_left,
    register,
    some_end,
    some_jobs,
)
from tests.process.conftest import FAST, Checker
from tests.support.workers import Failed, ProcessGroup

JOBS: Final = 300 if FAST else 1200
WORKERS: Final = 4
LEASE_SECONDS: Final = 1.0
TIMEOUT: Final = 400.0  # seconds, after which a job that has not ended is stuck, even on a busy machine

Property = Callable[[str, object], None]


async def carry_out(store: Store, orders: list[Command]) -> list[Cut]:
    """Those that name no lease, and so may hit the next one, are cuts."""
    began = clock()
    await store.carry_out(TENANT, orders)
    return [Cut(order.id, began, clock()) for order in orders if isinstance(order, CancelJob | RevokeLease)]


async def work(store: Store, name: str) -> tuple[list[LeaseInterval], list[Cut]]:
    """Claim, hold for a moment and finish in some way, until all jobs have ended."""
    dice = random.Random(name)
    stays: list[LeaseInterval] = []
    cuts: list[Cut] = []
    end = clock() + TIMEOUT
    while clock() < end and await ended(store) < JOBS:
        for due in await store.due_leases(100):
            await store.carry_out(due.tenant, [ExpireLease(due.job_id)])
        empty = 0
        while empty < 3 and clock() < end:
            asked = clock()
            jobs = await store.claim(
                TENANT, ClaimFilter(name, limit=dice.choice((1, 3, 10)), lease_seconds=LEASE_SECONDS)
            )
            got = clock()
            empty = 0 if jobs else empty + 1
            await moment(dice, 0.01)
            orders: list[Command] = [order for job in jobs if (order := some_end(dice, job, name)) is not None]
            gave = min(clock(), asked + LEASE_SECONDS)
            stays += [LeaseInterval(job.agent_id or "", job.id, job.fence, asked, got, gave) for job in jobs]
            cuts += await carry_out(store, orders)
    return stays, cuts


async def feed(store: Store) -> dict[str, float]:
    """Enqueue all jobs, batch by batch; when each was acknowledged."""
    dice = random.Random("feed")
    acknowledged: dict[str, float] = {}
    while len(acknowledged) < JOBS:
        batch = some_jobs(dice, 20)
        await store.enqueue(TENANT, batch)
        acknowledged |= {job.id: clock() for job in batch}
        await moment(dice, 0.02)
    return acknowledged


async def steer(store: Store) -> list[Cut]:
    """Change limits, and revoke leases."""
    dice = random.Random("steer")
    cuts: list[Cut] = []
    end = clock() + TIMEOUT
    while clock() < end and await ended(store) < JOBS:
        number = dice.randrange(STEADY, HOT)
        limit = dice.choice((1, 2, 3, None if number % 5 == 0 else 3))
        await store.registry.set_agent(TENANT, Agent(KIND, str(number), limit, dice.random() < 0.5))
        running = await store.find(TENANT, Filter((Status.RUNNING,), limit=20))
        for job in dice.sample(running, min(len(running), 2)):
            force = CancelJob(job.id, "user:y", force=True)
            cuts += await carry_out(store, [force if dice.random() < 0.3 else RevokeLease(job.id, "user:y")])
        await moment(dice, 0.1)
    return cuts


async def test_concurrency_limits_hold_under_load_in_order_and_without_getting_stuck(
    checker: Checker, record_property: Property
) -> None:
    await register(checker.store)
    with ProcessGroup(checker.place, WORKERS + 2) as workers:
        answers = workers.race((feed,), (steer,), *((work, f"w{n}") for n in range(WORKERS)))
    assert not [answer for answer in answers if isinstance(answer, Failed)]
    acknowledged, cuts, *worked = answers
    log = Log(
        [stay for stays, _ in worked for stay in stays], acknowledged, [*cuts, *(c for _, own in worked for c in own)]
    )
    jobs = await nothing_is_left(checker)
    assert len(jobs) == JOBS
    most = {number: log.max_concurrent_leases(str(number)) for number in range(HOT)}
    assert 2 in most.values(), "nothing was held at the same time, so nothing was tried"
    assert {n: most[n] for n in range(STEADY) if most[n] > (agent(n).max_concurrency or HOT)} == {}
    assert {n: most[n] for n in range(STEADY, HOT) if n % 5 and most[n] > 3} == {}
    for number in range(0, STEADY, 2):
        assert log.overtakers(str(number), [job for job in jobs if job.agent_id == str(number)]) == []
    await check_used(checker)
    await checker.check()
    line = (
        f"{checker.place.engine}: {len(jobs)} jobs, {len(log.stays)} grants, {len(cuts)} taken away; most held at once: "
        f"{dict(sorted(Counter(most.values()).items()))}; ends: {Counter(str(job.status) for job in jobs)}"
    )
    print(line)
    record_property("lines", line)


def test_the_checker_finds_exceeded_limits_and_overtaking() -> None:
    """So that the test above cannot pass by not looking."""
    stays = [
        LeaseInterval("0", "a", 1, 0.0, 1.0, 3.0),
        LeaseInterval("0", "b", 1, 0.5, 2.0, 4.0),
        LeaseInterval("0", "c", 1, 3.5, 4.0, 5.0),
    ]
    assert Log(stays, {}).max_concurrent_leases("0") == 2
    assert Log(stays, {}, [Cut("a", 1.5, 1.6)]).max_concurrent_leases("0") == 1
    assert Log(stays, {}, [Cut("b", 0.1, 0.6)]).max_concurrent_leases("0") == 1, (
        "begun under an older grant, it may end this one"
    )
    assert Log(stays, {}, [Cut("b", 0.1, 0.4)]).max_concurrent_leases("0") == 2, "answered before this claim was sent"
    assert Log(stays, {}).max_concurrent_leases("1") == 0


def test_the_checker_finds_early_starts() -> None:
    """The one of seq 1 was known before the one of seq 2 was asked for, and yet it started later."""
    blank = Job._make([None] * len(Job._fields))
    jobs = [blank._replace(id=id, seq=seq, run_at=0, fence=1) for seq, id in enumerate("ab", 1)]
    stays = [LeaseInterval("0", "b", 1, 1.0, 1.1, 2.0), LeaseInterval("0", "a", 1, 2.0, 2.1, 3.0)]
    assert Log(stays, {"a": 0.5, "b": 0.5}).overtakers("0", jobs) == [("b", "a")]
    assert Log(stays, {"a": 1.5, "b": 0.5}).overtakers("0", jobs) == [], "no worker could know of it yet"
    assert Log(stays, {"a": 0.5, "b": 0.5}, [Cut("a", 0.6, 0.7)]).overtakers("0", jobs) == [], "it was revoked"
    assert Log(stays, {"a": 0.5, "b": 0.5}).overtakers("1", jobs) == []
