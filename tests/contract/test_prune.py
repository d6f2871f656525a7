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
from tests.contract.builders import OPERATOR, TenantQueue, complete, new_id, new_job, save
from tests.contract.connections import SqlConnection, job_in, rejection
from tests.contract.progress import append_events, event, keep, report, step

DAY = 86_400
OWNED = (
    "job", "job_history", "job_checkpoint", "job_step", "job_event", "approval", "approval_vote", "artifact", "outbox",
)  # fmt: skip


async def prune(queue: TenantQueue, **fields: Any) -> PrunedStep:
    made = {"id": new_id(), "actor": OPERATOR, "cutoff": queue.clock.now - 7 * DAY * 1_000_000, "after_seq": 0}
    return await queue.store.prune(queue.tenant, PruneCommand(**{**made, "step": 100, **fields}))


async def rows_of(queue: TenantQueue, sql: SqlConnection) -> dict[str, int]:
    """How many rows each table has for the tenant."""
    tables = (*OWNED, "job_body", "job_result") if sql.engine == "sqlite" else (*OWNED, "unsuccessful_job")
    counts = {}
    for table in tables:
        ((counts[table],),) = await sql.run(f"SELECT count(*) FROM {table} WHERE tenant = $1", queue.tenant)
    return counts


async def rich(queue: TenantQueue) -> Job:
    """An ended job with something in every place a job can leave something."""
    job = await queue.running(type="rich", webhook="https://example.test/hook")
    await keep(queue, step(job))
    await append_events(queue, report(job, event()))
    await queue.checkpoint(save(job, 1))
    await queue.store.artifacts.publish(
        queue.tenant, [NewArtifact(job.id, job.fence, "w1", new_id(), "link", url="https://example.test/")], quota=None
    )
    _, approval = await waiting(queue, job=job)
    await decided(queue, command(approval))
    leased = await queue.again(job)
    await queue.do(complete(leased, result='"large"'))
    return await queue.job(job.id)


@pytest.mark.parametrize("status", Status)
async def test_only_terminal_jobs_are_pruned(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status, deadline=None)
    queue.clock.advance(8 * DAY)
    done = await prune(queue)
    assert done == PrunedStep(int(status in TERMINAL), job.seq, True)
    (left,) = await queue.store.get(queue.tenant, [job.id])
    assert (left is None) == (status in TERMINAL)
    await queue.verify()


async def test_a_job_is_pruned_by_its_end_time_not_by_its_creation_time(queue: TenantQueue) -> None:
    job = await queue.running(lease_seconds=3600)
    queue.clock.advance(30 * DAY)
    await queue.do(complete(job))
    queue.clock.advance(7 * DAY)
    assert (await prune(queue)).deleted == 0
    queue.clock.advance(1)
    assert (await prune(queue)).deleted == 1


async def test_a_job_is_pruned_with_all_its_rows(
    queue: TenantQueue, sql: SqlConnection, neighbour: TenantQueue
) -> None:
    theirs = await rich(neighbour)
    kept = await rows_of(neighbour, sql)
    assert all(kept[table] for table in OWNED)
    await rich(queue)
    assert await rows_of(queue, sql) == kept
    await deliver_everything(queue)
    queue.clock.advance(8 * DAY)
    assert (await prune(queue)).deleted == 1
    assert set((await rows_of(queue, sql)).values()) == {0}
    assert await rows_of(neighbour, sql) == kept
    assert await queue.store.find(queue.tenant, Filter()) == []
    await queue.verify()
    await neighbour.verify()
    assert (await neighbour.job(theirs.id)) == theirs


async def deliver_everything(queue: TenantQueue) -> None:
    """Nothing is in flight any more."""
    for channel in [due.channel for due in await queue.store.outbox.due_channels(100) if due.tenant == queue.tenant]:
        for taken in await take(queue, channel):
            delivered = DeliveryResult(taken.id, taken.grab, Outcome(DeliveryStatus.DELIVERED), 200, None)
            assert await queue.store.outbox.settle(queue.tenant, delivered)


async def take(queue: TenantQueue, channel: str) -> list[Dispatch]:
    return await queue.store.outbox.take(queue.tenant, [(channel, 10)], lease_seconds=60, fresh_secret="whsec_c2VjcmV0")


async def test_pending_deliveries_of_a_pruned_job_are_still_sent(queue: TenantQueue, sql: SqlConnection) -> None:
    await rich(queue)
    queue.clock.advance(8 * DAY)
    await prune(queue)
    assert {table: n for table, n in (await rows_of(queue, sql)).items() if n} == {"outbox": 1}
    (channel,) = [due.channel for due in await queue.store.outbox.due_channels(100) if due.tenant == queue.tenant]
    assert [taken.event for taken in await take(queue, channel)] == ["job.succeeded"]


async def test_a_prune_records_a_count_and_a_hash_for_the_audit(queue: TenantQueue, sql: SqlConnection) -> None:
    jobs = [await job_in(queue, sql, status, type=status) for status in sorted(TERMINAL)]
    ends = sorted([(queue.tenant, job.id, (await queue.history(job.id))[-1].hash) for job in jobs])
    queue.clock.advance(8 * DAY)
    name = new_id()
    await prune(queue, id=name)
    (reported,) = await queue.store.prunes(queue.tenant)
    assert reported.hash.hex() == history_chain.head(ends)
    assert (reported.id, reported.at, reported.actor, reported.jobs) == (name, queue.clock.now, OPERATOR, 4)
    assert (reported.cutoff, reported.first_seq, reported.last_seq) == (
        queue.clock.now - 7 * DAY * 1_000_000,
        jobs[0].seq,
        jobs[-1].seq,
    )


