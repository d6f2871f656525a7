"""Workers as they were seen. What these rows say explains; what jobs do never depends on them."""

from __future__ import annotations

from typing import Any

from interlock.domain.policy import ClaimFilter
from interlock.domain.worker_presence import Presence, WorkerSeen, wanted
from tests.contract.builders import Desk, ask, complete
from tests.contract.connections import Door

DAY = 86_400.0
MINE = {"types": frozenset({"render"}), "capabilities": frozenset({"gpu"}), "affinity_keys": None}


async def note(remote: Desk, worker: str = "w1", *asks: ClaimFilter) -> None:
    await remote.store.note_workers(remote.tenant, [WorkerSeen(worker, asks or (ask(worker=worker),))])


async def listed(remote: Desk, **page: Any) -> list[Presence]:
    return await remote.store.workers(remote.tenant, **{"limit": 100, **page})


async def names(remote: Desk, **page: Any) -> list[str]:
    return [seen.name for seen in await listed(remote, **page)]


async def test_a_worker_is_listed_with_what_it_asked_for_last_and_when(remote: Desk) -> None:
    first = remote.clock.now
    await note(remote)
    remote.clock.advance(30)
    asks = (ask(**MINE, limit=7, lease_seconds=5.0, claim_id="c"), ask(types=None, repositories=frozenset()))
    await note(remote, "w1", *asks)
    (seen,) = await listed(remote)
    assert (seen.name, seen.first_seen_at, seen.last_seen_at) == ("w1", first, remote.clock.now)
    assert set(seen.asks) == {wanted(one) for one in asks}
    assert (seen.running, list(seen.job_ids)) == (0, [])


async def test_many_workers_are_noted_at_once_and_listed_by_name(remote: Desk) -> None:
    local_principal = ["B", "a", "b", "w/1", "w1", "é"]
    await remote.store.note_workers(remote.tenant, [WorkerSeen(name, (ask(),)) for name in reversed(local_principal)])
    assert await names(remote) == local_principal
    assert await names(remote, limit=2) == ["B", "a"]
    assert await names(remote, after="a", limit=2) == ["b", "w/1"]
    assert await names(remote, after="é") == []


async def test_a_worker_that_has_stopped_is_not_listed(remote: Desk) -> None:
    await note(remote, "w1")
    await note(remote, "w2")
    await remote.store.note_workers(remote.tenant, [WorkerSeen("w1", ()), WorkerSeen("w3", (ask(worker="w3"),))])
    assert await names(remote) == ["w2", "w3"]
    await note(remote, "w1")
    assert await names(remote) == ["w1", "w2", "w3"]


async def test_workers_that_polled_lately_or_hold_a_lease_are_listed(remote: Desk) -> None:
    await note(remote, "gone")
    await note(remote, "w1")
    await remote.running()
    remote.clock.advance(301)
    await note(remote, "new")
    assert await names(remote, within_seconds=300.0) == ["new", "w1"]
    assert await names(remote, within_seconds=300.0, limit=1) == ["new"]
    assert await names(remote) == ["gone", "new", "w1"]


async def test_what_a_worker_runs_is_told_by_its_leases(remote: Desk) -> None:
    await note(remote)
    jobs = [await remote.running() for _ in range(12)]
    await note(remote, "idle")
    idle, busy = await listed(remote)
    assert (idle.name, idle.running) == ("idle", 0)
    assert (busy.running, list(busy.job_ids)) == (12, [job.id for job in jobs][:10])
    await remote.do(complete(jobs[0]))
    assert [seen.running for seen in await listed(remote)] == [0, 11]


async def test_a_worker_that_only_its_leases_tell_of_is_listed_too(remote: Desk) -> None:
    job = await remote.running(worker="unseen")
    assert await listed(remote) == [Presence("unseen", (), None, None, 1, (job.id,))]
    assert await names(remote, after="unseen") == []


async def test_who_was_not_seen_for_long_and_holds_nothing_is_forgotten(remote: Desk) -> None:
    for name in ("gone", "busy", "here"):
        await note(remote, name)
    job = await remote.running(worker="busy", lease_seconds=3600)
    remote.clock.advance(DAY)
    await note(remote, "here")
    await remote.store.forget_workers(DAY, 10_000)
    assert await names(remote) == ["busy", "gone", "here"]  # exactly a day is not longer
    remote.clock.advance(0.001)
    assert await remote.store.forget_workers(DAY, 10_000) >= 1
    assert await names(remote) == ["busy", "here"]
    await remote.do(complete(job))
    await remote.store.forget_workers(DAY, 10_000)
    assert await names(remote) == ["here"]


async def test_workers_of_all_tenants_are_forgotten_few_at_a_time(remote: Desk, rival: Desk) -> None:
    remote.clock.advance(-10 * DAY)  # longer ago than whatever other tests have left behind
    for one in (remote, rival):
        await note(one, "a")
        await note(one, "b")
    remote.clock.advance(2 * DAY)
    assert [await remote.store.forget_workers(DAY, 3) for _ in range(3)] == [3, 1, 0]
    assert (await names(remote), await names(rival)) == ([], [])


async def test_a_tenant_sees_its_own_workers_alone(remote: Desk, rival: Desk) -> None:
    await note(remote, "mine")
    await note(rival, "theirs")
    await rival.running(worker="mine")
    (seen,) = await listed(remote)
    assert (seen.name, seen.running) == ("mine", 0)


async def test_jobs_are_handed_out_and_expire_without_any_of_these_rows(remote: Desk, adapter: Door) -> None:
    await note(remote)
    job = await remote.running(lease_seconds=10)
    await adapter.run("DELETE FROM worker WHERE tenant = $1", remote.tenant)
    remote.clock.advance(10)
    assert (await remote.again(job)).attempt == 2
