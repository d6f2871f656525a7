"""Worker presence. These rows only explain; the behavior of jobs never depends on them."""

from __future__ import annotations

from typing import Any

from interlock.domain.policy import ClaimFilter
from interlock.domain.worker_presence import Presence, WorkerSeen, wanted
from tests.contract.builders import TenantQueue, ask, complete
from tests.contract.connections import SqlConnection

DAY = 86_400.0
MINE = {"types": frozenset({"render"}), "capabilities": frozenset({"gpu"}), "affinity_keys": None}


async def note(queue: TenantQueue, worker: str = "w1", *asks: ClaimFilter) -> None:
    await queue.store.workers.note(queue.tenant, [WorkerSeen(worker, asks or (ask(worker=worker),))])


async def listed(queue: TenantQueue, **page: Any) -> list[Presence]:
    return await queue.store.workers.page(queue.tenant, **{"limit": 100, **page})


async def names(queue: TenantQueue, **page: Any) -> list[str]:
    return [seen.name for seen in await listed(queue, **page)]


async def test_a_worker_is_listed_with_its_last_filter_and_time(queue: TenantQueue) -> None:
    first = queue.clock.now
    await note(queue)
    queue.clock.advance(30)
    asks = (ask(**MINE, limit=7, lease_seconds=5.0, claim_id="c"), ask(types=None, repositories=frozenset()))
    await note(queue, "w1", *asks)
    (seen,) = await listed(queue)
    assert (seen.name, seen.first_seen_at, seen.last_seen_at) == ("w1", first, queue.clock.now)
    assert set(seen.asks) == {wanted(one) for one in asks}
    assert (seen.running, list(seen.job_ids)) == (0, [])


async def test_many_workers_are_recorded_in_one_call_and_listed_by_name(queue: TenantQueue) -> None:
    local_principal = ["B", "a", "b", "w/1", "w1", "é"]
    await queue.store.workers.note(queue.tenant, [WorkerSeen(name, (ask(),)) for name in reversed(local_principal)])
    assert await names(queue) == local_principal
    assert await names(queue, limit=2) == ["B", "a"]
    assert await names(queue, after="a", limit=2) == ["b", "w/1"]
    assert await names(queue, after="é") == []


async def test_a_stopped_worker_is_not_listed(queue: TenantQueue) -> None:
    await note(queue, "w1")
    await note(queue, "w2")
    await queue.store.workers.note(queue.tenant, [WorkerSeen("w1", ()), WorkerSeen("w3", (ask(worker="w3"),))])
    assert await names(queue) == ["w2", "w3"]
    await note(queue, "w1")
    assert await names(queue) == ["w1", "w2", "w3"]


async def test_workers_that_polled_recently_or_hold_a_lease_are_listed(queue: TenantQueue) -> None:
    await note(queue, "gone")
    await note(queue, "w1")
    await queue.running()
    queue.clock.advance(301)
    await note(queue, "new")
    assert await names(queue, within_seconds=300.0) == ["new", "w1"]
    assert await names(queue, within_seconds=300.0, limit=1) == ["new"]
    assert await names(queue) == ["gone", "new", "w1"]


async def test_the_jobs_of_a_worker_are_listed_from_its_leases(queue: TenantQueue) -> None:
    await note(queue)
    jobs = [await queue.running() for _ in range(12)]
    await note(queue, "idle")
    idle, busy = await listed(queue)
    assert (idle.name, idle.running) == ("idle", 0)
    assert (busy.running, list(busy.job_ids)) == (12, [job.id for job in jobs][:10])
    await queue.do(complete(jobs[0]))
    assert [seen.running for seen in await listed(queue)] == [0, 11]


async def test_a_worker_known_only_by_its_leases_is_listed_too(queue: TenantQueue) -> None:
    job = await queue.running(worker="unseen")
    assert await listed(queue) == [Presence("unseen", (), None, None, 1, (job.id,))]
    assert await names(queue, after="unseen") == []


async def test_a_worker_without_a_recent_poll_and_without_a_lease_is_deleted(queue: TenantQueue) -> None:
    for name in ("gone", "busy", "here"):
        await note(queue, name)
    job = await queue.running(worker="busy", lease_seconds=3600)
    queue.clock.advance(DAY)
    await note(queue, "here")
    await queue.store.workers.forget(DAY, 10_000)
    assert await names(queue) == ["busy", "gone", "here"]  # exactly a day is not longer
    queue.clock.advance(0.001)
    assert await queue.store.workers.forget(DAY, 10_000) >= 1
    assert await names(queue) == ["busy", "here"]
    await queue.do(complete(job))
    await queue.store.workers.forget(DAY, 10_000)
    assert await names(queue) == ["here"]


async def test_workers_of_all_tenants_are_deleted_in_small_batches(queue: TenantQueue, rival: TenantQueue) -> None:
    queue.clock.advance(-10 * DAY)  # longer ago than any data of other tests
    for one in (queue, rival):
        await note(one, "a")
        await note(one, "b")
    queue.clock.advance(2 * DAY)
    assert [await queue.store.workers.forget(DAY, 3) for _ in range(3)] == [3, 1, 0]
    assert (await names(queue), await names(rival)) == ([], [])


async def test_a_tenant_sees_only_its_own_workers(queue: TenantQueue, rival: TenantQueue) -> None:
    await note(queue, "mine")
    await note(rival, "theirs")
    await rival.running(worker="mine")
    (seen,) = await listed(queue)
    assert (seen.name, seen.running) == ("mine", 0)


async def test_jobs_are_leased_and_expire_without_presence_rows(queue: TenantQueue, sql: SqlConnection) -> None:
    await note(queue)
    job = await queue.running(lease_seconds=10)
    await sql.run("DELETE FROM worker WHERE tenant = $1", queue.tenant)
    queue.clock.advance(10)
    assert (await queue.again(job)).attempt == 2
