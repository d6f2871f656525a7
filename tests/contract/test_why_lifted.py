"""The clause that decides is the one to lift: lifting what is named, again and again, makes a job run, and nothing less does."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.decide import Cancel
from interlock.domain.explain import Clause
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.contract.approvals import ballot, decided, open_gate
from tests.contract.builders import OPERATOR, Desk, complete, release
from tests.contract.reasons import clauses, seen
from tests.support.stores import START, ManualClock

HOURS: Final = 7200.0
NEEDS: Final = {"requires": ("gpu",), "repository": "org/x", "affinity_key": "k", "type": "render"}
AGENT: Final = {"agent_kind": "bot", "agent_id": "a"}
# Each worker lacks one thing less than the one before, in the order in which the clauses decide.
WORKERS: Final[dict[Clause, dict[str, Any]]] = {
    Clause.NO_WORKER_FOR_TYPE: {"types": frozenset({"other"})},
    Clause.NO_WORKER_WITH_CAPABILITIES: {},
    Clause.NO_WORKER_FOR_REPOSITORY: {"capabilities": frozenset({"gpu"}), "repositories": frozenset({"org/y"})},
    Clause.NO_WORKER_FOR_AFFINITY_KEY: {"capabilities": frozenset({"gpu"}), "repositories": frozenset({"org/x"})},
    Clause.READY: {"capabilities": frozenset({"gpu"}), "affinity_keys": frozenset({"k"})},
}
ABLE: Final = WORKERS[Clause.READY] | {"worker": "able"}

Lift = Callable[[], Awaitable[object]]
_numbers = itertools.count(1)


class Knot:
    """A job that is held back in several ways at once, and what lifts each of them."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.worker: dict[str, Any] = {}
        self.lifts: dict[Clause, Lift] = {}

    async def tie(self, *, waits: str, later: bool, paused: bool, busy: bool, lacking: Clause) -> str:
        desk = self.desk
        await desk.store.set_agent(desk.tenant, Agent("bot", "a", 1, strict=False))
        delay = 10.0 if later and waits == "nothing" else None
        id = await desk.add(**NEEDS, **AGENT, delay_seconds=delay)
        if waits != "nothing":
            await self._wait(waits, later)
        elif later:
            self.lifts[Clause.DUE_LATER] = self._later
        if busy:
            await desk.add(type="chore", **AGENT)
            (rival,) = await desk.claim(types=frozenset({"chore"}), lease_seconds=3600)
            self.lifts[Clause.AGENT_BUSY] = lambda: desk.do(complete(rival))
        if paused:
            await desk.store.pause(desk.tenant, "render", actor=OPERATOR, reason=None)
            self.lifts[Clause.PAUSED] = lambda: desk.store.pause(desk.tenant, "render", actor=None, reason=None)
        steps = list(WORKERS)
        for clause, better in itertools.pairwise(steps[steps.index(lacking) :]):
            self.lifts[clause] = lambda better=better: self._send(better)  # type: ignore[misc]
        await self._send(lacking)
        return id

    async def _wait(self, waits: str, later: bool) -> None:
        desk = self.desk
        (job,) = await desk.claim(**ABLE, lease_seconds=3600)
        if waits == "people":
            order = open_gate(job, expires_in_seconds=HOURS)
            await desk.do(order)
            self.lifts[Clause.WAITING_FOR_APPROVAL] = lambda: decided(desk, ballot(order.gate_id))
            return
        child = await desk.add(type="child", requires=("nobody has this",), parent_id=job.id)
        await desk.do(release(job, children=(child,), delay_seconds=10.0 if later else None))
        self.lifts[Clause.WAITING_FOR_CHILDREN] = lambda: desk.do(Cancel(child, OPERATOR))
        if later:
            self.lifts[Clause.DUE_LATER] = self._later

    async def _later(self) -> None:
        self.desk.clock.advance(10)

    async def _send(self, clause: Clause) -> None:
        self.worker = {"worker": "able", **WORKERS[clause]}
        await seen(self.desk, **self.worker)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    waits=st.sampled_from(("nothing", "people", "children")),
    later=st.booleans(),
    paused=st.booleans(),
    busy=st.booleans(),
    lacking=st.sampled_from(tuple(WORKERS)),
)
async def test_lifting_the_clause_that_decides_again_and_again_makes_a_job_run(
    store: Store, clock: ManualClock, waits: str, later: bool, paused: bool, busy: bool, lacking: Clause
) -> None:
    clock.now = START
    desk = Desk(store, f"knot-{next(_numbers)}", clock)
    knot = Knot(desk)
    busy = busy and (waits != "nothing" or later)  # else it was there first, and has the place itself
    id = await knot.tie(waits=waits, later=later, paused=paused, busy=busy, lacking=lacking)
    lifted = []
    while (clause := Clause((await clauses(desk, id))[0])) is not Clause.READY:
        assert clause in knot.lifts, f"{clause} does not hold"
        assert id not in await desk.claimed(**knot.worker, limit=100, lease_seconds=3600)
        await knot.lifts.pop(clause)()
        lifted.append(clause)
    assert lifted == sorted(lifted, key=list(Clause).index)
    assert not knot.lifts, "ready although something holds it"
    assert id in await desk.claimed(**knot.worker, limit=100)
