"""The named reason decides: resolving each named reason makes a job run, and nothing less does."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.decide import CancelJob
from interlock.domain.explain import ReasonCode
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.contract.approvals import command, decided, request_approval
from tests.contract.builders import OPERATOR, TenantQueue, complete, release
from tests.contract.reasons import clauses, seen
from tests.support.stores import START, ManualClock

HOURS: Final = 7200.0
NEEDS: Final = {"requires": ("gpu",), "repository": "org/x", "affinity_key": "k", "type": "render"}
AGENT: Final = {"agent_kind": "bot", "agent_id": "a"}
# Each worker lacks one thing less than the previous one, in the order in which the reasons decide.
WORKERS: Final[dict[ReasonCode, dict[str, Any]]] = {
    ReasonCode.NO_WORKER_FOR_TYPE: {"types": frozenset({"other"})},
    ReasonCode.NO_WORKER_WITH_CAPABILITIES: {},
    ReasonCode.NO_WORKER_FOR_REPOSITORY: {"capabilities": frozenset({"gpu"}), "repositories": frozenset({"org/y"})},
    ReasonCode.NO_WORKER_FOR_AFFINITY_KEY: {"capabilities": frozenset({"gpu"}), "repositories": frozenset({"org/x"})},
    ReasonCode.READY: {"capabilities": frozenset({"gpu"}), "affinity_keys": frozenset({"k"})},
}
ABLE: Final = WORKERS[ReasonCode.READY] | {"worker": "able"}

Lift = Callable[[], Awaitable[object]]
_numbers = itertools.count(1)


class Knot:
    """A job that is held back in several ways at once, and what lifts each of them."""

    def __init__(self, queue: TenantQueue) -> None:
        self.queue = queue
        self.worker: dict[str, Any] = {}
        self.lifts: dict[ReasonCode, Lift] = {}

    async def tie(self, *, waits: str, later: bool, paused: bool, busy: bool, lacking: ReasonCode) -> str:
        queue = self.queue
        await queue.store.registry.set_agent(queue.tenant, Agent("bot", "a", 1, strict=False))
        delay = 10.0 if later and waits == "nothing" else None
        id = await queue.add(**NEEDS, **AGENT, delay_seconds=delay)
        if waits != "nothing":
            await self._wait(waits, later)
        elif later:
            self.lifts[ReasonCode.DUE_LATER] = self._later
        if busy:
            await queue.add(type="chore", **AGENT)
            (rival,) = await queue.claim(types=frozenset({"chore"}), lease_seconds=3600)
            self.lifts[ReasonCode.AGENT_BUSY] = lambda: queue.do(complete(rival))
        if paused:
            await queue.store.registry.pause(queue.tenant, "render", actor=OPERATOR, reason=None)
            self.lifts[ReasonCode.PAUSED] = lambda: queue.store.registry.pause(
                queue.tenant, "render", actor=None, reason=None
            )
        steps = list(WORKERS)
        for clause, better in itertools.pairwise(steps[steps.index(lacking) :]):
            self.lifts[clause] = lambda better=better: self._send(better)  # type: ignore[misc]
        await self._send(lacking)
        return id

    async def _wait(self, waits: str, later: bool) -> None:
        queue = self.queue
        (job,) = await queue.claim(**ABLE, lease_seconds=3600)
        if waits == "people":
            order = request_approval(job, expires_in_seconds=HOURS)
            await queue.do(order)
            self.lifts[ReasonCode.WAITING_FOR_APPROVAL] = lambda: decided(queue, command(order.approval_id))
            return
        child = await queue.add(type="child", requires=("nobody has this",), parent_id=job.id)
        await queue.do(release(job, children=(child,), delay_seconds=10.0 if later else None))
        self.lifts[ReasonCode.WAITING_FOR_CHILDREN] = lambda: queue.do(CancelJob(child, OPERATOR))
        if later:
            self.lifts[ReasonCode.DUE_LATER] = self._later

    async def _later(self) -> None:
        self.queue.clock.advance(10)

    async def _send(self, clause: ReasonCode) -> None:
        self.worker = {"worker": "able", **WORKERS[clause]}
        await seen(self.queue, **self.worker)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    waits=st.sampled_from(("nothing", "people", "children")),
    later=st.booleans(),
    paused=st.booleans(),
    busy=st.booleans(),
    lacking=st.sampled_from(tuple(WORKERS)),
)
async def test_removing_the_first_reason_repeatedly_makes_a_job_run(
    store: Store, clock: ManualClock, waits: str, later: bool, paused: bool, busy: bool, lacking: ReasonCode
) -> None:
    clock.now = START
    queue = TenantQueue(store, f"knot-{next(_numbers)}", clock)
    knot = Knot(queue)
    busy = busy and (waits != "nothing" or later)  # else it was there first, and has the slot itself
    id = await knot.tie(waits=waits, later=later, paused=paused, busy=busy, lacking=lacking)
    lifted = []
    while (clause := ReasonCode((await clauses(queue, id))[0])) is not ReasonCode.READY:
        assert clause in knot.lifts, f"{clause} does not hold"
        assert id not in await queue.claimed(**knot.worker, limit=100, lease_seconds=3600)
        await knot.lifts.pop(clause)()
        lifted.append(clause)
    assert lifted == sorted(lifted, key=list(ReasonCode).index)
    assert not knot.lifts, "ready although something holds it"
    assert id in await queue.claimed(**knot.worker, limit=100)
