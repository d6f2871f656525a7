"""Hot agents with short lines, what workers held of them and when, and what must be true of that."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import asyncpg

from interlock.domain.decide import CancelJob, Command, CompleteJob, FailJob, ReleaseJob, RevokeLease
from interlock.domain.job import Job, NewJob
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.process.actions import TENANT
from tests.process.conftest import Checker, new_id
from tests.support.invariants import check_slots

KIND: Final = "bot"
HOT: Final = 40
STEADY: Final = HOT // 2  # the limits of the first ones never change
ERROR: Final = '{"message":"no","kind":"X"}'


def agent(number: int) -> Agent:
    """Limits 1 and 2, strict and not, all four combinations."""
    return Agent(KIND, str(number), 1 + number % 2, number % 4 < 2)


class LeaseInterval(NamedTuple):
    """A lease as its worker knew it, in seconds of one clock: surely held from `got` to `gave`, if at all."""

    agent: str
    id: str
    fence: int
    asked: float
    got: float
    gave: float


class Cut(NamedTuple):
    """An attempt to end any current lease of a job: at some moment between `began` and `answered`."""

    id: str
    began: float
    answered: float


@dataclass(frozen=True)
class Log:
    """What several processes wrote down."""

    stays: Sequence[LeaseInterval]
    acknowledged: dict[str, float]  # when the enqueue of a job was answered
    cuts: Sequence[Cut] = ()

    def held(self) -> list[LeaseInterval]:
        """The stays, each no longer than until the first attempt that may have taken it away."""
        cuts = defaultdict(list)
        for cut in self.cuts:
            cuts[cut.id].append(cut)
        return [
            stay._replace(gave=min([stay.gave, *(cut.began for cut in cuts[stay.id] if cut.answered >= stay.asked)]))
            for stay in self.stays
        ]

    def max_concurrent_leases(self, agent: str) -> int:
        """A lower bound: a job reported as leased was running, but not the other way round."""
        edges = []
        for stay in self.held():
            if stay.agent == agent and stay.gave > stay.got:
                edges += [(stay.got, 1), (stay.gave, -1)]
        most = now = 0
        for _, step in sorted(edges):  # of one moment the ends come first
            now += step
            most = max(most, now)
        return most

    def overtakers(self, agent: str, jobs: Iterable[Job]) -> list[tuple[str, str]]:
        """Pairs of jobs of a serial agent where the second should have started before the first.

        Only jobs that were leased once and never revoked; the first was claimed when the second was known to exist.
        """
        taken_away = {cut.id for cut in self.cuts}
        jobs_by_id = {job.id: job for job in jobs if job.fence == 1 and job.id not in taken_away}
        line = [(stay, jobs_by_id[stay.id]) for stay in self.stays if stay.agent == agent and stay.id in jobs_by_id]
        return [
            (late.id, early.id)
            for stay, late in line
            for other, early in line
            if (early.run_at, early.seq) < (late.run_at, late.seq)
            and stay.got < other.got
            and self.acknowledged[early.id] < stay.asked
        ]


async def register(store: Store) -> None:
    for number in range(HOT):
        await store.registry.set_agent(TENANT, agent(number))


def some_jobs(dice: random.Random, count: int) -> list[NewJob]:
    """Most are due now, some soon."""
    return [
        NewJob(
            new_id(),
            "work",
            max_attempts=20,
            agent_kind=KIND,
            agent_id=str(dice.randrange(HOT)),
            delay_seconds=dice.random() / 2 if dice.random() < 0.2 else None,
        )
        for _ in range(count)
    ]


def some_end(dice: random.Random, job: Job, worker: str) -> Command | None:
    """How a lease ends; None: the worker forgets it until it expires."""
    lease = (job.id, job.fence, worker)
    chance = dice.random()
    if chance < 0.75:
        return CompleteJob(*lease)
    if chance < 0.84:
        return FailJob(*lease, ERROR, retry_after_seconds=0.1)
    if chance < 0.90:
        return ReleaseJob(*lease, delay_seconds=dice.choice((0.0, 0.05)))
    if chance < 0.93:
        return CancelJob(job.id, "user:x", force=True)
    if chance < 0.96:
        return RevokeLease(job.id, "user:x", below=job.fence + 1)
    return FailJob(*lease, ERROR, retryable=False) if chance < 0.985 else None


async def moment(dice: random.Random, longest: float) -> None:
    """Time in which others get in between; nothing depends on its length."""
    await asyncio.sleep(dice.uniform(0, longest))


def clock() -> float:
    """The same for all processes of a machine."""
    return time.monotonic()


async def ended(store: Store) -> int:
    """How many jobs have ended, by what the store itself counts."""
    return sum(q.succeeded + q.failed + q.cancelled + q.dead_letter for q in await store.registry.stats(TENANT))


async def nothing_is_left(checker: Checker) -> list[Job]:
    """All jobs, every one of them ended."""
    jobs = await checker.everything()
    now = await checker.store.now()
    left = [
        (job.id, str(job.status), str(job.location(now)), job.agent_id) for job in jobs if job.status not in TERMINAL
    ]
    assert not left, f"{len(left)} of {len(jobs)} are stuck: {left[:5]}"
    return jobs


async def check_used(checker: Checker) -> None:
    """The places that are counted as used are those that are used."""
    if checker.admin_dsn is None:
        await check_slots(checker.place.address)
        return
    admin = await asyncpg.connect(checker.admin_dsn)
    try:
        await check_slots(admin)
    finally:
        await admin.close()
