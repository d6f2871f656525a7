"""Limits against a model: for any calls in any order, both engines lease the same jobs and charge the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from interlock.domain import limits
from interlock.domain.decide import Command
from interlock.domain.job import Job
from interlock.domain.limits import Limit
from interlock.domain.retry import SECOND
from interlock.errors import LimitInUse
from interlock.storage.contract import Terms
from tests.contract.builders import OPERATOR, TenantQueue, complete, fail, new_job, release, revoke
from tests.model.rig import Rig, examples, open_rig
from tests.support.postgres import Postgres
from tests.support.stores import ManualClock

START = 1_800_000_000_000_000
SLOTS, RATE, KEYED, KEYED_RATE = "slots", "rate", "keyed", "keyed rate"
BUCKETS = [(SLOTS, ""), (RATE, ""), *((name, key) for name in (KEYED, KEYED_RATE) for key in "ab")]
TYPES = ("work", "other")
ENDS: dict[str, Callable[[Job], Command]] = {"complete": complete, "fail": fail, "release": release}
SIZES = st.integers(1, 3)
BURSTS = st.integers(3, 8)


@dataclass
class Bucket:
    """What the model knows of a bucket: one token per second, up to the burst."""

    used: int = 0
    level: float | None = None
    as_of: int = 0
    held_until: int = 0

    def available(self, burst: int, now: int) -> float:
        if self.level is None:
            return burst
        return min(burst, self.level + max(now - self.as_of, 0) / SECOND)

    def refill(self, burst: int, now: int) -> None:
        self.level, self.as_of = self.available(burst, now), max(self.as_of, now)


@dataclass
class Life:
    """What the model knows of a job."""

    id: str
    type: str
    bucket: tuple[str, str] | None
    cost: int
    rank: tuple[int, int, int]  # negative priority, run_at, and the order of arrival
    lease: Job | None = None


@dataclass
class Lives:
    """The unfinished jobs, by ID."""

    jobs: dict[str, Life] = field(default_factory=dict)

    def running(self) -> list[Life]:
        return [job for job in self.jobs.values() if job.lease is not None]

    def due(self, now: int) -> list[Life]:
        due = [job for job in self.jobs.values() if job.lease is None and job.rank[1] <= now]
        return sorted(due, key=lambda job: job.rank)


class Limits(RuleBasedStateMachine):
    """Producers, workers and operators in any order. Each job names at most one limit, so that its turn is certain."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig = rig
        self.tenant = rig.new_tenant()
        self.lives = Lives()
        self.sizes: dict[str, int] = {}  # concurrency, or the burst
        self.buckets = {name: Bucket() for name in BUCKETS}
        self.paused: set[str] = set()
        self.added = self.looks = 0

    @property
    def queue(self) -> TenantQueue:
        return TenantQueue(self.rig.store, self.tenant, self.rig.clock)

    @property
    def now(self) -> int:
        return self.rig.clock.now

    @initialize(slots=SIZES, keyed=SIZES, burst=BURSTS, keyed_burst=BURSTS)
    def begin(self, slots: int, keyed: int, burst: int, keyed_burst: int) -> None:
        self.rig.clock.now = START
        for name, size in ((SLOTS, slots), (KEYED, keyed), (RATE, burst), (KEYED_RATE, keyed_burst)):
            self._set(name, size)

    def _set(self, name: str, size: int) -> None:
        rules = (
            Limit(name, size)
            if name in (SLOTS, KEYED)
            else Limit(name, units={"tokens": 1.0}, per_seconds=1.0, burst={"tokens": float(size)})
        )
        limit = limits.check(rules._replace(keyed=name in (KEYED, KEYED_RATE)))
        self.rig.run(self.rig.store.limits.set(self.tenant, limit, actor=OPERATOR))
        self.sizes[name] = size

    @rule(
        bucket=st.none() | st.sampled_from(BUCKETS), type=st.sampled_from(TYPES), count=SIZES,
        cost=st.integers(0, 8), priority=st.sampled_from((0, 0, 5)),
    )  # fmt: skip
    def add(self, bucket: tuple[str, str] | None, type: str, count: int, cost: int, priority: int) -> None:
        text = None
        if bucket is not None:
            rated = bucket[0] in (RATE, KEYED_RATE)
            cost = min(cost, self.sizes[bucket[0]])
            use = {"name": bucket[0], "key": bucket[1] or None, "cost": {"tokens": float(cost)} if rated else {}}
            text = json.dumps([use])
        jobs = [new_job(type=type, limits=text, priority=priority, max_attempts=100) for _ in range(count)]
        terms = Terms(self.rig.run(self.rig.store.registry.read(self.tenant)).version)
        self.rig.run(self.rig.store.enqueue(self.tenant, jobs, terms=terms))
        for job in jobs:
            self.added += 1
            self.lives.jobs[job.id] = Life(job.id, type, bucket, cost, (-priority, self.now, self.added))

    @rule(most=st.sampled_from((1, 2, 100)))
    def claim(self, most: int) -> None:
        leased = self.rig.run(self.queue.claim(limit=most, lease_seconds=1e6))
        expected = self._admitted()
        assert len(leased) == min(most, len(expected))
        for lease in leased:
            job = self.lives.jobs[lease.id]
            first = next(one for one in expected if one.bucket == job.bucket)
            assert job is first, "jobs of one limit run by priority, due time and arrival"
            expected.remove(job)
            self._charge(job, lease)

    def _admitted(self) -> list[Life]:
        """The jobs that have room, by rank; the first of a bucket that does not fit closes it for those behind it."""
        admitted, taken, closed = list[Life](), dict[tuple[str, str], float](), set[tuple[str, str]]()
        for job in self.lives.due(self.now):
            if job.type in self.paused:
                continue
            if job.bucket is None:
                admitted.append(job)
                continue
            if job.bucket in closed:
                continue
            bucket, size = self.buckets[job.bucket], self.sizes[job.bucket[0]]
            so_far = taken.get(job.bucket, 0.0)
            if job.bucket[0] in (SLOTS, KEYED):
                fits, takes = bucket.used + so_far < size, 1.0
            else:
                fits, takes = bucket.available(size, self.now) - so_far >= min(job.cost, size), float(job.cost)
            if not fits or bucket.held_until > self.now:
                closed.add(job.bucket)
                continue
            taken[job.bucket] = so_far + takes
            admitted.append(job)
        return admitted

    def _charge(self, job: Life, lease: Job) -> None:
        job.lease = lease
        if job.bucket is None:
            return
        bucket = self.buckets[job.bucket]
        bucket.used += 1
        if job.bucket[0] in (RATE, KEYED_RATE):
            bucket.refill(self.sizes[job.bucket[0]], self.now)
            assert bucket.level is not None
            bucket.level -= job.cost

    @precondition(lambda self: self.lives.running())
    @rule(number=st.integers(0, 5), how=st.sampled_from((*ENDS, "revoke")), usage=st.none() | st.integers(0, 9))
    def end(self, number: int, how: str, usage: int | None) -> None:
        running = self.lives.running()
        job = running[number % len(running)]
        assert job.lease is not None
        if how == "complete":
            report = None if usage is None else json.dumps({"tokens": usage})
            self.rig.run(self.queue.do(complete(job.lease, usage=report)))
            del self.lives.jobs[job.id]
        elif how == "revoke":
            self.rig.run(self.queue.do(revoke(job.id)))
        else:
            self.rig.run(self.queue.do(ENDS[how](job.lease)))
        if job.bucket is not None:
            bucket = self.buckets[job.bucket]
            bucket.used -= 1
            if how == "complete" and usage is not None and bucket.level is not None:
                bucket.level += job.cost - usage
        job.lease = None
        job.rank = (job.rank[0], self.rig.run(self.queue.job(job.id)).run_at, job.rank[2])

    @rule(bucket=st.sampled_from(BUCKETS), seconds=st.integers(1, 5))
    def hold(self, bucket: tuple[str, str], seconds: int) -> None:
        until = self.now + seconds * SECOND
        holding = self.rig.store.limits.hold(
            self.tenant, bucket[0], key=bucket[1], until=until, actor=OPERATOR, reason=None
        )
        self.rig.run(holding)
        self.buckets[bucket].held_until = max(self.buckets[bucket].held_until, until)

    @rule(bucket=st.sampled_from(BUCKETS))
    def end_hold(self, bucket: tuple[str, str]) -> None:
        self.rig.run(self.rig.store.limits.release(self.tenant, bucket[0], key=bucket[1], actor=OPERATOR))
        self.buckets[bucket].held_until = 0

    @rule(name=st.sampled_from((SLOTS, KEYED, RATE, KEYED_RATE)), size=SIZES)
    def change(self, name: str, size: int) -> None:
        """Change a concurrency or a burst: what is available of a rate stays, up to the new burst."""
        old = {bucket: state.available(self.sizes[name], self.now) for bucket, state in self.buckets.items()}
        full = self.sizes[name]
        self._set(name, size)
        for bucket, state in self.buckets.items():
            if bucket[0] != name or name in (SLOTS, KEYED):
                continue
            kept = min(old[bucket], size)
            if kept == full < size and self._left(bucket) in (None, size):  # one that was forgotten, or never used
                self.buckets[bucket] = Bucket(state.used, None, 0, state.held_until)
            else:
                state.level, state.as_of = kept, max(state.as_of, self.now)

    def _left(self, bucket: tuple[str, str]) -> float | None:
        """Return the tokens that are available of a bucket, if it has been used."""
        name, key = bucket
        if not key:
            found = self.rig.run(self.rig.store.limits.get(self.tenant, name))
            return None if found is None else found.state.available["tokens"]
        keys = self.rig.run(self.rig.store.limits.keys(self.tenant, name))
        return next((one.available["tokens"] for one in keys if one.key == key), None)

    @rule(name=st.sampled_from((SLOTS, KEYED, RATE, KEYED_RATE)))
    def delete(self, name: str) -> None:
        """Delete a limit and create it again: it has forgotten its holds and what was charged."""
        deleting = self.rig.store.limits.delete(self.tenant, name, actor=OPERATOR)
        if any(job.bucket is not None and job.bucket[0] == name for job in self.lives.jobs.values()):
            with pytest.raises(LimitInUse):
                self.rig.run(deleting)
            return
        assert self.rig.run(deleting)
        self._set(name, self.sizes[name])
        self.buckets |= {bucket: Bucket() for bucket in BUCKETS if bucket[0] == name}

    @rule(type=st.sampled_from(TYPES))
    def pause_or_resume(self, type: str) -> None:
        actor = None if type in self.paused else OPERATOR
        self.rig.run(self.rig.store.registry.pause(self.tenant, type, actor=actor, reason=None, resumed_by=OPERATOR))
        self.paused ^= {type}

    @rule(seconds=st.sampled_from((1, 2, 7)))
    def wait(self, seconds: int) -> None:
        self.rig.clock.now += seconds * SECOND

    @rule()
    def forget_idle(self) -> None:
        self.rig.run(self.rig.store.limits.forget_idle(100))

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @invariant()
    def every_bucket_is_as_foretold(self) -> None:
        self.looks += 1
        if self.looks % self.rig.look_every:
            return
        due = self.lives.due(self.now)
        for name, size in self.sizes.items():
            found = self.rig.run(self.rig.store.limits.get(self.tenant, name))
            assert found is not None
            assert found.state.waiting == sum(job.bucket is not None and job.bucket[0] == name for job in due), name
            states = {"": found.state}
            if found.limit.keyed:
                states = {one.key: one for one in self.rig.run(self.rig.store.limits.keys(self.tenant, name))}
            for bucket, model in self.buckets.items():
                if bucket[0] != name or bucket[1] not in states:
                    continue
                state, held = states[bucket[1]], model.held_until if model.held_until > self.now else None
                assert (state.used, state.held_until) == (model.used, held), bucket
                left = size - model.used if name in (SLOTS, KEYED) else model.available(size, self.now)
                assert [*state.available.values()] == [left], bucket

    def teardown(self) -> None:
        if self.sizes:
            self.rig.check_invariants(self.tenant)


@pytest.fixture
def rig(engine: str, postgres: Postgres) -> Iterator[Rig]:
    with asyncio.Runner() as runner, open_rig(engine, postgres, runner, ManualClock()) as opened:
        yield opened


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_both_engines_do_what_the_model_does(rig: Rig) -> None:
    run_state_machine_as_test(lambda: Limits(rig), settings=examples(500, 20, steps=rig.steps))  # type: ignore[arg-type]
