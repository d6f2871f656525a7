"""While a tenant is moved its work continues: changes in between are copied, and the pause is short."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from interlock.domain.approval import Approval, ApprovalFilter
from interlock.domain.edit import EditJob
from interlock.domain.job import Filter, Job
from interlock.domain.registry import Agent
from interlock.domain.retry import SECOND
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.tenant_move import Mover
from tests.contract.approvals import command, created_link, decided, waiting
from tests.contract.artifacts import file, listed, show
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, fail, new_job, release, save
from tests.contract.progress import append_events, event, keep, report, step
from tests.support.eventually import RETRY_SECONDS
from tests.support.invariants import check_postgres
from tests.support.shards import resident
from tests.support.stores import ManualClock

Turn = Callable[[], Coroutine[Any, Any, Any]]
WAITING = 2_000
LIMIT = 2
# "verified" is inside a step or a pass, "step" between two steps, the others between two passes.
WHILE_WORK_GOES_ON = ("verified", "step", "counted ahead", "caught up")


class Beside:
    """Another program that works on the source: it runs whenever the mover reports a point."""

    def __init__(self, address: str, tenant: str, clock: ManualClock) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.queue = TenantQueue(self.do(PostgresStore.open(address, size=2, clock=clock)), tenant, clock)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Done when this returns; the mover stands still meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(RETRY_SECONDS)

    def close(self) -> None:
        self.do(self.queue.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Work:
    """One thing after the other that may happen to a tenant's jobs, each by itself."""

    def __init__(self, queue: TenantQueue, held: list[Job], approvals: list[Approval]) -> None:
        self.queue = queue
        self.held = held
        self.approvals = approvals
        self.turns: list[Turn] = [
            lambda: keep(queue, step(held[0])),
            lambda: queue.checkpoint(save(held[1], 1)),
            lambda: append_events(queue, report(held[2], event("on the way"))),
            lambda: show(queue, file(held[3], "a", b"first")),
            lambda: show(queue, file(held[3], "a", b"again")),
            lambda: queue.add(affinity_key="new"),
            lambda: queue.do(complete(held[4])),
            lambda: queue.do(fail(held[5], retryable=False)),
            lambda: waiting(queue, job=held[6]),
            lambda: decided(queue, command(approvals[0])),
            lambda: created_link(queue, approvals[1], "token"),
            lambda: queue.claim(limit=2),
            lambda: append_events(queue, report(held[2], event("still on the way"))),
        ]


async def everything(queue: TenantQueue) -> dict[str, Any]:
    """All there is to see of a tenant."""
    store, tenant = queue.store, queue.tenant
    seen: dict[str, Any] = {"stats": await store.registry.stats(tenant)}
    seen["gates"] = await store.approvals.find(tenant, ApprovalFilter(limit=100))
    jobs = await store.find(tenant, Filter(limit=200))
    for job in jobs:
        seen[job.id] = (
            await queue.trace(job.id),
            await store.steps(tenant, [job.id], limit=100),
            await store.events(tenant, job.id, limit=100),
            await listed(queue, job),
        )
    return seen


@pytest.fixture
def beside(addresses: dict[str, str], clock: ManualClock) -> Iterator[Beside]:
    made = Beside(addresses["a"], resident("a", "busy"), clock)
    yield made
    made.close()


