"""Steps: named results, the first of each stays; written only under the current fence, kept as long as their job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.domain.job import Rejected
from interlock.domain.progress import Step, StepRow
from interlock.errors import Error, LeaseLost, NotFound, NotRunning
from interlock.storage.contract import Store
from interlock.storage.postgres import progress as on_postgres
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.sharded_store import ShardedStore
from interlock.storage.sqlite import progress as on_sqlite
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.approvals import command, decided, waiting
from tests.contract.builders import NEVER, Desk, complete, expire, fail, release, revoke
from tests.contract.connections import Door, refusal
from tests.contract.progress import keep, step
from tests.contract.test_poison_values import VALUES, WORDS


async def refused(remote: Desk, step: Step) -> Error:
    (answer,) = await remote.store.save_steps(remote.tenant, [step])
    assert isinstance(answer, Rejected), answer
    return answer.error


async def steps(remote: Desk, job_id: str, *, after: int = 0, limit: int = 1000) -> list[StepRow]:
    (found,) = await remote.store.steps(remote.tenant, [job_id], after=after, limit=limit)
    return found


async def test_a_step_is_kept_and_shown(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    kept = await keep(remote, step(job, "search", 3, '{"pages": [1]}', function="app.search", sanitized=True))
    assert kept == StepRow(
        job.id, 1, "search", 3, '{"pages": [1]}', "app.search", job.fence, remote.clock.now, sanitized=True
    )
    assert await steps(remote, job.id) == [kept]


async def test_a_step_writes_no_history_and_moves_no_lease(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    await keep(remote, step(job))
    assert await remote.trace(job.id) == before
    await remote.verify()


async def test_of_one_name_and_occurrence_the_first_stays_and_is_the_answer(remote: Desk) -> None:
    job = await remote.running()
    first = await keep(remote, step(job, result='"first"', function="f"))
    remote.clock.advance(1)
    assert await keep(remote, step(job, result='"second"', function="g", sanitized=True)) == first
    assert await keep(remote, step(job, result='"first"', function="f")) == first
    assert await steps(remote, job.id) == [first]


async def test_the_first_stays_for_the_next_run_too(remote: Desk) -> None:
    job = await remote.running()
    first = await keep(remote, step(job, result='"first run"'))
    await remote.do(release(job))
    again = await remote.again(job)
    assert await keep(remote, step(again, result='"second run"')) == first
    assert (await keep(remote, step(again, occurrence=2))).fence == again.fence > first.fence


async def test_names_and_occurrences_are_told_apart(remote: Desk) -> None:
    job = await remote.running()
    kept = [
        await keep(remote, step(job, name, occurrence, f'"{name}{occurrence}"'))
        for name, occurrence in [("a", 1), ("a", 0), ("A", 1), ("a ", 1), ("a", 2**31 - 1)]
    ]
    assert [row.seq for row in kept] == [1, 2, 3, 4, 5]
    assert await steps(remote, job.id) == kept


async def test_steps_are_read_oldest_first_and_in_pages(remote: Desk) -> None:
    job = await remote.running()
    kept = [await keep(remote, step(job, name)) for name in ("z", "m", "a", "b")]
    assert await steps(remote, job.id, limit=2) == kept[:2]
    assert await steps(remote, job.id, after=kept[1].seq, limit=1) == kept[2:3]
    assert await steps(remote, job.id, after=kept[3].seq) == []
    assert await steps(remote, job.id, after=2**63 - 1) == []


async def test_steps_of_many_jobs_come_in_the_order_asked_for(remote: Desk) -> None:
    jobs = [await remote.running(type=type) for type in ("a", "b", "c")]
    rows = {job.id: [await keep(remote, step(job, name)) for name in ("x", "y", "z")] for job in jobs[:2]}
    asked = [jobs[1].id, jobs[2].id, NEVER, jobs[0].id]
    assert await remote.store.steps(remote.tenant, asked, limit=2) == [
        rows[jobs[1].id][:2], [], [], rows[jobs[0].id][:2],
    ]  # fmt: skip
    assert await remote.store.steps(remote.tenant, [], limit=2) == []


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"worker": "w2"}, {"fence": 2**63 - 1}])
async def test_a_step_needs_both_the_fence_and_the_worker(remote: Desk, wrong: dict[str, Any]) -> None:
    job = await remote.running()
    assert isinstance(await refused(remote, step(job, **wrong)), LeaseLost)
    assert await steps(remote, job.id) == []


async def test_a_stale_worker_keeps_nothing_and_learns_nothing(remote: Desk) -> None:
    stale = await remote.running(lease_seconds=10.0)
    kept = await keep(remote, step(stale, "old"))
    remote.clock.advance(10)
    current = await remote.again(stale)
    assert isinstance(await refused(remote, step(stale, "new")), LeaseLost)
    assert isinstance(await refused(remote, step(stale, "old")), LeaseLost)
    assert await steps(remote, stale.id) == [kept]
    assert (await keep(remote, step(current, "new"))).fence == current.fence


@pytest.mark.parametrize("end", ["complete", "fail", "release", "expire", "revoke"])
async def test_a_step_after_the_end_of_its_grant_is_refused_like_a_checkpoint(remote: Desk, end: str) -> None:
    job = await remote.running()
    match end:
        case "complete":
            await remote.do(complete(job))
        case "fail":
            await remote.do(fail(job))
        case "release":
            await remote.do(release(job))
        case "expire":
            remote.clock.advance(60)
            await remote.do(expire(job.id))
        case "revoke":
            await remote.do(revoke(job.id))
    expected = LeaseLost if end in ("expire", "revoke") else NotRunning
    assert type(await refused(remote, step(job))) is expected
    assert await steps(remote, job.id) == []


async def test_an_expired_lease_that_nobody_took_still_keeps_steps(remote: Desk) -> None:
    """G06: the clock gives liveness only."""
    job = await remote.running(lease_seconds=10.0)
    remote.clock.advance(60)
    assert (await keep(remote, step(job))).fence == job.fence


@pytest.mark.parametrize("end", ["fail", "release", "expire", "revoke", "approval"])
async def test_steps_survive_until_the_next_run(remote: Desk, end: str) -> None:
    job = await remote.running()
    kept = [await keep(remote, step(job, name)) for name in ("a", "b")]
    match end:
        case "fail":
            await remote.do(fail(job, retry_after_seconds=1.0))
        case "release":
            await remote.do(release(job))
        case "revoke":
            await remote.do(revoke(job.id))
        case "approval":
            _, approval = await waiting(remote, job=job)
            await decided(remote, command(approval))
    remote.clock.advance(60)
    if end == "expire":
        await remote.do(expire(job.id))
    again = await remote.again(job)
    assert await steps(remote, job.id) == kept
    assert (await keep(remote, step(again, "c"))).seq == 3


async def test_steps_are_still_shown_when_the_job_has_ended(remote: Desk) -> None:
    job = await remote.running()
    kept = await keep(remote, step(job))
    assert await remote.store.has_ended(remote.tenant, job.id) is False
    await remote.do(complete(job))
    assert await steps(remote, job.id) == [kept]
    assert await remote.store.has_ended(remote.tenant, job.id) is True
    assert await remote.store.has_ended(remote.tenant, NEVER) is None


async def test_many_steps_are_answered_each_on_its_own(remote: Desk, rival: Desk) -> None:
    a, b = await remote.running(type="a"), await remote.running(type="b")
    theirs = await rival.running()
    await remote.do(complete(b))
    sent = [
        step(a, "x", result="1"), step(theirs), step(a, "y"), step(b), step(a, "x", result="2"),
        step(a, "z", fence=99), step(a, id=NEVER), step(b, fence=99), step(a, "z"),
    ]  # fmt: skip
    answers = await remote.store.save_steps(remote.tenant, sent)
    reported = [type(x.error) if isinstance(x, Rejected) else (x.name, x.seq, x.result) for x in answers]
    assert reported == [
        ("x", 1, "1"), NotFound, ("y", 2, '"found"'), NotRunning, ("x", 1, "1"),
        LeaseLost, NotFound, LeaseLost, ("z", 3, '"found"'),
    ]  # fmt: skip
    assert [row.name for row in await steps(remote, a.id)] == ["x", "y", "z"]
    assert await steps(rival, theirs.id) == []


async def test_64_concurrent_saves_of_one_step_leave_one_row_that_all_are_told(remote: Desk) -> None:
    job = await remote.running()
    answers = await asyncio.gather(*(keep(remote, step(job, result=str(i))) for i in range(64)))
    assert len(set(answers)) == 1
    assert await steps(remote, job.id) == [answers[0]]


async def test_concurrent_saves_of_different_steps_are_numbered_without_a_gap(remote: Desk) -> None:
    job = await remote.running()
    await asyncio.gather(*(keep(remote, step(job, f"s{i}")) for i in range(32)))
    found = await steps(remote, job.id)
    assert [row.seq for row in found] == list(range(1, 33))
    assert {row.name for row in found} == {f"s{i}" for i in range(32)}


async def test_a_result_comes_back_byte_for_byte(remote: Desk) -> None:
    job = await remote.running()
    for kind, value in VALUES.items():
        assert (await keep(remote, step(job, kind, result=value))).result == value, kind
        assert (await keep(remote, step(job, kind, result='"other"'))).result == value, kind
    assert [row.result for row in await steps(remote, job.id)] == list(VALUES.values())


async def test_odd_names_are_only_names(remote: Desk) -> None:
    job = await remote.running()
    for word in WORDS:
        kept = await keep(remote, step(job, word, function=word))
        assert (kept.name, kept.function) == (word, word)
        assert await keep(remote, step(job, word, result="0")) == kept
    assert [row.name for row in await steps(remote, job.id)] == WORDS


async def test_tenants_never_see_or_touch_each_others_steps(remote: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    kept = await keep(rival, step(theirs))
    foreign, unknown = (
        await refused(remote, step(theirs, "mine")),
        await refused(remote, step(theirs, "mine", id=NEVER)),
    )
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert await steps(remote, theirs.id) == []
    assert await remote.store.has_ended(remote.tenant, theirs.id) is None
    assert await steps(rival, theirs.id) == [kept]
    mine = await remote.running(id=theirs.id)
    assert (await keep(remote, step(mine))).seq == 1


async def copied(store: Store, tenant: str, source: str, target: str, *, through: str | None = None) -> int:
    """Copy steps as a redrive would, inside a transaction of the store."""
    if isinstance(store, SQLiteStore):
        return await store._write(lambda c: on_sqlite.copy_steps(c, tenant, source, target, through=through))
    if isinstance(store, ShardedStore):
        store = (await store.homes(tenant))[0].store
    assert isinstance(store, PostgresStore)
    return await store._run(lambda c: on_postgres.copy_steps(c, tenant, source, target, through=through))


@pytest.mark.parametrize(("through", "count"), [(None, 5), ("plan", 1), ("loop", 4), ("end", 5), ("unknown", 0)])
async def test_steps_are_copied_to_another_job_all_or_up_to_the_last_of_a_name(
    remote: Desk, through: str | None, count: int
) -> None:
    job = await remote.running()
    names = [("plan", 1), ("loop", 1), ("other", 1), ("loop", 2), ("end", 1)]
    kept = [await keep(remote, step(job, name, occurrence)) for name, occurrence in names]
    await remote.do(complete(job))
    remote.clock.advance(5)
    other = await remote.add()
    assert await copied(remote.store, remote.tenant, job.id, other, through=through) == count
    assert await steps(remote, other) == [row._replace(job_id=other, fence=0) for row in kept[:count]]
    assert await steps(remote, job.id) == kept
    (again,) = await remote.claim()
    assert (await keep(remote, step(again, "last"))).seq == count + 1


async def test_steps_of_another_tenant_are_not_copied(remote: Desk, rival: Desk) -> None:
    theirs = await rival.running()
    await keep(rival, step(theirs))
    mine = await remote.add()
    assert await copied(remote.store, remote.tenant, theirs.id, mine) == 0


async def test_the_database_refuses_to_change_a_step_or_take_it_from_its_job(remote: Desk, adapter: Door) -> None:
    job = await remote.running()
    kept = await keep(remote, step(job))
    where = ("WHERE tenant = $1 AND job_id = $2", remote.tenant, job.id)
    assert "interlock:" in await refusal(adapter, f"UPDATE job_step SET result = '0' {where[0]}", *where[1:])
    assert "interlock:" in await refusal(adapter, f"DELETE FROM job_step {where[0]}", *where[1:])
    assert await steps(remote, job.id) == [kept]
