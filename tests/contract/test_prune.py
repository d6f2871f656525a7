"""Prune: ended jobs that are old enough go with all they own, and leave a count and a hash."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.artifact import NewArtifact
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.operations import PrunedStep, PruneOrder
from interlock.domain.webhook import DeliveryStatus, Dispatch, Outcome, Settlement
from interlock.storage import history_chain
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.builders import OPERATOR, Desk, complete, new_id, new_job, save
from tests.contract.connections import Door, job_in, refusal
from tests.contract.progress import event, keep, report, step, tell

DAY = 86_400
OWNED = (
    "job", "job_history", "job_checkpoint", "job_step", "job_event", "approval", "approval_vote", "artifact", "outbox",
)  # fmt: skip


async def prune(desk: Desk, **fields: Any) -> PrunedStep:
    made = {"id": new_id(), "actor": OPERATOR, "cutoff": desk.clock.now - 7 * DAY * 1_000_000, "after_seq": 0}
    return await desk.store.prune(desk.tenant, PruneOrder(**{**made, "step": 100, **fields}))


async def rows_of(desk: Desk, door: Door) -> dict[str, int]:
    """How many rows each table has for the tenant."""
    tables = (*OWNED, "job_body", "job_result") if door.engine == "sqlite" else (*OWNED, "setback")
    counts = {}
    for table in tables:
        ((counts[table],),) = await door.run(f"SELECT count(*) FROM {table} WHERE tenant = $1", desk.tenant)
    return counts


async def rich(desk: Desk) -> Job:
    """An ended job with something in every place a job can leave something."""
    job = await desk.running(type="rich", webhook="https://example.test/hook")
    await keep(desk, step(job))
    await tell(desk, report(job, event()))
    await desk.checkpoint(save(job, 1))
    await desk.store.show_artifacts(
        desk.tenant, [NewArtifact(job.id, job.fence, "w1", new_id(), "link", url="https://example.test/")], quota=None
    )
    _, gate = await waiting(desk, job=job)
    await decided(desk, ballot(gate))
    granted = await desk.again(job)
    await desk.do(complete(granted, result='"large"'))
    return await desk.job(job.id)


@pytest.mark.parametrize("status", Status)
async def test_only_jobs_that_have_ended_go(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status, deadline=None)
    desk.clock.advance(8 * DAY)
    done = await prune(desk)
    assert done == PrunedStep(int(status in TERMINAL), job.seq, True)
    (left,) = await desk.store.get(desk.tenant, [job.id])
    assert (left is None) == (status in TERMINAL)
    await desk.verify()


async def test_a_job_goes_by_when_it_ended_not_by_when_it_was_made(desk: Desk) -> None:
    job = await desk.running(lease_seconds=3600)
    desk.clock.advance(30 * DAY)
    await desk.do(complete(job))
    desk.clock.advance(7 * DAY)
    assert (await prune(desk)).deleted == 0
    desk.clock.advance(1)
    assert (await prune(desk)).deleted == 1


async def test_a_job_goes_with_all_it_owns(desk: Desk, door: Door, neighbour: Desk) -> None:
    theirs = await rich(neighbour)
    kept = await rows_of(neighbour, door)
    assert all(kept[table] for table in OWNED)
    await rich(desk)
    assert await rows_of(desk, door) == kept
    await deliver_everything(desk)
    desk.clock.advance(8 * DAY)
    assert (await prune(desk)).deleted == 1
    assert set((await rows_of(desk, door)).values()) == {0}
    assert await rows_of(neighbour, door) == kept
    assert await desk.store.find(desk.tenant, Filter()) == []
    await desk.verify()
    await neighbour.verify()
    assert (await neighbour.job(theirs.id)) == theirs


async def deliver_everything(desk: Desk) -> None:
    """Nothing is on its way any more."""
    for channel in [due.channel for due in await desk.store.outbox.due_channels(100) if due.tenant == desk.tenant]:
        for taken in await take(desk, channel):
            delivered = Settlement(taken.id, taken.grab, Outcome(DeliveryStatus.DELIVERED), 200, None)
            assert await desk.store.outbox.settle(desk.tenant, delivered)


async def take(desk: Desk, channel: str) -> list[Dispatch]:
    return await desk.store.outbox.take(desk.tenant, [(channel, 10)], lease_seconds=60, fresh_secret="whsec_c2VjcmV0")


async def test_what_is_still_on_its_way_is_delivered_all_the_same(desk: Desk, door: Door) -> None:
    await rich(desk)
    desk.clock.advance(8 * DAY)
    await prune(desk)
    assert {table: n for table, n in (await rows_of(desk, door)).items() if n} == {"outbox": 1}
    (channel,) = [due.channel for due in await desk.store.outbox.due_channels(100) if due.tenant == desk.tenant]
    assert [taken.event for taken in await take(desk, channel)] == ["job.succeeded"]


async def test_a_prune_leaves_a_count_and_a_hash_that_an_audit_can_compare(desk: Desk, door: Door) -> None:
    jobs = [await job_in(desk, door, status, type=status) for status in sorted(TERMINAL)]
    ends = sorted([(desk.tenant, job.id, (await desk.history(job.id))[-1].hash) for job in jobs])
    desk.clock.advance(8 * DAY)
    name = new_id()
    await prune(desk, id=name)
    (told,) = await desk.store.prunes(desk.tenant)
    assert told.hash.hex() == history_chain.head(ends)
    assert (told.id, told.at, told.actor, told.jobs) == (name, desk.clock.now, OPERATOR, 4)
    assert (told.cutoff, told.first_seq, told.last_seq) == (
        desk.clock.now - 7 * DAY * 1_000_000,
        jobs[0].seq,
        jobs[-1].seq,
    )


async def test_what_a_prune_tells_cannot_be_taken_back(desk: Desk, door: Door) -> None:
    await job_in(desk, door, Status.CANCELLED)
    desk.clock.advance(8 * DAY)
    await prune(desk)
    for statement in ("UPDATE prune SET jobs = 7 WHERE tenant = $1", "DELETE FROM prune WHERE tenant = $1"):
        assert "prune records are permanent" in await refusal(door, statement, desk.tenant)


async def test_a_dry_run_counts_and_leaves_everything(desk: Desk, door: Door) -> None:
    job = await job_in(desk, door, Status.CANCELLED)
    desk.clock.advance(8 * DAY)
    assert await prune(desk, dry_run=True) == PrunedStep(1, job.seq, True)
    assert (await desk.job(job.id)).status is Status.CANCELLED
    assert await desk.store.prunes(desk.tenant) == []


async def test_a_prune_that_finds_nothing_leaves_no_trace(desk: Desk) -> None:
    assert await prune(desk) == PrunedStep(0, 0, True)
    assert await desk.store.prunes(desk.tenant) == []


async def test_steps_follow_each_other_until_only_what_is_too_young_is_left(desk: Desk, door: Door) -> None:
    old = [await job_in(desk, door, Status.CANCELLED) for _ in range(5)]
    live = await desk.add(run_at=desk.after(999 * DAY))
    desk.clock.advance(8 * DAY)
    young = await desk.add_all([new_job(run_at=desk.after(999 * DAY)) for _ in range(5)])
    steps = [await prune(desk, step=2)]
    while not steps[-1].at_end:
        steps.append(await prune(desk, step=2, after_seq=steps[-1].last_seq))
    assert [s.deleted for s in steps] == [2, 2, 1, 0]  # the last one saw nothing but young jobs, and not all of them
    assert [p.jobs for p in await desk.store.prunes(desk.tenant)] == [1, 2, 2]
    assert sorted(job.id for job in await desk.store.find(desk.tenant, Filter())) == sorted([live, *young])
    assert await desk.store.get(desk.tenant, [job.id for job in old]) == [None] * 5


async def test_no_more_go_than_were_asked_for_and_those_that_came_first(desk: Desk, door: Door) -> None:
    live = await desk.add(run_at=desk.after(999 * DAY))
    old = [await job_in(desk, door, Status.CANCELLED) for _ in range(5)]
    desk.clock.advance(8 * DAY)
    assert await prune(desk, most=2, dry_run=True) == PrunedStep(2, old[1].seq, False)
    assert await prune(desk, most=2) == PrunedStep(2, old[1].seq, False)
    left = {job.id for job in await desk.store.find(desk.tenant, Filter())}
    assert left == {live, *(job.id for job in old[2:])}
    assert await prune(desk, most=3) == PrunedStep(3, old[4].seq, True)
    await desk.verify()


async def test_a_cutoff_to_come_deletes_no_more_than_what_has_ended(desk: Desk) -> None:
    job = await desk.running()
    ended = await desk.running(type="other")
    await desk.do(complete(ended))
    desk.clock.advance(1)
    assert (await prune(desk, cutoff=desk.after(999))).deleted == 1
    assert (await desk.job(job.id)).status is Status.RUNNING
    (told,) = await desk.store.prunes(desk.tenant)
    assert told.cutoff == desk.clock.now


async def test_tenants_prune_their_own_and_see_their_own(desk: Desk, neighbour: Desk, door: Door) -> None:
    await job_in(desk, door, Status.CANCELLED)
    theirs = await job_in(neighbour, door, Status.CANCELLED)
    desk.clock.advance(8 * DAY)
    assert (await prune(desk)).deleted == 1
    assert (await neighbour.job(theirs.id)).status is Status.CANCELLED
    assert await neighbour.store.prunes(neighbour.tenant) == []
    assert {desk.tenant, neighbour.tenant} <= set(await desk.store.tenants())


async def test_a_key_lives_as_long_as_its_job(desk: Desk, door: Door) -> None:
    old = await job_in(desk, door, Status.CANCELLED, idempotency_key="k", body_sha256=b"x" * 32)
    desk.clock.advance(8 * DAY)
    await prune(desk)
    new = await desk.add(idempotency_key="k", body_sha256=b"y" * 32)
    assert new != old.id


async def test_children_and_redrives_outlive_what_they_came_from(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.add(parent_id=parent.id, run_at=desk.after(999 * DAY))
    await desk.do(complete(parent))
    desk.clock.advance(8 * DAY)
    await prune(desk)
    assert (await desk.job(child)).parent_id == parent.id
    assert [job.id for job in await desk.store.find(desk.tenant, Filter(parent_id=parent.id))] == [child]


async def test_the_counts_of_queues_forget_what_was_deleted(desk: Desk, door: Door) -> None:
    for _ in range(3):
        await job_in(desk, door, Status.DEAD_LETTER)
    assert [(s.type, s.dead_letter) for s in await desk.store.stats(desk.tenant)] == [("work", 3)]
    desk.clock.advance(8 * DAY)
    await prune(desk)
    assert sum(s.dead_letter for s in await desk.store.stats(desk.tenant)) == 0