async def test_operations_on_jobs_that_are_already_copied_are_moved_too(
    beside: Beside, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        queue = TenantQueue(router, beside.queue.tenant, clock)
        held = [await queue.running() for _ in range(9)]
        approvals = [(await waiting(queue, job=job))[1] for job in (held.pop(), held.pop())]
        await queue.add_all([new_job(type="later") for _ in range(7)])
        work = Work(beside.queue, held, approvals)
        left = iter(work.turns)
        at_last: dict[str, Any] = {}

        def at(point: str) -> None:
            if point in WHILE_WORK_GOES_ON and not at_last:
                commit_seq = next(left, None)
                if commit_seq is not None:
                    beside.do(commit_seq())
            elif point == "alone":
                at_last.update(beside.do(everything(beside.queue)))

        assert (await Mover(owners, stale_seconds=0.02, step=4, at=at).move(queue.tenant, "b"))[1:3] == ("a", "b")
        assert next(left, None) is None, "the mover passed too few points for all that was to happen"
        assert await everything(queue) == at_last
        await queue.verify()
        assert await router.artifacts.job_of(queue.tenant, (await listed(queue, held[3]))[0].id) == held[3].id
        await decided(queue, command(approvals[1]))
        await queue.do(complete(held[2]))
    finally:
        await router.close()


def planned(name: str, **fields: Any) -> dict[str, Any]:
    return {"agent_kind": "planner", "agent_id": name, "type": name, **fields}


async def check_there(owner: str, tenant: str) -> None:
    """What only indexes the jobs of a tenant fits them."""
    connection = await asyncpg.connect(owner)
    try:
        await check_postgres(connection, tenant)
    finally:
        await connection.close()


async def test_waiting_jobs_keep_their_order_and_become_ready_during_a_move(
    beside: Beside, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    try:
        queue = TenantQueue(router, resident("a", "in lines"), clock)
        far = TenantQueue(beside.queue.store, queue.tenant, clock)
        for name in ("lined", "tightened", "loosened", "late"):
            limit = None if name == "tightened" else LIMIT
            await router.registry.set_agent(queue.tenant, Agent("planner", name, max_concurrency=limit))
        for name in ("lined", "tightened", "loosened"):
            await queue.add_all([new_job(**planned(name)) for _ in range(7)])
        await queue.add(**planned("late", run_at=queue.after(5)))
        parent = await queue.running(type="parent")
        children = [await queue.running(type=f"child {i}", parent_id=parent.id) for i in range(2)]
        await queue.do(release(parent, children=tuple(child.id for child in children)))
        placed = await queue.claim(limit=LIMIT, types=frozenset({"lined"}))
        edited, doomed = await queue.add_all([new_job(type="edited"), new_job(type="doomed")])

        async def come_due() -> None:
            clock.advance(6)
            await far.store.registry.fill_slots(100)

        turns: Iterator[Turn] = iter(
            [
                lambda: far.do(complete(placed[0])),  # the next blocked job gets the slot, and is not changed
                lambda: far.do(complete(children[0])),
                lambda: far.store.registry.set_agent(
                    queue.tenant, Agent("planner", "tightened", max_concurrency=LIMIT)
                ),
                lambda: far.do(complete(children[1])),  # its parent becomes ready, and is not changed
                lambda: far.store.registry.set_agent(queue.tenant, Agent("planner", "loosened", max_concurrency=None)),
                come_due,
                lambda: far.do(EditJob(edited, OPERATOR, priority=7, run_at=clock.now + 60 * SECOND)),
                lambda: far.do(cancel(doomed)),
                lambda: far.do(fail(placed[1], retry_after_seconds=1.0)),
                lambda: far.claim(types=frozenset({"loosened"}), limit=3),
            ]
        )
        at_last: dict[str, Any] = {}

        def at(point: str) -> None:
            if point in WHILE_WORK_GOES_ON and not at_last:
                commit_seq = next(turns, None)
                if commit_seq is not None:
                    beside.do(commit_seq())
            elif point == "alone":
                at_last.update(beside.do(everything(far)))

        await Mover(owners, stale_seconds=0.02, step=9, at=at).move(queue.tenant, "b")
        assert next(turns, None) is None, "the mover passed too few points for all that was to happen"
        assert await everything(queue) == at_last
        await check_there(owners["b"], queue.tenant)
        assert await queue.claimed(types=frozenset({"parent"})) == [parent.id]
        assert len(await queue.claim(types=frozenset({"tightened"}), limit=9)) == LIMIT
        assert len(await queue.claim(types=frozenset({"loosened"}), limit=9)) == 4
        assert len(await queue.claim(types=frozenset({"late"}), limit=9)) == 1
    finally:
        await router.close()


async def test_only_recently_changed_jobs_are_copied_during_the_pause(
    beside: Beside, owners: dict[str, str], addresses: dict[str, str], clock: ManualClock
) -> None:
    router = await open_sharded_store(addresses, size=2, clock=clock, fresh_seconds=0.01)
    there = await asyncpg.connect(owners["b"])
    try:
        queue = TenantQueue(router, resident("a", "patient"), clock)
        far = TenantQueue(beside.queue.store, queue.tenant, clock)
        await queue.add_all([new_job(affinity_key=f"key {i}") for i in range(300)])
        changes: Iterator[Turn] = iter(
            [lambda: far.add(affinity_key="new"), lambda: far.claim(affinity_keys=frozenset({"key 5"}))]
        )

        def at(point: str) -> None:
            if point == "caught up":  # all that is left to do is done in the pause
                for change in changes:
                    beside.do(change())

        await Mover(owners, stale_seconds=0.02, step=50, at=at).move(queue.tenant, "b")
        written = {
            table: await there.fetchval(
                f"""select count(*) from interlock.{table} where tenant = $1 and age(xmin) <=
                      (select age(xmin) from interlock.tenant where tenant = $1)""",
                queue.tenant,
            )
            for table in ("job", "ready", "eligibility_key", "lease")
        }
        assert written == {"job": 2, "ready": 1, "eligibility_key": 1, "lease": 1}
        assert await there.fetchval("select count(*) from interlock.ready where tenant = $1", queue.tenant) == 300
    finally:
        await there.close()
        await router.close()


async def test_a_producer_hardly_waits_while_many_waiting_jobs_are_moved(
    owners: dict[str, str], addresses: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    router = await open_sharded_store(addresses, size=2)
    try:
        queue = TenantQueue(router, resident("a", "many waiting"), ManualClock())
        for _ in range(0, WAITING, 1_000):
            await queue.add_all([new_job() for _ in range(1_000)])
        answered = [time.monotonic()]
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                await queue.add()
                answered.append(time.monotonic())

        producing = asyncio.create_task(produce())
        moved = await Mover(owners).move(queue.tenant, "b")
        stop.set()
        await producing
        pauses = [later - earlier for earlier, later in pairwise(answered)]
        line = f"{moved.jobs} waiting jobs were moved; one producer waited for {max(pauses):.2f} s at the longest"
        print(line)
        record_property("move", line)
        assert sum(stats.ready for stats in await router.registry.stats(queue.tenant)) == WAITING + len(answered) - 1
        await queue.verify()
    finally:
        await router.close()
