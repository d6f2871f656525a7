"""Enqueue: what a job is born with, the order of arrival, and who may be a parent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from interlock.domain.job import Enqueued, Filter, Job, NewJob, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.timestamps import micros
from interlock.errors import Invalid, ParentNotActive
from tests.contract.builders import FIXED, NEVER, Desk, cancel, complete, fail, new_id, new_job


async def test_a_new_job_is_queued_with_one_history_row_from_nothing(remote: Desk) -> None:
    id = await remote.add(created_by="token:producer")
    job, (row,) = await remote.trace(id)
    assert job.status is Status.QUEUED
    assert (row.version, row.from_status, row.to_status, row.verb) == (1, None, Status.QUEUED, Verb.ENQUEUE)
    assert (row.actor, row.attempt, row.fence, row.at) == ("token:producer", 1, 0, remote.clock.now)
    await remote.verify()


async def test_a_job_that_names_nothing_gets_the_defaults(remote: Desk) -> None:
    job = await remote.job(await remote.add())
    now = remote.clock.now
    assert (job.payload, job.priority, job.attempt, job.max_attempts) == ("{}", 0, 1, 3)
    assert (job.run_at, job.created_at, job.updated_at) == (now, now, now)
    assert (job.version, job.fence, job.releases, job.sanitized) == (1, 0, 0, False)
    assert (job.started_at, job.finished_at, job.worker, job.lease_expires_at, job.deadline) == (None,) * 5
    assert tuple(job.tags) == tuple(job.requires) == tuple(job.awaiting) == ()


async def test_a_job_is_kept_exactly_as_it_was_given(remote: Desk) -> None:
    parent = await remote.add()
    given = new_job(
        type="research", payload='{"b": 1.0, "a":[ ]}', priority=-7, run_at=remote.after(90), deadline=remote.after(900),
        timeout_seconds=12.5, max_attempts=100, backoff=FIXED, expiry_delay_seconds=2.5, headers='{"x":"y"}',
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tags=("red", "größe"),
        agent_kind="planner", agent_id="p/1", affinity_key="host-1", repository="org/repo", requires=("gpu", "net"),
        idempotency_key="k-1", body_sha256=bytes(32), webhook="https://example.com/hook", parent_id=parent, redrive_of=new_id(),
        created_by="token:t1", requested_by="Zoë",
    )  # fmt: skip
    await remote.add_all([given])
    job = await remote.job(given.id)
    for field in set(NewJob._fields) & set(Job._fields) - {"tags", "requires"}:
        assert getattr(job, field) == getattr(given, field), field
    assert tuple(job.tags) == given.tags
    assert tuple(job.requires) == given.requires
    assert job.tenant == remote.tenant


async def test_a_delay_counts_from_the_clock_of_the_database(remote: Desk) -> None:
    job = await remote.job(await remote.add(delay_seconds=1.5))
    assert job.run_at == remote.after(1.5)


@pytest.mark.parametrize(
    "time",
    [datetime.max, datetime.min + timedelta(microseconds=1), datetime(2300, 1, 1, microsecond=123_457)],
    ids=str,
)
async def test_a_time_is_kept_to_the_microsecond_however_far_off_it_is(remote: Desk, time: datetime) -> None:
    at = micros(time.replace(tzinfo=UTC))
    times = {"run_at": at} if at < remote.clock.now else {"deadline": at}
    job = await remote.job(await remote.add(**times))
    later = await remote.job(await remote.add(run_at=max(at, remote.after(1))))
    (listed, found) = await remote.store.find(remote.tenant, Filter())
    (leased,) = await remote.claim(limit=2)
    for encoded in (job, found, leased):
        assert {name: getattr(encoded, name) for name in times} == times
    assert later.run_at == listed.run_at == max(at, remote.after(1))


async def test_jobs_of_a_batch_arrive_in_the_order_given(remote: Desk) -> None:
    jobs = [new_job(type=type, priority=priority) for type in "cab" for priority in (3, -1, 2)]
    answers = await remote.store.enqueue(remote.tenant, jobs)
    seqs = [answer.seq for answer in answers if isinstance(answer, Enqueued)]
    assert [answer.id for answer in answers if isinstance(answer, Enqueued)] == [job.id for job in jobs]
    assert seqs == sorted(set(seqs))
    assert [(await remote.job(job.id)).seq for job in jobs] == seqs


async def test_seq_follows_arrival_and_not_the_ids(remote: Desk) -> None:
    small, large = new_id(), new_id()
    first, second = await remote.add(id=large), await remote.add(id=small)
    assert small < large
    assert (await remote.job(first)).seq < (await remote.job(second)).seq


async def test_a_thousand_jobs_are_one_call(remote: Desk) -> None:
    jobs = [new_job(idempotency_key=f"k{i}", body_sha256=bytes(32)) for i in range(1000)]
    answers = await remote.store.enqueue(remote.tenant, jobs, whole=True)
    assert [a.id for a in answers if isinstance(a, Enqueued)] == [job.id for job in jobs]
    assert (await remote.store.verify(remote.tenant)).rows == 1000


async def test_no_jobs_are_no_answers(remote: Desk) -> None:
    assert await remote.store.enqueue(remote.tenant, []) == []
    assert await remote.store.enqueue(remote.tenant, [], whole=True) == []


async def test_a_child_is_born_under_a_waiting_and_under_a_running_parent(remote: Desk) -> None:
    waiting = await remote.add(type="a")
    running = (await remote.running(type="b")).id
    for parent in (waiting, running):
        child = await remote.add(parent_id=parent)
        assert (await remote.job(child)).parent_id == parent


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
async def test_no_child_is_born_under_an_ended_parent(remote: Desk, end: str) -> None:
    parent = await remote.running()
    if end == "succeeded":
        await remote.do(complete(parent))
    elif end == "failed":
        await remote.do(fail(parent, retryable=False))
    else:
        await remote.do(cancel(parent.id, force=True))
    (answer,) = await remote.store.enqueue(remote.tenant, [new_job(parent_id=parent.id)])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, ParentNotActive)
    assert answer.error.job_id == parent.id


async def test_no_child_is_born_under_a_parent_that_is_being_cancelled(remote: Desk) -> None:
    parent = await remote.running()
    await remote.do(cancel(parent.id))
    child = new_job(parent_id=parent.id)
    (answer,) = await remote.store.enqueue(remote.tenant, [child])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, ParentNotActive)
    assert await remote.store.get(remote.tenant, [child.id]) == [None]


async def test_a_foreign_parent_is_refused_exactly_like_an_unknown_one(remote: Desk, rival: Desk) -> None:
    foreign = await rival.add()
    answers = await remote.store.enqueue(remote.tenant, [new_job(parent_id=foreign), new_job(parent_id=NEVER)])
    reported = []
    for answer, parent in zip(answers, (foreign, NEVER), strict=True):
        assert isinstance(answer, Rejected)
        assert isinstance(answer.error, Invalid)
        assert answer.error.pointer == "/parent_id"
        reported.append(str(answer.error).replace(parent, "it"))
    assert reported[0] == reported[1]


async def test_one_refusal_leaves_the_other_jobs_of_a_batch_alone(remote: Desk) -> None:
    good, bad, also_good = new_job(), new_job(parent_id=NEVER), new_job()
    answers = await remote.store.enqueue(remote.tenant, [good, bad, also_good])
    assert [type(answer) for answer in answers] == [Enqueued, Rejected, Enqueued]
    found = await remote.store.get(remote.tenant, [good.id, bad.id, also_good.id])
    assert [job is not None for job in found] == [True, False, True]
