"""Claims lease the best job first: priority, then due time, then arrival; never the same one twice."""

from __future__ import annotations

from interlock.domain.job import Receipt
from interlock.domain.lifecycle import Status, Verb
from tests.contract.builders import ERROR, TenantQueue, complete, fail, heartbeat, new_job, release, save

MANY = 100


async def test_higher_priority_comes_first(queue: TenantQueue) -> None:
    ids = {priority: await queue.add(priority=priority) for priority in (0, -1000, 5, 1000, -1)}
    assert await queue.claimed(limit=MANY) == [ids[p] for p in (1000, 5, 0, -1, -1000)]


async def test_of_equal_priority_the_job_due_first_comes_first(queue: TenantQueue) -> None:
    late = await queue.add(run_at=queue.after(30))
    early = await queue.add(run_at=queue.after(10))
    middle = await queue.add(run_at=queue.after(20))
    queue.clock.advance(60)
    assert await queue.claimed(limit=MANY) == [early, middle, late]


async def test_of_equal_priority_and_time_the_job_enqueued_first_comes_first(queue: TenantQueue) -> None:
    jobs = [new_job() for _ in range(20)]
    await queue.add_all(jobs[::-1])
    assert await queue.claimed(limit=MANY) == [job.id for job in jobs[::-1]]


async def test_the_order_holds_across_types_and_capabilities(queue: TenantQueue) -> None:
    """Jobs of many routes, given in no order at all, come out in one order."""
    jobs = [
        new_job(
            type=f"t{i % 3}",
            priority=(i * 7) % 4,
            run_at=queue.after(-((i * 5) % 6)),
            repository=(None, "org/a", "org/b")[i % 3],
            affinity_key=(None, "h1")[i % 2],
            requires=((), ("gpu",), ("gpu", "net"))[i % 3],
        )
        for i in range(48)
    ]
    await queue.add_all(jobs)
    expected = sorted(range(48), key=lambda i: (-jobs[i].priority, jobs[i].run_at, i))
    everything = {"capabilities": frozenset({"gpu", "net"}), "affinity_keys": None}
    got = []
    while batch := await queue.claimed(limit=7, **everything):
        got += batch
    assert got == [jobs[i].id for i in expected]


async def test_a_claim_leases_no_more_than_its_limit(queue: TenantQueue) -> None:
    ids = [await queue.add() for _ in range(5)]
    assert await queue.claimed() == ids[:1]
    assert await queue.claimed(limit=3) == ids[1:4]
    assert await queue.claimed(limit=3) == ids[4:]
    assert await queue.claimed(limit=3) == []


async def test_a_running_job_is_not_leased_again(queue: TenantQueue) -> None:
    job = await queue.running()
    assert await queue.claimed(worker="w2", limit=MANY) == []
    assert (await queue.job(job.id)).worker == "w1"


async def test_a_retried_job_is_ordered_by_its_new_due_time(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.add(run_at=queue.after(5))
    after = await queue.add(run_at=queue.after(15))
    await queue.do(fail(job, retry_after_seconds=10.0))
    queue.clock.advance(20)
    assert await queue.claimed(limit=MANY) == [before, job.id, after]


async def test_a_released_job_is_ordered_by_the_time_of_its_release(queue: TenantQueue) -> None:
    job = await queue.running()
    other = await queue.add()
    queue.clock.advance(1)
    await queue.do(release(job))
    assert await queue.claimed(limit=MANY) == [other, job.id]


async def test_a_claim_returns_the_current_job(queue: TenantQueue) -> None:
    id = await queue.add(payload='{"x":[1,2]}', tags=("a",), requires=("gpu",), priority=3, timeout_seconds=20.0)
    queue.clock.advance(5)
    (job,) = await queue.claim(worker="w1", capabilities=frozenset({"gpu"}), lease_seconds=30.0)
    assert job == await queue.job(id)
    assert (job.status, job.worker, job.fence, job.attempt, job.version) == (Status.RUNNING, "w1", 1, 1, 2)
    assert (job.started_at, job.run_started_at, job.updated_at) == (queue.clock.now,) * 3
    assert job.lease_expires_at == queue.after(20)
    assert job.payload == '{"x":[1,2]}'


async def test_a_later_lease_has_the_checkpoint_and_error_of_previous_runs(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 4, '{"page": 7}'))
    await queue.do(fail(job, retry_after_seconds=1.0))
    queue.clock.advance(1)
    second = await queue.again(job)
    assert second == await queue.job(job.id)
    assert (second.checkpoint, second.checkpoint_seq, second.error) == ('{"page": 7}', 4, ERROR)
    assert (second.attempt, second.fence, second.started_at) == (2, 2, job.started_at)
    assert second.run_started_at == queue.clock.now


async def test_each_lease_writes_one_history_row_by_its_worker(queue: TenantQueue) -> None:
    ids = [await queue.add() for _ in range(3)]
    await queue.claim(worker="hand/1", limit=3)
    for id in ids:
        row = (await queue.history(id))[-1]
        assert (row.from_status, row.to_status, row.verb) == (Status.QUEUED, Status.RUNNING, Verb.CLAIM)
        assert (row.actor, row.version, row.fence, row.at) == ("worker:hand/1", 2, 1, queue.clock.now)
    await queue.verify()


async def test_nothing_is_leased_before_its_time(queue: TenantQueue) -> None:
    """G10: by the clock of the database, to the microsecond."""
    id = await queue.add(delay_seconds=10.0)
    queue.clock.advance(10)
    queue.clock.now -= 1
    assert await queue.claimed() == []
    queue.clock.now += 1
    assert await queue.claimed() == [id]


async def test_alternating_workers_drain_a_backlog_once_and_in_order(queue: TenantQueue) -> None:
    ids = await queue.add_all([new_job() for _ in range(300)])
    drained = []
    for commit_seq in range(100):
        jobs = await queue.claim(worker=f"w{commit_seq % 7}", limit=7)
        if not jobs:
            break
        await queue.heartbeat(*map(heartbeat, jobs))
        answers = await queue.store.carry_out(queue.tenant, [complete(job) for job in jobs])
        drained += [answer.id for answer in answers if isinstance(answer, Receipt)]
    assert drained == ids
