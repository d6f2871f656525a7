"""Claims hand out the best job first: priority, then due time, then arrival; never the same one twice."""

from __future__ import annotations

from interlock.domain.job import Receipt
from interlock.domain.lifecycle import Status, Verb
from tests.contract.builders import ERROR, Desk, complete, fail, heartbeat, new_job, release, save

MANY = 100


async def test_higher_priority_comes_first(remote: Desk) -> None:
    ids = {priority: await remote.add(priority=priority) for priority in (0, -1000, 5, 1000, -1)}
    assert await remote.claimed(limit=MANY) == [ids[p] for p in (1000, 5, 0, -1, -1000)]


async def test_of_equal_priority_the_one_due_first_comes_first(remote: Desk) -> None:
    late = await remote.add(run_at=remote.after(30))
    early = await remote.add(run_at=remote.after(10))
    middle = await remote.add(run_at=remote.after(20))
    remote.clock.advance(60)
    assert await remote.claimed(limit=MANY) == [early, middle, late]


async def test_of_equal_priority_and_time_the_one_that_arrived_first_comes_first(remote: Desk) -> None:
    jobs = [new_job() for _ in range(20)]
    await remote.add_all(jobs[::-1])
    assert await remote.claimed(limit=MANY) == [job.id for job in jobs[::-1]]


async def test_the_order_holds_across_types_and_needs(remote: Desk) -> None:
    """Jobs of many routes, given in no order at all, come out in one order."""
    jobs = [
        new_job(
            type=f"t{i % 3}",
            priority=(i * 7) % 4,
            run_at=remote.after(-((i * 5) % 6)),
            repository=(None, "org/a", "org/b")[i % 3],
            affinity_key=(None, "h1")[i % 2],
            requires=((), ("gpu",), ("gpu", "net"))[i % 3],
        )
        for i in range(48)
    ]
    await remote.add_all(jobs)
    expected = sorted(range(48), key=lambda i: (-jobs[i].priority, jobs[i].run_at, i))
    everything = {"capabilities": frozenset({"gpu", "net"}), "affinity_keys": None}
    got = []
    while batch := await remote.claimed(limit=7, **everything):
        got += batch
    assert got == [jobs[i].id for i in expected]


async def test_a_claim_grants_no_more_than_it_asked_for(remote: Desk) -> None:
    ids = [await remote.add() for _ in range(5)]
    assert await remote.claimed() == ids[:1]
    assert await remote.claimed(limit=3) == ids[1:4]
    assert await remote.claimed(limit=3) == ids[4:]
    assert await remote.claimed(limit=3) == []


async def test_a_running_job_is_not_granted_again(remote: Desk) -> None:
    job = await remote.running()
    assert await remote.claimed(worker="w2", limit=MANY) == []
    assert (await remote.job(job.id)).worker == "w1"


async def test_a_failed_try_takes_its_new_place_by_due_time(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.add(run_at=remote.after(5))
    after = await remote.add(run_at=remote.after(15))
    await remote.do(fail(job, retry_after_seconds=10.0))
    remote.clock.advance(20)
    assert await remote.claimed(limit=MANY) == [before, job.id, after]


async def test_a_released_job_queues_up_again_by_the_time_of_its_release(remote: Desk) -> None:
    job = await remote.running()
    other = await remote.add()
    remote.clock.advance(1)
    await remote.do(release(job))
    assert await remote.claimed(limit=MANY) == [other, job.id]


async def test_the_answer_to_a_claim_is_the_job_as_it_is_now(remote: Desk) -> None:
    id = await remote.add(payload='{"x":[1,2]}', tags=("a",), requires=("gpu",), priority=3, timeout_seconds=20.0)
    remote.clock.advance(5)
    (job,) = await remote.claim(worker="w1", capabilities=frozenset({"gpu"}), lease_seconds=30.0)
    assert job == await remote.job(id)
    assert (job.status, job.worker, job.fence, job.attempt, job.version) == (Status.RUNNING, "w1", 1, 1, 2)
    assert (job.started_at, job.run_started_at, job.updated_at) == (remote.clock.now,) * 3
    assert job.lease_expires_at == remote.after(20)
    assert job.payload == '{"x":[1,2]}'


async def test_a_later_grant_carries_checkpoint_and_error_of_the_runs_before(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 4, '{"page": 7}'))
    await remote.do(fail(job, retry_after_seconds=1.0))
    remote.clock.advance(1)
    second = await remote.again(job)
    assert second == await remote.job(job.id)
    assert (second.checkpoint, second.checkpoint_seq, second.error) == ('{"page": 7}', 4, ERROR)
    assert (second.attempt, second.fence, second.started_at) == (2, 2, job.started_at)
    assert second.run_started_at == remote.clock.now


async def test_each_grant_writes_one_history_row_by_its_worker(remote: Desk) -> None:
    ids = [await remote.add() for _ in range(3)]
    await remote.claim(worker="hand/1", limit=3)
    for id in ids:
        row = (await remote.history(id))[-1]
        assert (row.from_status, row.to_status, row.verb) == (Status.QUEUED, Status.RUNNING, Verb.CLAIM)
        assert (row.actor, row.version, row.fence, row.at) == ("worker:hand/1", 2, 1, remote.clock.now)
    await remote.verify()


async def test_nothing_is_handed_out_before_its_time(remote: Desk) -> None:
    """G10: by the clock of the database, to the microsecond."""
    id = await remote.add(delay_seconds=10.0)
    remote.clock.advance(10)
    remote.clock.now -= 1
    assert await remote.claimed() == []
    remote.clock.now += 1
    assert await remote.claimed() == [id]


async def test_a_backlog_is_drained_once_and_in_order_by_workers_in_turn(remote: Desk) -> None:
    ids = await remote.add_all([new_job() for _ in range(300)])
    drained = []
    for commit_seq in range(100):
        jobs = await remote.claim(worker=f"w{commit_seq % 7}", limit=7)
        if not jobs:
            break
        await remote.heartbeat(*map(heartbeat, jobs))
        answers = await remote.store.carry_out(remote.tenant, [complete(job) for job in jobs])
        drained += [answer.id for answer in answers if isinstance(answer, Receipt)]
    assert drained == ids
