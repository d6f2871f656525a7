"""Limits under load from several processes that are killed: nothing above a limit, nothing lost, every lease settled once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import pytest

from interlock.domain import limits
from interlock.domain.decide import CancelJob, Command, CompleteJob, RevokeLease
from interlock.domain.job import Enqueued, NewJob
from interlock.domain.lifecycle import Status
from interlock.domain.limits import Demand, Limit, demands_of
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent
from interlock.errors import LimitInUse, Unavailable
from interlock.storage.contract import Store, Terms
from tests.process.actions import TENANT
from tests.process.concurrency import Cut, LeaseInterval, Log, clock, moment, nothing_is_left, some_end
from tests.process.conftest import FAST, Checker, new_id
from tests.process.test_concurrency_kills import LEASE_SECONDS, MAX_LIFE, Shift, finish_remaining
from tests.process.test_kills import orphans_gone
from tests.support.forms import chance
from tests.support.workers import Failed, Member, Place, failed

KILLS: Final = 8 if FAST else 100
PROCESSES: Final = 8
JOBS: Final = 25  # of each round
RATE: Final = 400.0  # tokens per second
BURST: Final = 60.0
SLACK: Final = 1.0  # tokens: the clock of the database and that of this test may run apart a little
ESTIMATE, ACTUAL, PLENTY = 10.0, 3.0, 1e9

LIMITS: Final = (
    Limit("slots", 3),
    Limit("customer", 1, keyed=True),
    Limit("tokens", units={"tokens": RATE}, per_seconds=1.0, burst={"tokens": BURST}),
    Limit("seldom", 2),
    # Refills by nothing that counts, so that its level is the sum of all charges.
    Limit("spend", units={"spend": 1e-9}, per_seconds=86_400.0, burst={"spend": PLENTY}),
)

Property = Callable[[str, object], None]


AGENTS: Final = (Agent("bot", "loose", 1), Agent("bot", "strict", 2, strict=True))


def some_demands(dice: random.Random, *, seldom: bool, keys: bool) -> list[dict[str, Any]]:
    """Some limits in any order."""
    named: list[dict[str, Any]] = [{"name": "spend", "cost": {"spend": ESTIMATE}}]
    if seldom:
        return [*named, {"name": "seldom", "cost": {}}]
    if dice.random() < 0.6:
        named.append({"name": "slots", "cost": {}})
    if keys and dice.random() < 0.6:
        named.append({"name": "customer", "key": f"c{dice.randrange(4)}", "cost": {}})
    if dice.random() < 0.6:
        named.append({"name": "tokens", "cost": {"tokens": dice.choice((1.0, 5.0, BURST / 2))}})
    dice.shuffle(named)
    return named


async def work(store: Store, name: str, record: Callable[[Any], None]) -> None:
    """Claim and finish without end, reporting each lease before it is used."""
    dice = chance()
    while True:
        with suppress(Unavailable):
            asked = clock()
            jobs = await store.claim(
                TENANT, ClaimFilter(name, limit=dice.choice((1, 3, 10)), lease_seconds=LEASE_SECONDS)
            )
            got = clock()
            await moment(dice, 0.005)
            orders: list[Command] = []
            for job in jobs:
                order = some_end(dice, job, name)
                if isinstance(order, CompleteJob):
                    order = order._replace(usage=json.dumps({"spend": ACTUAL}))
                orders += [] if order is None else [order]
            gave = min(clock(), asked + LEASE_SECONDS)
            stays = [LeaseInterval("", job.id, job.fence, asked, got, gave) for job in jobs]
            taken = [order for order in orders if isinstance(order, CancelJob | RevokeLease)]
            record((stays, [Cut(order.id, clock(), inf) for order in taken]))
            await store.carry_out(TENANT, orders)


def work_in_a_process(pipe: Connection, place: Place, name: str) -> None:
    async def start() -> None:
        await work(await place.open(size=1), name, pipe.send)

    try:
        asyncio.run(start())
    except Exception as error:
        pipe.send(failed(error))


class Workers(Shift):
    """Workers that come and go; one that fails, for example in a deadlock, fails the test."""

    def hire(self) -> None:
        self.started += 1
        self.members.append(Member(work_in_a_process, self.place, f"w{self.started}"))

    def receive(self, member: Member) -> None:
        with suppress(EOFError, OSError):
            while member.pipe.poll(0):
                reported = member.pipe.recv()
                assert not isinstance(reported, Failed), reported
                self.stays += reported[0]
                self.cuts += reported[1]


class Charge(NamedTuple):
    """What a lease took of a rate, at some moment between `asked` and `got`."""

    asked: float
    got: float
    cost: float


def overspent(charges: Sequence[Charge], rate: float, burst: float) -> list[tuple[float, float]]:
    """The windows in which more was charged than the burst and what the time added; each with the excess."""
    found = []
    for first in charges:
        begin, total = first.asked, 0.0
        for charge in sorted((one for one in charges if one.asked >= begin), key=lambda one: one.got):
            total += charge.cost
            if total > burst + rate * (charge.got - begin) + SLACK:
                found.append((charge.got - begin, total))
    return found


async def enqueue(
    store: Store, dice: random.Random, book: dict[str, tuple[Demand, ...]], *, keys: bool, seldom: bool = False
) -> None:
    jobs = []
    for _ in range(3 if seldom else JOBS):
        text = json.dumps(some_demands(dice, seldom=seldom, keys=keys))
        job = NewJob(new_id(), "work", max_attempts=50, priority=dice.randrange(3), limits=text)
        if dice.random() < 0.3:
            job = job._replace(agent_kind="bot", agent_id=dice.choice(AGENTS).id)
        jobs.append(job)
        book[job.id] = demands_of(text)
    answers = await store.enqueue(TENANT, jobs, terms=Terms((await store.registry.read(TENANT)).version))
    assert all(isinstance(answer, Enqueued) for answer in answers)


async def steer(store: Store, dice: random.Random, book: dict[str, tuple[Demand, ...]], *, keys: bool) -> int:
    """Lower, raise, hold, release and delete limits while jobs run; return how many were deleted.

    None is ever above what is checked at the end.
    """
    await store.limits.set(TENANT, Limit("slots", dice.choice((1, 2, 3))), actor="user:x")
    part = dice.choice((0.5, 1.0))
    tokens = LIMITS[2]._replace(units={"tokens": RATE * part}, burst={"tokens": BURST * part})
    await store.limits.set(TENANT, tokens, actor="user:x")
    until = await store.now() + 50_000
    await store.limits.hold(TENANT, "customer", key=f"c{dice.randrange(4)}", until=until, actor="user:x", reason="429")
    await store.limits.hold(TENANT, dice.choice(("slots", "tokens")), key="", until=until, actor="user:x", reason="429")
    await store.limits.release(TENANT, "tokens", key="", actor="user:x")
    try:
        deleted = await store.limits.delete(TENANT, "seldom", actor="user:x")
    except LimitInUse:
        return 0
    await store.limits.set(TENANT, Limit("seldom", 2), actor="user:x")
    await enqueue(store, dice, book, keys=keys, seldom=True)
    return int(deleted)


async def charged(checker: Checker, ids: Sequence[str]) -> float:
    """What all leases were charged, by the history of their jobs: the reported usage, or else the estimate."""
    total = 0.0
    for job in await checker.jobs(ids):
        rows = await checker.store.history(TENANT, job.id)
        leases = sum(row.to_status is Status.RUNNING and row.from_status is not Status.RUNNING for row in rows)
        total += leases * ESTIMATE
        if job.status is Status.SUCCEEDED and job.usage is not None:
            total += ACTUAL - ESTIMATE
    return total


@pytest.mark.parametrize("keys", [True, False])
async def test_killed_workers_exceed_no_limit_and_every_lease_is_settled_once(
    checker: Checker, record_property: Property, keys: bool
) -> None:
    dice, book, deleted = chance(), dict[str, tuple[Demand, ...]](), 0
    for limit in LIMITS:
        await checker.store.limits.set(TENANT, limits.check(limit), actor="user:x")
    for agent in AGENTS:
        await checker.store.registry.set_agent(TENANT, agent)
    workers = Workers(checker.place, PROCESSES)
    try:
        for _ in range(KILLS):
            await enqueue(checker.store, dice, book, keys=keys)
            await workers.at_work()
            deleted += await steer(checker.store, dice, book, keys=keys)
            await moment(dice, MAX_LIFE)
            workers.kill(dice.randrange(PROCESSES))
            assert await checker.store.faults(TENANT, 10) == []
            workers.hire()
    finally:
        workers.close()
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    await finish_remaining(checker)
    assert len(await nothing_is_left(checker)) == len(book)
    await checker.check(histories=False)

    for name, most in (("slots", 3), ("seldom", 2), *((f"c{n}", 1) for n in range(4))):
        of_bucket = [
            stay._replace(agent=name)
            for stay in workers.stays
            if any(name in (demand.name, demand.key) for demand in book[stay.id])
        ]
        assert Log(of_bucket, {}, workers.cuts).max_concurrent_leases(name) <= most, name
    charges = [
        Charge(stay.asked, stay.got, demand.cost["tokens"])
        for stay in workers.stays
        for demand in book[stay.id]
        if demand.name == "tokens"
    ]
    assert charges
    assert overspent(charges, RATE, BURST) == []
    for name in ("slots", "tokens", "spend", "seldom", "customer"):
        found = await checker.store.limits.get(TENANT, name)
        assert found is not None
        assert (name, found.state.used) == (name, 0)
    spent = await checker.store.limits.get(TENANT, "spend")
    assert spent is not None
    assert round(PLENTY - spent.state.available["spend"], 3) == await charged(checker, list(book))
    line = (
        f"{checker.place.engine}: {KILLS} of {PROCESSES} workers killed, {len(workers.stays)} grants, "
        f"{len(charges)} of tokens, {deleted} deletions"
    )
    print(line)
    record_property("line_limits", line)


def test_the_checker_finds_an_exceeded_rate() -> None:
    """So that the test above cannot pass by not looking."""
    within = [Charge(0.0, 0.1, 30.0), Charge(0.0, 0.2, 30.0), Charge(0.2, 0.3, 30.0)]
    assert overspent(within, RATE, BURST) == []
    assert overspent([*within, Charge(0.2, 0.3, 120.0)], RATE, BURST) != []
    assert overspent([Charge(5.0, 5.01, 40.0), Charge(5.0, 5.01, 40.0)], RATE, BURST) != []
