"""Workers as they were seen. What these rows say explains; what jobs do never depends on them."""

from __future__ import annotations

from typing import Any

from interlock.domain.policy import ClaimAsk
from interlock.domain.worker_presence import Presence, Sighting, wanted
from tests.contract.builders import Desk, ask, complete
from tests.contract.connections import Door

DAY = 86_400.0
MINE = {"types": frozenset({"render"}), "capabilities": frozenset({"gpu"}), "affinity_keys": None}


async def note(desk: Desk, worker: str = "w1", *asks: ClaimAsk) -> None:
    await desk.store.note_workers(desk.tenant, [Sighting(worker, asks or (ask(worker=worker),))])


async def listed(desk: Desk, **page: Any) -> list[Presence]:
    return await desk.store.workers(desk.tenant, **{"limit": 100, **page})


async def names(desk: Desk, **page: Any) -> list[str]:
    return [seen.name for seen in await listed(desk, **page)]


async def test_a_worker_is_listed_with_what_it_asked_for_last_and_when(desk: Desk) -> None:
    first = desk.clock.now
    await note(desk)
    desk.clock.advance(30)
    asks = (ask(**MINE, limit=7, lease_seconds=5.0, claim_id="c"), ask(types=None, repositories=frozenset()))
    await note(desk, "w1", *asks)
    (seen,) = await listed(desk)
    assert (seen.name, seen.first_seen_at, seen.last_seen_at) == ("w1", first, desk.clock.now)
    assert set(seen.asks) == {wanted(one) for one in asks}
    assert (seen.running, list(seen.job_ids)) == (0, [])


async def test_many_workers_are_noted_at_once_and_listed_by_name(desk: Desk) -> None:
    everybody = ["B", "a", "b", "w/1", "w1", "é"]
    await desk.store.note_workers(desk.tenant, [Sighting(name, (ask(),)) for name in reversed(everybody)])
    assert await names(desk) == everybody
    assert await names(desk, limit=2) == ["B", "a"]
    assert await names(desk, after="a", limit=2) == ["b", "w/1"]
    assert await names(desk, after="é") == []


async def test_a_worker_that_has_stopped_is_not_listed(desk: Desk) -> None:
    await note(desk, "w1")
    await note(desk, "w2")
    await desk.store.note_workers(desk.tenant, [Sighting("w1", ()), Sighting("w3", (ask(worker="w3"),))])
    assert await names(desk) == ["w2", "w3"]
    await note(desk, "w1")
    assert await names(desk) == ["w1", "w2", "w3"]


async def test_workers_that_polled_lately_or_hold_a_lease_are_listed(desk: Desk) -> None:
    await note(desk, "gone")
    await note(desk, "w1")
    await desk.running()
    desk.clock.advance(301)
    await note(desk, "new")
    assert await names(desk, within_seconds=300.0) == ["new", "w1"]
    assert await names(desk, within_seconds=300.0, limit=1) == ["new"]
    assert await names(desk) == ["gone", "new", "w1"]


async def test_what_a_worker_runs_is_told_by_its_leases(desk: Desk) -> None:
    await note(desk)
    jobs = [await desk.running() for _ in range(12)]
    await note(desk, "idle")
    idle, busy = await listed(desk)
    assert (idle.name, idle.running) == ("idle", 0)
    assert (busy.running, list(busy.job_ids)) == (12, [job.id for job in jobs][:10])
    await desk.do(complete(jobs[0]))
    assert [seen.running for seen in await listed(desk)] == [0, 11]


async def test_a_worker_that_only_its_leases_tell_of_is_listed_too(desk: Desk) -> None:
    job = await desk.running(worker="unseen")
    assert await listed(desk) == [Presence("unseen", (), None, None, 1, (job.id,))]
    assert await names(desk, after="unseen") == []


async def test_who_was_not_seen_for_long_and_holds_nothing_is_forgotten(desk: Desk) -> None:
    for name in ("gone", "busy", "here"):
        await note(desk, name)
    job = await desk.running(worker="busy", lease_seconds=3600)
    desk.clock.advance(DAY)
    await note(desk, "here")
    await desk.store.forget_workers(DAY, 10_000)
    assert await names(desk) == ["busy", "gone", "here"]  # exactly a day is not longer
    desk.clock.advance(0.001)
    assert await desk.store.forget_workers(DAY, 10_000) >= 1
    assert await names(desk) == ["busy", "here"]
    await desk.do(complete(job))
    await desk.store.forget_workers(DAY, 10_000)
    assert await names(desk) == ["here"]


async def test_workers_of_all_tenants_are_forgotten_few_at_a_time(desk: Desk, rival: Desk) -> None:
    desk.clock.advance(-10 * DAY)  # longer ago than whatever other tests have left behind
    for one in (desk, rival):
        await note(one, "a")
        await note(one, "b")
    desk.clock.advance(2 * DAY)
    assert [await desk.store.forget_workers(DAY, 3) for _ in range(3)] == [3, 1, 0]
    assert (await names(desk), await names(rival)) == ([], [])


async def test_a_tenant_sees_its_own_workers_alone(desk: Desk, rival: Desk) -> None:
    await note(desk, "mine")
    await note(rival, "theirs")
    await rival.running(worker="mine")
    (seen,) = await listed(desk)
    assert (seen.name, seen.running) == ("mine", 0)


async def test_jobs_are_handed_out_and_expire_without_any_of_these_rows(desk: Desk, door: Door) -> None:
    await note(desk)
    job = await desk.running(lease_seconds=10)
    await door.run("DELETE FROM worker WHERE tenant = $1", desk.tenant)
    desk.clock.advance(10)
    assert (await desk.again(job)).attempt == 2