async def test_the_record_of_a_prune_cannot_be_deleted(queue: TenantQueue, sql: SqlConnection) -> None:
    await job_in(queue, sql, Status.CANCELLED)
    queue.clock.advance(8 * DAY)
    await prune(queue)
    for statement in ("UPDATE prune SET jobs = 7 WHERE tenant = $1", "DELETE FROM prune WHERE tenant = $1"):
        assert "prune records are permanent" in await rejection(sql, statement, queue.tenant)


async def test_a_dry_run_counts_and_deletes_nothing(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await job_in(queue, sql, Status.CANCELLED)
    queue.clock.advance(8 * DAY)
    assert await prune(queue, dry_run=True) == PrunedStep(1, job.seq, True)
    assert (await queue.job(job.id)).status is Status.CANCELLED
    assert await queue.store.prunes(queue.tenant) == []


async def test_a_prune_that_finds_nothing_records_nothing(queue: TenantQueue) -> None:
    assert await prune(queue) == PrunedStep(0, 0, True)
    assert await queue.store.prunes(queue.tenant) == []


async def test_repeated_steps_delete_everything_older_than_the_cutoff(queue: TenantQueue, sql: SqlConnection) -> None:
    old = [await job_in(queue, sql, Status.CANCELLED) for _ in range(5)]
    live = await queue.add(run_at=queue.after(999 * DAY))
    queue.clock.advance(8 * DAY)
    young = await queue.add_all([new_job(run_at=queue.after(999 * DAY)) for _ in range(5)])
    steps = [await prune(queue, step=2)]
    while not steps[-1].at_end:
        steps.append(await prune(queue, step=2, after_seq=steps[-1].last_seq))
    assert [s.deleted for s in steps] == [2, 2, 1, 0]  # the last one saw nothing but young jobs, and not all of them
    assert [p.jobs for p in await queue.store.prunes(queue.tenant)] == [1, 2, 2]
    assert sorted(job.id for job in await queue.store.find(queue.tenant, Filter())) == sorted([live, *young])
    assert await queue.store.get(queue.tenant, [job.id for job in old]) == [None] * 5


async def test_a_prune_deletes_at_most_its_limit_oldest_first(queue: TenantQueue, sql: SqlConnection) -> None:
    live = await queue.add(run_at=queue.after(999 * DAY))
    old = [await job_in(queue, sql, Status.CANCELLED) for _ in range(5)]
    queue.clock.advance(8 * DAY)
    assert await prune(queue, most=2, dry_run=True) == PrunedStep(2, old[1].seq, False)
    assert await prune(queue, most=2) == PrunedStep(2, old[1].seq, False)
    left = {job.id for job in await queue.store.find(queue.tenant, Filter())}
    assert left == {live, *(job.id for job in old[2:])}
    assert await prune(queue, most=3) == PrunedStep(3, old[4].seq, True)
    await queue.verify()


async def test_a_cutoff_in_the_future_deletes_only_terminal_jobs(queue: TenantQueue) -> None:
    job = await queue.running()
    ended = await queue.running(type="other")
    await queue.do(complete(ended))
    queue.clock.advance(1)
    assert (await prune(queue, cutoff=queue.after(999))).deleted == 1
    assert (await queue.job(job.id)).status is Status.RUNNING
    (reported,) = await queue.store.prunes(queue.tenant)
    assert reported.cutoff == queue.clock.now


async def test_tenants_prune_and_see_only_their_own_jobs(
    queue: TenantQueue, neighbour: TenantQueue, sql: SqlConnection
) -> None:
    await job_in(queue, sql, Status.CANCELLED)
    theirs = await job_in(neighbour, sql, Status.CANCELLED)
    queue.clock.advance(8 * DAY)
    assert (await prune(queue)).deleted == 1
    assert (await neighbour.job(theirs.id)).status is Status.CANCELLED
    assert await neighbour.store.prunes(neighbour.tenant) == []
    assert {queue.tenant, neighbour.tenant} <= set(await queue.store.audit.tenants())


async def test_a_key_lives_as_long_as_its_job(queue: TenantQueue, sql: SqlConnection) -> None:
    old = await job_in(queue, sql, Status.CANCELLED, idempotency_key="k", body_sha256=b"x" * 32)
    queue.clock.advance(8 * DAY)
    await prune(queue)
    new = await queue.add(idempotency_key="k", body_sha256=b"y" * 32)
    assert new != old.id


async def test_children_and_redrives_survive_their_origin(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.add(parent_id=parent.id, run_at=queue.after(999 * DAY))
    await queue.do(complete(parent))
    queue.clock.advance(8 * DAY)
    await prune(queue)
    assert (await queue.job(child)).parent_id == parent.id
    assert [job.id for job in await queue.store.find(queue.tenant, Filter(parent_id=parent.id))] == [child]


async def test_queue_counts_exclude_deleted_jobs(queue: TenantQueue, sql: SqlConnection) -> None:
    for _ in range(3):
        await job_in(queue, sql, Status.DEAD_LETTER)
    assert [(s.type, s.dead_letter) for s in await queue.store.registry.stats(queue.tenant)] == [("work", 3)]
    queue.clock.advance(8 * DAY)
    await prune(queue)
    assert sum(s.dead_letter for s in await queue.store.registry.stats(queue.tenant)) == 0
