"""Enqueue: the fields of a new job, the order of arrival, and which jobs can be a parent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import asyncpg
import pytest

from interlock.domain.job import Enqueued, Filter, Job, NewJob, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.timestamps import micros
from interlock.errors import Invalid, ParentNotActive
from interlock.storage.postgres.store import PostgresStore
from tests.contract.builders import FIXED, NEVER, TenantQueue, cancel, complete, digests, fail, new_id, new_job
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database, opened


async def test_a_new_job_is_queued_with_one_history_row(queue: TenantQueue) -> None:
    id = await queue.add(created_by="token:producer")
    job, (row,) = await queue.trace(id)
    assert job.status is Status.QUEUED
    assert (row.version, row.from_status, row.to_status, row.verb) == (1, None, Status.QUEUED, Verb.ENQUEUE)
    assert (row.actor, row.attempt, row.fence, row.at) == ("token:producer", 1, 0, queue.clock.now)
    await queue.verify()


async def test_a_job_without_options_gets_the_defaults(queue: TenantQueue) -> None:
    job = await queue.job(await queue.add())
    now = queue.clock.now
    assert (job.payload, job.priority, job.attempt, job.max_attempts) == ("{}", 0, 1, 3)
    assert (job.run_at, job.created_at, job.updated_at) == (now, now, now)
    assert (job.version, job.fence, job.releases, job.sanitized) == (1, 0, 0, False)
    assert (job.started_at, job.finished_at, job.worker, job.lease_expires_at, job.deadline) == (None,) * 5
    assert tuple(job.tags) == tuple(job.requires) == tuple(job.awaiting) == ()


async def test_a_job_is_stored_exactly_as_enqueued(queue: TenantQueue) -> None:
    parent = await queue.add()
    given = new_job(
        type="research", payload='{"b": 1.0, "a":[ ]}', priority=-7, run_at=queue.after(90), deadline=queue.after(900),
        timeout_seconds=12.5, max_attempts=100, backoff=FIXED, expiry_delay_seconds=2.5, headers='{"x":"y"}',
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tags=("red", "größe"),
        agent_kind="planner", agent_id="p/1", affinity_key="host-1", repository="org/repo", requires=("gpu", "net"),
        idempotency_key="k-1", body_sha256=bytes(32), webhook="https://example.com/hook", parent_id=parent, redrive_of=new_id(),
        created_by="token:t1", requested_by="Zoë",
    )  # fmt: skip
    await queue.add_all([given])
    job = await queue.job(given.id)
    for field in set(NewJob._fields) & set(Job._fields) - {"tags", "requires"}:
        assert getattr(job, field) == getattr(given, field), field
    assert tuple(job.tags) == given.tags
    assert tuple(job.requires) == given.requires
    assert job.tenant == queue.tenant


async def test_a_delay_counts_from_the_clock_of_the_database(queue: TenantQueue) -> None:
    job = await queue.job(await queue.add(delay_seconds=1.5))
    assert job.run_at == queue.after(1.5)


@pytest.mark.parametrize(
    "time",
    [datetime.max, datetime.min + timedelta(microseconds=1), datetime(2300, 1, 1, microsecond=123_457)],
    ids=str,
)
async def test_any_time_is_stored_to_the_microsecond(queue: TenantQueue, time: datetime) -> None:
    at = micros(time.replace(tzinfo=UTC))
    times = {"run_at": at} if at < queue.clock.now else {"deadline": at}
    job = await queue.job(await queue.add(**times))
    later = await queue.job(await queue.add(run_at=max(at, queue.after(1))))
    (listed, found) = await queue.store.find(queue.tenant, Filter())
    (leased,) = await queue.claim(limit=2)
    for encoded in (job, found, leased):
        assert {name: getattr(encoded, name) for name in times} == times
    assert later.run_at == listed.run_at == max(at, queue.after(1))


async def test_jobs_of_a_batch_arrive_in_the_given_order(queue: TenantQueue) -> None:
    jobs = [new_job(type=type, priority=priority) for type in "cab" for priority in (3, -1, 2)]
    answers = await queue.store.enqueue(queue.tenant, jobs)
    seqs = [answer.seq for answer in answers if isinstance(answer, Enqueued)]
    assert [answer.id for answer in answers if isinstance(answer, Enqueued)] == [job.id for job in jobs]
    assert seqs == sorted(set(seqs))
    assert [(await queue.job(job.id)).seq for job in jobs] == seqs


async def test_seq_follows_arrival_and_not_the_ids(queue: TenantQueue) -> None:
    small, large = new_id(), new_id()
    first, second = await queue.add(id=large), await queue.add(id=small)
    assert small < large
    assert (await queue.job(first)).seq < (await queue.job(second)).seq


async def test_a_thousand_jobs_are_one_call(queue: TenantQueue) -> None:
    jobs = [new_job(idempotency_key=f"k{i}", body_sha256=bytes(32)) for i in range(1000)]
    answers = await queue.store.enqueue(queue.tenant, jobs, whole=True)
    assert [a.id for a in answers if isinstance(a, Enqueued)] == [job.id for job in jobs]
    assert (await queue.store.audit.verify(queue.tenant)).rows == 1000


async def test_an_empty_batch_returns_no_results(queue: TenantQueue) -> None:
    assert await queue.store.enqueue(queue.tenant, []) == []
    assert await queue.store.enqueue(queue.tenant, [], whole=True) == []


async def test_a_child_is_created_under_a_waiting_and_under_a_running_parent(queue: TenantQueue) -> None:
    waiting = await queue.add(type="a")
    running = (await queue.running(type="b")).id
    for parent in (waiting, running):
        child = await queue.add(parent_id=parent)
        assert (await queue.job(child)).parent_id == parent


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
async def test_no_child_is_created_under_a_terminal_parent(queue: TenantQueue, end: str) -> None:
    parent = await queue.running()
    if end == "succeeded":
        await queue.do(complete(parent))
    elif end == "failed":
        await queue.do(fail(parent, retryable=False))
    else:
        await queue.do(cancel(parent.id, force=True))
    (answer,) = await queue.store.enqueue(queue.tenant, [new_job(parent_id=parent.id)])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, ParentNotActive)
    assert answer.error.job_id == parent.id


async def test_no_child_is_created_under_a_parent_that_is_being_cancelled(queue: TenantQueue) -> None:
    parent = await queue.running()
    await queue.do(cancel(parent.id))
    child = new_job(parent_id=parent.id)
    (answer,) = await queue.store.enqueue(queue.tenant, [child])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, ParentNotActive)
    assert await queue.store.get(queue.tenant, [child.id]) == [None]


async def test_a_foreign_parent_is_rejected_exactly_like_an_unknown_one(queue: TenantQueue, rival: TenantQueue) -> None:
    foreign = await rival.add()
    answers = await queue.store.enqueue(queue.tenant, [new_job(parent_id=foreign), new_job(parent_id=NEVER)])
    reported = []
    for answer, parent in zip(answers, (foreign, NEVER), strict=True):
        assert isinstance(answer, Rejected)
        assert isinstance(answer.error, Invalid)
        assert answer.error.pointer == "/parent_id"
        reported.append(str(answer.error).replace(parent, "it"))
    assert reported[0] == reported[1]


async def test_one_rejection_does_not_affect_other_jobs_of_a_batch(queue: TenantQueue) -> None:
    good, bad, also_good = new_job(), new_job(parent_id=NEVER), new_job()
    answers = await queue.store.enqueue(queue.tenant, [good, bad, also_good])
    assert [type(answer) for answer in answers] == [Enqueued, Rejected, Enqueued]
    found = await queue.store.get(queue.tenant, [good.id, bad.id, also_good.id])
    assert [job is not None for job in found] == [True, False, True]


@pytest.mark.parametrize("step", [1, 3])
async def test_each_history_row_has_the_digests_of_its_own_job(postgres: Postgres, step: int) -> None:
    """Also when the numbers of a batch have gaps, as with several processes, and when some jobs exist already."""
    async with fresh_database(postgres) as name:
        admin = await asyncpg.connect(postgres.dsn(name))
        await admin.execute(f"alter sequence interlock.job_seq_seq increment by {step}")
        await admin.close()
        async with opened(PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=1)) as store:
            plain = [new_job(payload=f'"{number}"') for number in range(5)]
            keyed = [new_job(payload=f'"{key}"', idempotency_key=key, body_sha256=bytes(32)) for key in "cabed"]
            for batch in (plain[3:4], plain, keyed[1:3], [*keyed, *plain[:1]]):
                await store.enqueue("acme", batch)
            jobs = [*plain, *keyed]
            found = await store.get("acme", [job.id for job in jobs])
            for job, kept in zip(jobs, found, strict=True):
                assert kept is not None
                (row,) = await store.history("acme", job.id)
                assert digests(row)["payload"] == sha256(job.payload.encode()).hexdigest()
            seqs = [kept.seq for kept in found if kept is not None]
            assert seqs[:3] == sorted(seqs[:3])
            assert (await store.audit.verify()).first_bad is None
