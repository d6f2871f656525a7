"""While a tenant is moved its work goes on: whatever is done on the way comes along, and the pause is short."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest

from interlock.domain.approval import Approval, GateFilter
from interlock.domain.job import Filter, Job
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.move import Mover
from interlock.storage.shards.opening import open_router
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import Desk, complete, fail, new_job, save
from tests.contract.gates import ballot, decided, minted, waiting
from tests.contract.progress import event, keep, report, step, tell
from tests.support.shards import resident
from tests.support.stores import ManualClock

WAITING = 2_000


class Beside:
    """Another program that works on the source: it gets its turn whenever the mover says where it is."""

    def __init__(self, address: str, tenant: str, clock: ManualClock) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.desk = Desk(self.do(PostgresStore.open(address, size=2, clock=clock)), tenant, clock)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Done when this returns; the mover stands still meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.do(self.desk.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Work:
    """One thing after the other that may happen to a tenant's jobs, each by itself."""

    def __init__(self, desk: Desk, held: list[Job], gates: list[Approval]) -> None:
        self.desk = desk
        self.held = held
        self.gates = gates
        self.turns: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: keep(desk, step(held[0])),
            lambda: desk.checkpoint(save(held[1], 1)),
            lambda: tell(desk, report(held[2], event("on the way"))),
            lambda: show(desk, file(held[3], "a", b"first")),
            lambda: show(desk, file(held[3], "a", b"again")),
            lambda: desk.add(affinity_key="new"),
            lambda: desk.do(complete(held[4])),
            lambda: desk.do(fail(held[5], retryable=False)),
            lambda: waiting(desk, job=held[6]),
            lambda: decided(desk, ballot(gates[0])),
            lambda: minted(desk, gates[1], "token"),
            lambda: desk.claim(limit=2),
            lambda: tell(desk, report(held[2], event("still on the way"))),
        ]


async def everything(desk: Desk) -> dict[str, Any]:
    """All there is to see of a tenant."""
    store, tenant = desk.store, desk.tenant
    seen: dict[str, Any] = {"stats": await store.stats(tenant)}
    seen["gates"] = await store.find_approvals(tenant, GateFilter(limit=100))
    jobs = await store.find(tenant, Filter(limit=200))
    for job in jobs:
        seen[job.id] = (
            await desk.trace(job.id),
            await store.steps(tenant, [job.id], limit=100),
            await store.events(tenant, job.id, limit=100),
            await listed(desk, job),
        )
    return seen


@pytest.fixture
def beside(addresses: dict[str, str], clock: ManualClock) -> Iterator[Beside]:
    made = Beside(addresses["a"], resident("a", "busy"), clock)
    yield made
    made.close()


async def test_whatever_is_done_to_jobs_that_have_gone_over_already_comes_along(
    beside: Beside, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_router(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        desk = Desk(router, beside.desk.tenant, clock)
        held = [await desk.running() for _ in range(9)]
        gates = [(await waiting(desk, job=job))[1] for job in (held.pop(), held.pop())]
        await desk.add_all([new_job(type="later") for _ in range(7)])
        work = Work(beside.desk, held, gates)
        left = iter(work.turns)
        at_last: dict[str, Any] = {}

        def at(point: str) -> None:
            # "verified" is inside a step, "step" between two, "caught up" after all of them.
            if point in ("verified", "step", "caught up"):
                turn = next(left, None)
                if turn is not None:
                    beside.do(turn())
            elif point == "alone":
                at_last.update(beside.do(everything(beside.desk)))

        assert (await Mover(owners, stale_seconds=0.02, step=5, at=at).move(desk.tenant, "b"))[1:3] == ("a", "b")
        assert next(left, None) is None, "the mover passed too few points for all that was to happen"
        assert await everything(desk) == at_last
        await desk.verify()
        assert await router.artifact_home(desk.tenant, (await listed(desk, held[3]))[0].id) == held[3].id
        await decided(desk, ballot(gates[1]))
        await desk.do(complete(held[2]))
    finally:
        await router.close()


async def test_a_producer_hardly_waits_while_many_waiting_jobs_are_moved(
    owners: dict[str, str], addresses: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    router = await open_router(addresses, size=2)
    try:
        desk = Desk(router, resident("a", "many waiting"), ManualClock())
        for _ in range(0, WAITING, 1_000):
            await desk.add_all([new_job() for _ in range(1_000)])
        answered = [time.monotonic()]
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                await desk.add()
                answered.append(time.monotonic())

        producing = asyncio.create_task(produce())
        moved = await Mover(owners).move(desk.tenant, "b")
        stop.set()
        await producing
        pauses = [later - earlier for earlier, later in pairwise(answered)]
        line = f"{moved.jobs} waiting jobs were moved; one producer waited for {max(pauses):.2f} s at the longest"
        print(line)
        record_property("move", line)
        assert sum(stats.ready for stats in await router.stats(desk.tenant)) == WAITING + len(answered) - 1
        await desk.verify()
    finally:
        await router.close()
