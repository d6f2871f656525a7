"""Prune: ended jobs that are old enough go with all they own, and leave a count and a hash."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.artifact import NewArtifact
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.operations import PruneCommand, PrunedStep
from interlock.domain.webhook import DeliveryResult, DeliveryStatus, Dispatch, Outcome
from interlock.storage import history_chain
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import OPERATOR, Desk, complete, new_id, new_job, save
from tests.contract.connections import Door, job_in, refusal
from tests.contract.progress import event, keep, report, step, tell

DAY = 86_400
OWNED = (
    "job", "job_history", "job_checkpoint", "job_step", "job_event", "approval", "approval_vote", "artifact", "outbox",
)  # fmt: skip


async def prune(remote: Desk, **fields: Any) -> PrunedStep:
    made = {"id": new_id(), "actor": OPERATOR, "cutoff": remote.clock.now - 7 * DAY * 1_000_000, "after_seq": 0}
    return await remote.store.prune(remote.tenant, PruneCommand(**{**made, "step": 100, **fields}))


async def rows_of(remote: Desk, adapter: Door) -> dict[str, int]:
    """How many rows each table has for the tenant."""
    tables = (*OWNED, "job_body", "job_result") if adapter.engine == "sqlite" else (*OWNED, "unsuccessful_job")
    counts = {}
    for table in tables:
        ((counts[table],),) = await adapter.run(f"SELECT count(*) FROM {table} WHERE tenant = $1", remote.tenant)
    return counts


async def rich(remote: Desk) -> Job:
    """An ended job with something in every place a job can leave something."""
    job = await remote.running(type="rich", webhook="https://example.test/hook")
    await keep(remote, step(job))
    await tell(remote, report(job, event()))
    await remote.checkpoint(save(job, 1))
    await remote.store.show_artifacts(
        remote.tenant, [NewArtifact(job.id, job.fence, "w1", new_id(), "link", url="https://example.test/")], quota=None
    )
    _, approval = await waiting(remote, job=job)
    await decided(remote, command(approval))
    leased = await remote.again(job)
    await remote.do(complete(leased, result='"large"'))
    return await remote.job(job.id)


@pytest.mark.parametrize("status", Status)
async def test_only_jobs_that_have_ended_go(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status, deadline=None)
    remote.clock.advance(8 * DAY)
    done = await prune(remote)
    assert done == PrunedStep(int(status in TERMINAL), job.seq, True)
    (left,) = await remote.store.get(remote.tenant, [job.id])
    assert (left is None) == (status in TERMINAL)
    await remote.verify()


async def test_a_job_goes_by_when_it_ended_not_by_when_it_was_made(remote: Desk) -> None:
    job = await remote.running(lease_seconds=3600)
    remote.clock.advance(30 * DAY)
    await remote.do(complete(job))
    remote.clock.advance(7 * DAY)
    assert (await prune(remote)).deleted == 0
    remote.clock.advance(1)
    assert (await prune(remote)).deleted == 1


async def test_a_job_goes_with_all_it_owns(remote: Desk, adapter: Door, neighbour: Desk) -> None:
    theirs = await rich(neighbour)
    kept = await rows_of(neighbour, adapter)
    assert all(kept[table] for table in OWNED)
    await rich(remote)
    assert await rows_of(remote, adapter) == kept
    await deliver_everything(remote)
    remote.clock.advance(8 * DAY)
    assert (await prune(remote)).deleted == 1
    assert set((await rows_of(remote, adapter)).values()) == {0}
    assert await rows_of(neighbour, adapter) == kept
    assert await remote.store.find(remote.tenant, Filter()) == []
    await remote.verify()
    await neighbour.verify()
    assert (await neighbour.job(theirs.id)) == theirs


async def deliver_everything(remote: Desk) -> None:
    """Nothing is on its way any more."""
    for channel in [due.channel for due in await remote.store.outbox.due_channels(100) if due.tenant == remote.tenant]:
        for taken in await take(remote, channel):
            delivered = DeliveryResult(taken.id, taken.grab, Outcome(DeliveryStatus.DELIVERED), 200, None)
            assert await remote.store.outbox.settle(remote.tenant, delivered)


async def take(remote: Desk, channel: str) -> list[Dispatch]:
    return await remote.store.outbox.take(
        remote.tenant, [(channel, 10)], lease_seconds=60, fresh_secret="whsec_c2VjcmV0"
    )


async def test_what_is_still_on_its_way_is_delivered_all_the_same(remote: Desk, adapter: Door) -> None:
    await rich(remote)
    remote.clock.advance(8 * DAY)
    await prune(remote)
    assert {table: n for table, n in (await rows_of(remote, adapter)).items() if n} == {"outbox": 1}
    (channel,) = [due.channel for due in await remote.store.outbox.due_channels(100) if due.tenant == remote.tenant]
    assert [taken.event for taken in await take(remote, channel)] == ["job.succeeded"]


async def test_a_prune_leaves_a_count_and_a_hash_that_an_audit_can_compare(remote: Desk, adapter: Door) -> None:
    jobs = [await job_in(remote, adapter, status, type=status) for status in sorted(TERMINAL)]
    ends = sorted([(remote.tenant, job.id, (await remote.history(job.id))[-1].hash) for job in jobs])
    remote.clock.advance(8 * DAY)
    name = new_id()
    await prune(remote, id=name)
    (reported,) = await remote.store.prunes(remote.tenant)
    assert reported.hash.hex() == history_chain.head(ends)
    assert (reported.id, reported.at, reported.actor, reported.jobs) == (name, remote.clock.now, OPERATOR, 4)
    assert (reported.cutoff, reported.first_seq, reported.last_seq) == (
        remote.clock.now - 7 * DAY * 1_000_000,
        jobs[0].seq,
        jobs[-1].seq,
    )


async def test_what_a_prune_tells_cannot_be_taken_back(remote: Desk, adapter: Door) -> None:
    await job_in(remote, adapter, Status.CANCELLED)
    remote.clock.advance(8 * DAY)
    await prune(remote)
    for statement in ("UPDATE prune SET jobs = 7 WHERE tenant = $1", "DELETE FROM prune WHERE tenant = $1"):
        assert "prune records are permanent" in await refusal(adapter, statement, remote.tenant)


async def test_a_dry_run_counts_and_leaves_everything(remote: Desk, adapter: Door) -> None:
    job = await job_in(remote, adapter, Status.CANCELLED)
    remote.clock.advance(8 * DAY)
    assert await prune(remote, dry_run=True) == PrunedStep(1, job.seq, True)
    assert (await remote.job(job.id)).status is Status.CANCELLED
    assert await remote.store.prunes(remote.tenant) == []


async def test_a_prune_that_finds_nothing_leaves_no_trace(remote: Desk) -> None:
    assert await prune(remote) == PrunedStep(0, 0, True)
    assert await remote.store.prunes(remote.tenant) == []


async def test_steps_follow_each_other_until_only_what_is_too_young_is_left(remote: Desk, adapter: Door) -> None:
    old = [await job_in(remote, adapter, Status.CANCELLED) for _ in range(5)]
    live = await remote.add(run_at=remote.after(999 * DAY))
    remote.clock.advance(8 * DAY)
    young = await remote.add_all([new_job(run_at=remote.after(999 * DAY)) for _ in range(5)])
    steps = [await prune(remote, step=2)]
    while not steps[-1].at_end:
        steps.append(await prune(remote, step=2, after_seq=steps[-1].last_seq))
    assert [s.deleted for s in steps] == [2, 2, 1, 0]  # the last one saw nothing but young jobs, and not all of them
    assert [p.jobs for p in await remote.store.prunes(remote.tenant)] == [1, 2, 2]
    assert sorted(job.id for job in await remote.store.find(remote.tenant, Filter())) == sorted([live, *young])
    assert await remote.store.get(remote.tenant, [job.id for job in old]) == [None] * 5


async def test_no_more_go_than_were_asked_for_and_those_that_came_first(remote: Desk, adapter: Door) -> None:
    live = await remote.add(run_at=remote.after(999 * DAY))
    old = [await job_in(remote, adapter, Status.CANCELLED) for _ in range(5)]
    remote.clock.advance(8 * DAY)
    assert await prune(remote, most=2, dry_run=True) == PrunedStep(2, old[1].seq, False)
    assert await prune(remote, most=2) == PrunedStep(2, old[1].seq, False)
    left = {job.id for job in await remote.store.find(remote.tenant, Filter())}
    assert left == {live, *(job.id for job in old[2:])}
    assert await prune(remote, most=3) == PrunedStep(3, old[4].seq, True)
    await remote.verify()


async def test_a_cutoff_to_come_deletes_no_more_than_what_has_ended(remote: Desk) -> None:
    job = await remote.running()
    ended = await remote.running(type="other")
    await remote.do(complete(ended))
    remote.clock.advance(1)
    assert (await prune(remote, cutoff=remote.after(999))).deleted == 1
    assert (await remote.job(job.id)).status is Status.RUNNING
    (reported,) = await remote.store.prunes(remote.tenant)
    assert reported.cutoff == remote.clock.now


async def test_tenants_prune_their_own_and_see_their_own(remote: Desk, neighbour: Desk, adapter: Door) -> None:
    await job_in(remote, adapter, Status.CANCELLED)
    theirs = await job_in(neighbour, adapter, Status.CANCELLED)
    remote.clock.advance(8 * DAY)
    assert (await prune(remote)).deleted == 1
    assert (await neighbour.job(theirs.id)).status is Status.CANCELLED
    assert await neighbour.store.prunes(neighbour.tenant) == []
    assert {remote.tenant, neighbour.tenant} <= set(await remote.store.tenants())


async def test_a_key_lives_as_long_as_its_job(remote: Desk, adapter: Door) -> None:
    old = await job_in(remote, adapter, Status.CANCELLED, idempotency_key="k", body_sha256=b"x" * 32)
    remote.clock.advance(8 * DAY)
    await prune(remote)
    new = await remote.add(idempotency_key="k", body_sha256=b"y" * 32)
    assert new != old.id


async def test_children_and_redrives_outlive_what_they_came_from(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.add(parent_id=parent.id, run_at=remote.after(999 * DAY))
    await remote.do(complete(parent))
    remote.clock.advance(8 * DAY)
    await prune(remote)
    assert (await remote.job(child)).parent_id == parent.id
    assert [job.id for job in await remote.store.find(remote.tenant, Filter(parent_id=parent.id))] == [child]


async def test_the_counts_of_queues_forget_what_was_deleted(remote: Desk, adapter: Door) -> None:
    for _ in range(3):
        await job_in(remote, adapter, Status.DEAD_LETTER)
    assert [(s.type, s.dead_letter) for s in await remote.store.stats(remote.tenant)] == [("work", 3)]
    remote.clock.advance(8 * DAY)
    await prune(remote)
    assert sum(s.dead_letter for s in await remote.store.stats(remote.tenant)) == 0
