"""Workers of agents with limits, and the database itself, killed at any moment: no place is lost, and none given twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection
from typing import Any, Final

from interlock.domain.decide import CancelJob, Command, CompleteJob, ExpireLease
from interlock.domain.policy import ClaimFilter
from interlock.errors import Unavailable
from interlock.storage.contract import Store
from tests.process.actions import TENANT
from tests.process.concurrency import (
    HOT,
    Cut,
    LeaseInterval,
    Log,
    agent,
    check_used,
    clock,
    moment,
    nothing_is_left,
    register,
    some_end,
    some_jobs,
)
from tests.process.conftest import FAST, Checker
from tests.process.test_kills import orphans_gone
from tests.support.forms import chance
from tests.support.postgres import PostgresServer
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template
from tests.support.workers import Member, Place, until

KILLS: Final = 12 if FAST else 36
WORKERS: Final = 3
LEASE_SECONDS: Final = 0.4
MAX_LIFE: Final = 0.15  # between the first grant of a worker and its death

Property = Callable[[str, object], None]


async def work(store: Store, name: str, record: Callable[[Any], None]) -> None:
    """Claim and finish without end, reporting each lease before it is used."""
    dice = chance()
    while True:
        with suppress(Unavailable):  # the server was killed: what was held is lost, or finished, or still held
            asked = clock()
            jobs = await store.claim(
                TENANT, ClaimFilter(name, limit=dice.choice((1, 3, 10)), lease_seconds=LEASE_SECONDS)
            )
            got = clock()
            await moment(dice, 0.005)
            orders: list[Command] = [order for job in jobs if (order := some_end(dice, job, name)) is not None]
            gave = min(clock(), asked + LEASE_SECONDS)
            stays = [LeaseInterval(job.agent_id or "", job.id, job.fence, asked, got, gave) for job in jobs]
            record((stays, [Cut(order.id, clock(), inf) for order in orders if isinstance(order, CancelJob)]))
            await store.carry_out(TENANT, orders)


def work_in_a_process(pipe: Connection, place: Place, name: str) -> None:
    async def start() -> None:
        while True:
            with suppress(Unavailable):  # it may be down before this one is up
                await work(await place.open(size=1), name, pipe.send)

    asyncio.run(start())


class Shift:
    """Workers that come and go, and the log of their reports."""

    def __init__(self, place: Place, size: int = WORKERS) -> None:
        self.place = place
        self.stays: list[LeaseInterval] = []
        self.cuts: list[Cut] = []
        self.started = 0
        self.members: list[Member] = []
        for _ in range(size):
            self.hire()

    def hire(self) -> None:
        self.started += 1
        self.members.append(Member(work_in_a_process, self.place, f"w{self.started}"))

    def receive(self, member: Member) -> None:
        """Its reports until now; an incomplete last message does not count."""
        with suppress(EOFError, OSError):
            while member.pipe.poll(0):
                stays, cuts = member.pipe.recv()
                self.stays += stays
                self.cuts += cuts

    async def at_work(self) -> None:
        """Until a worker has claimed a job from now on."""
        before = len(self.stays)

        async def heard() -> bool:
            for member in self.members:
                self.receive(member)
            return len(self.stays) > before

        await until(heard, "a worker leases a job")

    def kill(self, number: int) -> None:
        member = self.members.pop(number)
        member.signal(signal.SIGKILL)
        member.wait()
        self.receive(member)
        member.close()

    def log(self) -> Log:
        return Log(self.stays, {}, self.cuts)

    def close(self) -> None:
        while self.members:
            self.kill(0)


async def finish_remaining(checker: Checker) -> None:
    """One worker alone finishes all jobs once the leases of the dead have expired."""

    async def all_ended() -> bool:
        for due in await checker.store.due_leases(1000):
            await checker.store.carry_out(due.tenant, [ExpireLease(due.job_id)])
        jobs = await checker.store.claim(TENANT, ClaimFilter("last", limit=100))
        await checker.store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "last") for job in jobs])
        counts = await checker.store.registry.stats(TENANT)
        return not jobs and not any(q.ready + q.delayed + q.blocked + q.in_progress for q in counts)

    await until(all_ended, "every job has ended")


async def check_final_state(checker: Checker, log: Log) -> None:
    """Right after the last death, and when all is done."""
    await check_used(checker)
    await finish_remaining(checker)
    await nothing_is_left(checker)
    await check_used(checker)
    await checker.check(histories=False, integrity=True)
    most = {number: log.max_concurrent_leases(str(number)) for number in range(HOT)}
    assert {n: held for n, held in most.items() if held > (agent(n).max_concurrency or HOT)} == {}


async def test_killed_workers_leave_no_slot_taken_and_none_assigned_twice(
    checker: Checker, record_property: Property
) -> None:
    dice = chance()
    await register(checker.store)
    shift = Shift(checker.place)
    try:
        for _ in range(KILLS):
            await checker.store.enqueue(TENANT, some_jobs(dice, 40))
            await shift.at_work()
            await moment(dice, MAX_LIFE)
            shift.kill(dice.randrange(WORKERS))
            await check_used(checker)
            shift.hire()
    finally:
        shift.close()
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    await check_final_state(checker, shift.log())
    line = f"{checker.place.engine}: {KILLS} workers killed, {len(shift.stays)} grants"
    print(line)
    record_property("line_kills", line)


async def test_a_crash_of_postgresql_leaves_no_slot_taken_and_none_assigned_twice() -> None:
    with PostgresServer() as server:
        await make_template(server)
        place = Place("postgres", server.dsn(TEMPLATE, user=APP_LOGIN))
        dice = chance()
        store = await place.open()
        await register(store)
        await store.enqueue(TENANT, some_jobs(dice, 600))
        await store.close()
        shift = Shift(place)
        try:
            await shift.at_work()
            await moment(dice, MAX_LIFE)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await shift.at_work()
        finally:
            shift.close()
        store = await place.open()
        checker = Checker(place, store, server.dsn(TEMPLATE))
        try:
            await orphans_gone(checker)
            await check_final_state(checker, shift.log())
        finally:
            await store.close()
