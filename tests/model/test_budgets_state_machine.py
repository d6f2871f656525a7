"""Budgets against a model: for any calls in any order, both engines charge, settle and admit the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
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
from interlock.domain.budget import PREFIX, TREE, Per, Period
from interlock.domain.job import Job
from interlock.domain.limits import Limit
from interlock.errors import LimitInUse
from interlock.storage.contract import Terms
from tests.contract.builders import OPERATOR, TenantQueue, complete, fail, heartbeat, new_job, release, revoke
from tests.model.rig import Rig, examples, open_rig
from tests.support.postgres import Postgres
from tests.support.stores import ManualClock

START = 1_800_000_000_000_000
HOUR = 3600 * 1_000_000
TOTAL, HOURLY = f"{PREFIX}total", f"{PREFIX}hourly"
SPEND = Limit("spend", units={"usd": 1e6}, per_seconds=1.0)  # always has room; its cost is the estimate
AMOUNTS = st.integers(1, 12)
COSTS = st.integers(0, 5)
USAGE = st.none() | st.integers(0, 9)
FAR = 4_000_000_000_000_000  # some day in 2096


@dataclass
class Budget:
    """What the model knows of a budget: whole amounts, as of the last call that changed it."""

    amount: int
    is_hourly: bool = False
    spent: int = 0
    as_of: int = 0

    def began_at(self, now: int) -> int:
        return now // HOUR * HOUR if self.is_hourly else 0

    def available(self, now: int) -> int:
        return self.amount - (0 if self.as_of < self.began_at(now) else max(self.spent, 0))

    def touch(self, now: int) -> None:
        self.spent = self.amount - self.available(now)
        self.as_of = max(self.as_of, self.began_at(now))

    def has_room(self, cost: int, now: int) -> bool:
        return self.available(now) > 0 and self.available(now) >= cost


@dataclass
class Life:
    """What the model knows of a job."""

    budgets: list[str]
    cost: int
    lease: Job | None = None
    began_at: int = 0
    told: int | None = None
    run_at: int = 0

    @property
    def charged(self) -> int:
        return max(self.cost, self.told or 0)


@dataclass
class Lives:
    """The unfinished jobs, by ID."""

    jobs: dict[str, Life] = field(default_factory=dict)

    def running(self) -> list[Life]:
        return [job for job in self.jobs.values() if job.lease is not None]

    def due(self, now: int) -> list[Life]:
        return [job for job in self.jobs.values() if job.lease is None and job.run_at <= now]


class Budgets(RuleBasedStateMachine):
    """Producers, workers and operators in any order."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig = rig
        self.tenant = rig.new_tenant()
        self.lives = Lives()
        self.budgets: dict[str, Budget] = {}
        self.root = ""

    @property
    def queue(self) -> TenantQueue:
        return TenantQueue(self.rig.store, self.tenant, self.rig.clock)

    @property
    def now(self) -> int:
        return self.rig.clock.now

    @initialize(total=AMOUNTS, hourly=AMOUNTS, tree=AMOUNTS)
    def begin(self, total: int, hourly: int, tree: int) -> None:
        self.rig.clock.now = START  # the same parts of hours when an example is repeated
        self.rig.run(self.rig.store.limits.set(self.tenant, limits.check(SPEND), actor=OPERATOR))
        self.budgets = {TOTAL: Budget(total), HOURLY: Budget(hourly, is_hourly=True)}
        for name, amount in ((TOTAL, total), (HOURLY, hourly)):
            self._set(name, amount)
        job = new_job(run_at=FAR, budget=json.dumps({"usd": tree}))
        self._enqueue(job)
        self.root = TREE + job.id
        self.budgets[self.root] = Budget(tree)

    def _enqueue(self, job: object) -> None:
        terms = Terms(self.rig.run(self.rig.store.registry.read(self.tenant)).version)
        self.rig.run(self.rig.store.enqueue(self.tenant, [job], terms=terms))  # type: ignore[list-item]

    def _set(self, name: str, amount: int) -> None:
        period = Period(Per.HOUR) if name == HOURLY else Period()
        limit = limits.check(Limit(name, units={"usd": float(amount)}, budget=period))
        self.rig.run(self.rig.store.limits.set(self.tenant, limit, actor=OPERATOR))

    @rule(named=st.sets(st.sampled_from((TOTAL, HOURLY))), in_tree=st.booleans(), cost=COSTS)
    def add(self, named: set[str], in_tree: bool, cost: int) -> None:
        names = sorted(named)
        uses = [{"name": name, "key": None, "cost": {"usd": float(cost)}} for name in ("spend", *names)]
        job = new_job(
            limits=json.dumps(uses), max_attempts=100, parent_id=self.root.removeprefix(TREE) if in_tree else None
        )
        self._enqueue(job)
        self.lives.jobs[job.id] = Life([*names, *([self.root] if in_tree else [])], cost, run_at=self.now)

    @rule()
    def claim(self) -> None:
        leased = self.rig.run(self.queue.claim(limit=1, lease_seconds=1e6))
        if not leased:
            for job in self.lives.due(self.now):
                assert any(self._is_closed(name) for name in job.budgets), job
            return
        (lease,) = leased
        job = self.lives.jobs[lease.id]
        for name in job.budgets:
            budget = self.budgets[name]
            assert budget.has_room(job.cost, self.now), (name, budget, job)
            budget.touch(self.now)
            budget.spent += job.cost
        job.lease, job.began_at, job.told = lease, self.now, None

    def _is_closed(self, name: str) -> bool:
        """Whether a due job does not fit: others may wait behind it."""
        due = [job for job in self.lives.due(self.now) if name in job.budgets]
        return any(not self.budgets[name].has_room(job.cost, self.now) for job in due)

    @precondition(lambda self: self.lives.running())
    @rule(number=st.integers(0, 3), usage=USAGE)
    def report(self, number: int, usage: int | None) -> None:
        job, lease = self._running(number)
        told = None if usage is None else json.dumps({"usd": usage})
        (reply,) = self.rig.run(self.queue.heartbeat(heartbeat(lease, usage=told)))
        if usage is not None:
            before, job.told = job.charged, usage
            for name in job.budgets:
                self.budgets[name].touch(self.now)
                self.budgets[name].spent += job.charged - before
        rest = max(job.cost - (job.told or 0), 0)
        assert reply.budget_exceeded == any(self.budgets[name].available(self.now) + rest <= 0 for name in job.budgets)

    @precondition(lambda self: self.lives.running())
    @rule(number=st.integers(0, 3), how=st.sampled_from(("complete", "fail", "release", "revoke")), usage=USAGE)
    def end(self, number: int, how: str, usage: int | None) -> None:
        job, lease = self._running(number)
        used = job.told
        if how == "complete":
            used = job.told if usage is None else usage
            self.rig.run(self.queue.do(complete(lease, usage=None if usage is None else json.dumps({"usd": usage}))))
            del self.lives.jobs[lease.id]
        elif how == "fail":
            self.rig.run(self.queue.do(fail(lease, retry_after_seconds=0.0)))
        elif how == "release":
            self.rig.run(self.queue.do(release(lease)))
        else:
            used = None
            self.rig.run(self.queue.do(revoke(lease.id)))
        for name in job.budgets if used is not None else []:
            budget, change = self.budgets[name], (used or 0) - job.charged
            budget.spent += max(change, 0) if job.began_at < budget.as_of else change
        job.lease, job.run_at = None, self.rig.run(self.queue.job(lease.id)).run_at

    def _running(self, number: int) -> tuple[Life, Job]:
        running = self.lives.running()
        job = running[number % len(running)]
        assert job.lease is not None
        return job, job.lease

    @rule(number=st.integers(0, 2), amount=AMOUNTS)
    def raise_by(self, number: int, amount: int) -> None:
        name = sorted(self.budgets)[number]
        raised = self.rig.store.limits.raise_budget(self.tenant, name, {"usd": float(amount)}, actor=OPERATOR)
        assert self.rig.run(raised) is not None
        self.budgets[name].touch(self.now)
        self.budgets[name].amount += amount

    @rule(name=st.sampled_from((TOTAL, HOURLY)), amount=AMOUNTS)
    def change(self, name: str, amount: int) -> None:
        self._set(name, amount)
        self.budgets[name].touch(self.now)
        self.budgets[name].amount = amount

    @rule(name=st.sampled_from((TOTAL, HOURLY)))
    def delete(self, name: str) -> None:
        """Delete a budget and create it again: it has forgotten what was spent."""
        deleting = self.rig.store.limits.delete(self.tenant, name, actor=OPERATOR)
        if any(name in job.budgets for job in self.lives.jobs.values()):
            with pytest.raises(LimitInUse):
                self.rig.run(deleting)
            return
        assert self.rig.run(deleting)
        self._set(name, self.budgets[name].amount)
        self.budgets[name] = Budget(self.budgets[name].amount, self.budgets[name].is_hourly)

    @rule(minutes=st.sampled_from((1, 25, 70, -5)))
    def wait(self, minutes: int) -> None:
        self.rig.clock.now += minutes * 60_000_000

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @invariant()
    def every_budget_is_as_foretold(self) -> None:
        for name, budget in self.budgets.items():
            found = self.rig.run(self.rig.store.limits.get(self.tenant, name))
            assert found is not None
            under = [job for job in self.lives.running() if name in job.budgets]
            state = (found.limit.units["usd"], found.state.available["usd"], found.state.used)
            assert state == (budget.amount, budget.available(self.now), len(under)), name
            since = budget.began_at(self.now)
            assert sum(found.reserved.values()) == sum(job.cost for job in under if job.began_at >= since), name

    def teardown(self) -> None:
        if self.budgets:
            self.rig.check_invariants(self.tenant)


@pytest.fixture
def rig(engine: str, postgres: Postgres) -> Iterator[Rig]:
    with asyncio.Runner() as runner, open_rig(engine, postgres, runner, ManualClock()) as opened:
        yield opened


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_both_engines_do_what_the_model_does(rig: Rig) -> None:
    run_state_machine_as_test(lambda: Budgets(rig), settings=examples(500, 20, steps=rig.steps))  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_jobs_of_a_spent_tree_wait_and_go_on_after_a_raise(rig: Rig) -> None:
    """Draws of the short form rarely end while jobs are parked in a bucket."""
    machine = Budgets(rig)
    machine.begin(total=12, hourly=12, tree=1)
    for _ in range(3):
        machine.add(named=set(), in_tree=True, cost=0)
    machine.claim()
    machine.end(number=0, how="complete", usage=5)
    machine.claim()
    assert machine.lives.running() == []
    machine.teardown()
    machine.raise_by(number=2, amount=12)
    for how in ("release", "revoke"):
        machine.claim()
        machine.end(number=0, how=how, usage=None)
        machine.teardown()
    machine.every_budget_is_as_foretold()
