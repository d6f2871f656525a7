"""Steps: named results, the first of each stays; written only under the current fence, kept as long as their job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.domain.job import Enqueued, Rejected
from interlock.domain.operations import CHECKPOINT, Redrive
from interlock.domain.progress import Step, StepRow
from interlock.errors import Error, LeaseLost, NotFound, NotRunning
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, complete, expire, fail, new_id, release, revoke, save
from tests.contract.connections import SqlConnection, rejection
from tests.contract.progress import keep, step
from tests.contract.test_poison_values import VALUES, WORDS


async def refused(queue: TenantQueue, step: Step) -> Error:
    (answer,) = await queue.store.save_steps(queue.tenant, [step])
    assert isinstance(answer, Rejected), answer
    return answer.error


async def steps(queue: TenantQueue, job_id: str, *, after: int = 0, limit: int = 1000) -> list[StepRow]:
    (found,) = await queue.store.steps(queue.tenant, [job_id], after=after, limit=limit)
    return found


async def test_a_step_is_stored_and_returned(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    kept = await keep(queue, step(job, "search", 3, '{"pages": [1]}', function="app.search", sanitized=True))
    assert kept == StepRow(
        job.id, 1, "search", 3, '{"pages": [1]}', "app.search", job.fence, queue.clock.now, sanitized=True
    )
    assert await steps(queue, job.id) == [kept]


async def test_a_step_adds_no_history_and_extends_no_lease(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    await keep(queue, step(job))
    assert await queue.trace(job.id) == before
    await queue.verify()


async def test_the_first_result_of_a_name_and_occurrence_wins_and_is_returned(queue: TenantQueue) -> None:
    job = await queue.running()
    first = await keep(queue, step(job, result='"first"', function="f"))
    queue.clock.advance(1)
    assert await keep(queue, step(job, result='"second"', function="g", sanitized=True)) == first
    assert await keep(queue, step(job, result='"first"', function="f")) == first
    assert await steps(queue, job.id) == [first]


async def test_the_first_result_wins_in_the_next_run_too(queue: TenantQueue) -> None:
    job = await queue.running()
    first = await keep(queue, step(job, result='"first run"'))
    await queue.do(release(job))
    again = await queue.again(job)
    assert await keep(queue, step(again, result='"second run"')) == first
    assert (await keep(queue, step(again, occurrence=2))).fence == again.fence > first.fence


async def test_names_and_occurrences_are_distinguished(queue: TenantQueue) -> None:
    job = await queue.running()
    kept = [
        await keep(queue, step(job, name, occurrence, f'"{name}{occurrence}"'))
        for name, occurrence in [("a", 1), ("a", 0), ("A", 1), ("a ", 1), ("a", 2**31 - 1)]
    ]
    assert [row.seq for row in kept] == [1, 2, 3, 4, 5]
    assert await steps(queue, job.id) == kept


async def test_steps_are_read_oldest_first_and_in_pages(queue: TenantQueue) -> None:
    job = await queue.running()
    kept = [await keep(queue, step(job, name)) for name in ("z", "m", "a", "b")]
    assert await steps(queue, job.id, limit=2) == kept[:2]
    assert await steps(queue, job.id, after=kept[1].seq, limit=1) == kept[2:3]
    assert await steps(queue, job.id, after=kept[3].seq) == []
    assert await steps(queue, job.id, after=2**63 - 1) == []


async def test_steps_of_many_jobs_are_returned_in_the_requested_order(queue: TenantQueue) -> None:
    jobs = [await queue.running(type=type) for type in ("a", "b", "c")]
    rows = {job.id: [await keep(queue, step(job, name)) for name in ("x", "y", "z")] for job in jobs[:2]}
    asked = [jobs[1].id, jobs[2].id, NEVER, jobs[0].id]
    assert await queue.store.steps(queue.tenant, asked, limit=2) == [
        rows[jobs[1].id][:2], [], [], rows[jobs[0].id][:2],
    ]  # fmt: skip
    assert await queue.store.steps(queue.tenant, [], limit=2) == []


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"fence": 2**63 - 1}])
async def test_a_step_needs_both_the_fence_and_the_worker(queue: TenantQueue, wrong: dict[str, Any]) -> None:
    job = await queue.running()
    assert isinstance(await refused(queue, step(job, **wrong)), LeaseLost)
    assert await steps(queue, job.id) == []


async def test_a_stale_worker_saves_and_learns_nothing(queue: TenantQueue) -> None:
    stale = await queue.running(lease_seconds=10.0)
    kept = await keep(queue, step(stale, "old"))
    queue.clock.advance(10)
    current = await queue.again(stale)
    assert isinstance(await refused(queue, step(stale, "new")), LeaseLost)
    assert isinstance(await refused(queue, step(stale, "old")), LeaseLost)
    assert await steps(queue, stale.id) == [kept]
    assert (await keep(queue, step(current, "new"))).fence == current.fence


@pytest.mark.parametrize("end", ["complete", "fail", "release", "expire", "revoke"])
async def test_a_step_after_the_end_of_its_lease_is_rejected_like_a_checkpoint(queue: TenantQueue, end: str) -> None:
    job = await queue.running()
    match end:
        case "complete":
            await queue.do(complete(job))
        case "fail":
            await queue.do(fail(job))
        case "release":
            await queue.do(release(job))
        case "expire":
            queue.clock.advance(60)
            await queue.do(expire(job.id))
        case "revoke":
            await queue.do(revoke(job.id))
    expected = LeaseLost if end in ("expire", "revoke") else NotRunning
    assert type(await refused(queue, step(job))) is expected
    assert await steps(queue, job.id) == []


async def test_an_expired_lease_that_was_not_claimed_again_still_saves_steps(queue: TenantQueue) -> None:
    """G06: the clock gives liveness only."""
    job = await queue.running(lease_seconds=10.0)
    queue.clock.advance(60)
    assert (await keep(queue, step(job))).fence == job.fence


@pytest.mark.parametrize("end", ["fail", "release", "expire", "revoke", "approval"])
async def test_steps_survive_until_the_next_run(queue: TenantQueue, end: str) -> None:
    job = await queue.running()
    kept = [await keep(queue, step(job, name)) for name in ("a", "b")]
    match end:
        case "fail":
            await queue.do(fail(job, retry_after_seconds=1.0))
        case "release":
            await queue.do(release(job))
        case "revoke":
            await queue.do(revoke(job.id))
        case "approval":
            _, approval = await waiting(queue, job=job)
            await decided(queue, command(approval))
    queue.clock.advance(60)
    if end == "expire":
        await queue.do(expire(job.id))
    again = await queue.again(job)
    assert await steps(queue, job.id) == kept
    assert (await keep(queue, step(again, "c"))).seq == 3


async def test_steps_of_a_terminal_job_are_still_returned(queue: TenantQueue) -> None:
    job = await queue.running()
    kept = await keep(queue, step(job))
    assert await queue.store.has_ended(queue.tenant, job.id) is False
    await queue.do(complete(job))
    assert await steps(queue, job.id) == [kept]
    assert await queue.store.has_ended(queue.tenant, job.id) is True
    assert await queue.store.has_ended(queue.tenant, NEVER) is None


async def test_each_step_of_a_batch_gets_its_own_result(queue: TenantQueue, rival: TenantQueue) -> None:
    a, b = await queue.running(type="a"), await queue.running(type="b")
    theirs = await rival.running()
    await queue.do(complete(b))
    sent = [
        step(a, "x", result="1"), step(theirs), step(a, "y"), step(b), step(a, "x", result="2"),
        step(a, "z", fence=99), step(a, id=NEVER), step(b, fence=99), step(a, "z"),
    ]  # fmt: skip
    answers = await queue.store.save_steps(queue.tenant, sent)
    reported = [type(x.error) if isinstance(x, Rejected) else (x.name, x.seq, x.result) for x in answers]
    assert reported == [
        ("x", 1, "1"), NotFound, ("y", 2, '"found"'), NotRunning, ("x", 1, "1"),
        LeaseLost, NotFound, LeaseLost, ("z", 3, '"found"'),
    ]  # fmt: skip
    assert [row.name for row in await steps(queue, a.id)] == ["x", "y", "z"]
    assert await steps(rival, theirs.id) == []


async def test_64_concurrent_saves_of_one_step_leave_one_row_that_all_callers_get(queue: TenantQueue) -> None:
    job = await queue.running()
    answers = await asyncio.gather(*(keep(queue, step(job, result=str(i))) for i in range(64)))
    assert len(set(answers)) == 1
    assert await steps(queue, job.id) == [answers[0]]


async def test_concurrent_saves_of_different_steps_are_numbered_without_a_gap(queue: TenantQueue) -> None:
    job = await queue.running()
    await asyncio.gather(*(keep(queue, step(job, f"s{i}")) for i in range(32)))
    found = await steps(queue, job.id)
    assert [row.seq for row in found] == list(range(1, 33))
    assert {row.name for row in found} == {f"s{i}" for i in range(32)}


async def test_a_result_is_returned_byte_for_byte(queue: TenantQueue) -> None:
    job = await queue.running()
    for kind, value in VALUES.items():
        assert (await keep(queue, step(job, kind, result=value))).result == value, kind
        assert (await keep(queue, step(job, kind, result='"other"'))).result == value, kind
    assert [row.result for row in await steps(queue, job.id)] == list(VALUES.values())


async def test_unusual_names_are_ordinary_names(queue: TenantQueue) -> None:
    job = await queue.running()
    for word in WORDS:
        kept = await keep(queue, step(job, word, function=word))
        assert (kept.name, kept.function) == (word, word)
        assert await keep(queue, step(job, word, result="0")) == kept
    assert [row.name for row in await steps(queue, job.id)] == WORDS


async def test_tenants_never_see_or_touch_each_others_steps(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.running()
    kept = await keep(rival, step(theirs))
    foreign, unknown = (
        await refused(queue, step(theirs, "mine")),
        await refused(queue, step(theirs, "mine", id=NEVER)),
    )
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert await steps(queue, theirs.id) == []
    assert await queue.store.has_ended(queue.tenant, theirs.id) is None
    assert await steps(rival, theirs.id) == [kept]
    mine = await queue.running(id=theirs.id)
    assert (await keep(queue, step(mine))).seq == 1


@pytest.mark.parametrize(("origin", "count"), [(CHECKPOINT, 5), ("plan", 1), ("loop", 4), ("end", 5)])
async def test_a_redrive_copies_all_steps_or_those_up_to_the_last_of_a_name(
    queue: TenantQueue, origin: str, count: int
) -> None:
    job = await queue.running()
    names = [("plan", 1), ("loop", 1), ("other", 1), ("loop", 2), ("end", 1)]
    kept = [await keep(queue, step(job, name, occurrence)) for name, occurrence in names]
    await queue.checkpoint(save(job, 1, "1"))
    await queue.do(complete(job))
    queue.clock.advance(5)
    (again,) = await queue.store.redrive(queue.tenant, [Redrive(job.id, new_id(), OPERATOR, origin)])
    assert isinstance(again, Enqueued)
    assert await steps(queue, again.id) == [row._replace(job_id=again.id, fence=0) for row in kept[:count]]
    assert await steps(queue, job.id) == kept
    (leased,) = await queue.claim()
    assert (await keep(queue, step(leased, "last"))).seq == count + 1
    await queue.verify()


async def test_the_database_rejects_changing_or_moving_a_step(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    kept = await keep(queue, step(job))
    where = ("WHERE tenant = $1 AND job_id = $2", queue.tenant, job.id)
    assert "interlock:" in await rejection(sql, f"UPDATE job_step SET result = '0' {where[0]}", *where[1:])
    assert "interlock:" in await rejection(sql, f"DELETE FROM job_step {where[0]}", *where[1:])
    assert await steps(queue, job.id) == [kept]
