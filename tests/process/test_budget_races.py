"""Budgets under load from processes that are killed: none overspent, and the sum of charges is that of settlements."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from interlock.domain import limits
from interlock.domain.budget import PREFIX, TREE, Period
from interlock.domain.decide import CancelJob, Command, CompleteJob, ExpireLease
from interlock.domain.job import Enqueued, Heartbeat, NewJob
from interlock.domain.lifecycle import LOSSES, Status, Verb
from interlock.domain.limits import Limit
from interlock.domain.policy import ClaimFilter
from interlock.errors import Unavailable
from interlock.storage.contract import Store, Terms
from tests.process.actions import TENANT
from tests.process.concurrency import LeaseInterval, clock, moment, nothing_is_left, some_end
from tests.process.conftest import FAST, Checker, new_id
from tests.process.test_concurrency_kills import LEASE_SECONDS, MAX_LIFE
from tests.process.test_kills import orphans_gone
from tests.process.test_limit_races import Workers
from tests.support.forms import chance
from tests.support.workers import Member, Place, failed, until

KILLS: Final = 8 if FAST else 60
WORKERS: Final = 4 if FAST else 8
JOBS: Final = 25  # of each round
FAR: Final = 4_000_000_000_000_000  # some day in 2096
PLENTY: Final = 1e9
SCARCE: Final = 200.0
ESTIMATE, TOLD, ACTUAL = 1.0, 0.3, 0.7  # reserved, reported while it runs, and reported at the end

SPEND: Final = Limit("spend", units={"usd": PLENTY}, per_seconds=1.0)
BUDGETS: Final = (
    Limit(f"{PREFIX}plenty", units={"usd": PLENTY}, budget=Period()),
    Limit(f"{PREFIX}scarce", units={"usd": SCARCE}, budget=Period()),
)


async def work(store: Store, name: str, record: Callable[[Any], None]) -> None:
    """Claim, report usage and finish without end."""
    dice = chance()
    while True:
        with suppress(Unavailable):
            asked = clock()
            jobs = await store.claim(
                TENANT, ClaimFilter(name, limit=dice.choice((1, 3, 10)), lease_seconds=LEASE_SECONDS)
            )
            record(([LeaseInterval("", job.id, job.fence, asked, clock(), clock()) for job in jobs], []))
            usage = json.dumps({"usd": TOLD})
            await store.heartbeat(TENANT, [Heartbeat(job.id, job.fence, name, usage=usage) for job in jobs])
            await moment(dice, 0.005)
            orders: list[Command] = []
            for job in jobs:
                order = some_end(dice, job, name)
                if isinstance(order, CompleteJob):
                    order = order._replace(usage=json.dumps({"usd": ACTUAL}))
                orders += [] if order is None else [order]
            await store.carry_out(TENANT, orders)


def work_in_a_process(pipe: Connection, place: Place, name: str) -> None:
    async def start() -> None:
        await work(await place.open(size=1), name, pipe.send)

    try:
        asyncio.run(start())
    except Exception as error:
        pipe.send(failed(error))


class Spenders(Workers):
    """Workers that come and go; one that fails, for example in a deadlock, fails the test."""

    def hire(self) -> None:
        self.started += 1
        self.members.append(Member(work_in_a_process, self.place, f"w{self.started}"))


async def add(store: Store, jobs: Sequence[NewJob]) -> None:
    answers = await store.enqueue(TENANT, jobs, terms=Terms((await store.registry.read(TENANT)).version))
    assert all(isinstance(answer, Enqueued) for answer in answers), answers


async def enqueue(store: Store, dice: random.Random, root: str) -> None:
    """Jobs under one or both budgets, two in three of them in the tree."""
    jobs = []
    for _ in range(JOBS):
        named = [PREFIX + "plenty"] + [PREFIX + "scarce"] * (dice.random() < 0.5)
        uses = [{"name": name, "key": None, "cost": {"usd": ESTIMATE}} for name in ("spend", *named)]
        parent = root if dice.random() < 0.67 else None
        jobs.append(
            NewJob(
                new_id(), "work", max_attempts=50, priority=dice.randrange(3), limits=json.dumps(uses), parent_id=parent
            )
        )
    await add(store, jobs)


async def finish_remaining(checker: Checker) -> None:
    """One worker alone finishes all jobs once the leases of the dead have expired."""

    async def all_ended() -> bool:
        for due in await checker.store.due_leases(1000):
            await checker.store.carry_out(due.tenant, [ExpireLease(due.job_id)])
        jobs = await checker.store.claim(TENANT, ClaimFilter("last", limit=100))
        usage = json.dumps({"usd": ACTUAL})
        await checker.store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "last", usage=usage) for job in jobs])
        counts = await checker.store.registry.stats(TENANT)
        return not jobs and not any(q.ready + q.delayed + q.blocked + q.in_progress for q in counts)

    await until(all_ended, "every job has ended")


async def settled(checker: Checker) -> dict[str, float]:
    """What all leases were settled at, by budget, as the history of their jobs tells it."""
    sums: dict[str, float] = {}
    for job in await checker.jobs([job.id for job in await checker.everything()]):
        names = [demand.name for demand in limits.demands_of(job.limits or "[]")]
        for row in await checker.store.history(TENANT, job.id):
            if row.from_status is not Status.RUNNING or row.to_status is Status.RUNNING:
                continue
            amount = ESTIMATE if row.verb in LOSSES else ACTUAL if row.verb == Verb.COMPLETE else TOLD
            for name in names:
                sums[name] = sums.get(name, 0.0) + amount
    return sums


async def left(store: Store, name: str) -> tuple[float, int]:
    found = await store.limits.get(TENANT, name)
    assert found is not None
    return found.state.available["usd"], found.state.used


async def test_the_charges_of_killed_workers_are_their_settlements(
    checker: Checker, record_property: Callable[[str, object], None]
) -> None:
    dice, store = chance(), checker.store
    for limit in (SPEND, *BUDGETS):
        await store.limits.set(TENANT, limits.check(limit), actor="user:x")
    root = new_id()
    await add(store, [NewJob(root, "root", run_at=FAR, budget=json.dumps({"usd": SCARCE}))])
    amounts = {f"{PREFIX}plenty": PLENTY, f"{PREFIX}scarce": SCARCE, TREE + root: SCARCE}
    workers = Spenders(checker.place, WORKERS)
    try:
        for _ in range(KILLS):
            await enqueue(store, dice, root)
            await workers.at_work()
            for name in amounts:
                assert (await left(store, name))[0] >= 0, name
            await moment(dice, MAX_LIFE)
            workers.kill(dice.randrange(WORKERS))
            workers.hire()
            for name in (f"{PREFIX}scarce", TREE + root):
                await store.limits.raise_budget(TENANT, name, {"usd": 2.5}, actor="user:x")
                amounts[name] += 2.5
    finally:
        workers.close()
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    for name in (f"{PREFIX}scarce", TREE + root):
        await store.limits.raise_budget(TENANT, name, {"usd": PLENTY}, actor="user:x")
        amounts[name] += PLENTY
    await store.carry_out(TENANT, [CancelJob(root, "user:x")])
    await finish_remaining(checker)
    assert len(await nothing_is_left(checker)) == JOBS * KILLS + 1
    await checker.check(histories=False)
    sums = await settled(checker)
    for name, amount in amounts.items():
        available, used = await left(store, name)
        assert (name, used, round(amount - available, 3)) == (name, 0, round(sums[name], 3))
    line = f"{checker.place.engine}: {KILLS} workers killed, {len(workers.stays)} leases, {sums[TREE + root]:.1f} in a tree"
    print(line)
    record_property("line_budgets", line)
