"""Editing a job that waits for a worker."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Receipt
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.timestamps import when
from interlock.errors import AlreadyFinished, Invalid, NotEditable, NotFound, PreconditionFailed
from tests.contract.approvals import edit
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, facts, fail
from tests.contract.connections import SqlConnection, job_in
from tests.support.invariants import check_history, check_postgres, check_sqlite


async def test_an_edit_changes_only_the_requested_fields(queue: TenantQueue) -> None:
    id = await queue.add(tags=("a",), priority=1, deadline=queue.after(60))
    before = await queue.job(id)
    queue.clock.advance(1)
    changes: dict[str, Any] = {
        "priority": 7,
        "run_at": queue.after(5),
        "deadline": queue.after(90),
        "max_attempts": 9,
        "tags": ("b", "c"),
    }
    receipt = await queue.do(edit(id, **changes))
    after = await queue.job(id)
    assert receipt == Receipt(id, 0, Status.QUEUED, 1, 2, changes["run_at"], None)
    expected = before._replace(**changes, version=2, updated_at=queue.clock.now)
    assert after._replace(tags=tuple(after.tags)) == expected
    row = (await queue.history(id))[-1]
    assert (row.from_status, row.to_status, row.verb, row.actor) == (
        Status.QUEUED,
        Status.QUEUED,
        Verb.EDIT,
        OPERATOR,
    )
    times = {"run_at": when(changes["run_at"]), "deadline": when(changes["deadline"])}
    assert facts(row) == {**changes, **times, "tags": ["b", "c"]}
    check_history(after, await queue.history(id))
    await queue.verify()


@pytest.mark.parametrize(
    ("field", "value", "reported"),
    [
        ("priority", 3, 3),
        ("max_attempts", 5, 5),
        ("tags", ("x",), ["x"]),
        ("tags", (), []),
        ("run_at", 10**15, "2001-09-09T01:46:40.000000Z"),
    ],
)
async def test_history_names_only_what_changed(queue: TenantQueue, field: str, value: Any, reported: Any) -> None:
    id = await queue.add(tags=("a",))
    await queue.do(edit(id, **{field: value}))
    row = (await queue.history(id))[-1]
    assert facts(row) == {field: reported}


async def test_a_deadline_can_be_removed(queue: TenantQueue) -> None:
    id = await queue.add(deadline=queue.after(10))
    await queue.do(edit(id, drop_deadline=True))
    queue.clock.advance(11)
    await queue.sweep()
    now = await queue.job(id)
    assert (now.deadline, now.status) == (None, Status.QUEUED)
    assert await queue.claimed() == [id]


async def test_an_edited_deadline_takes_effect(queue: TenantQueue) -> None:
    id = await queue.add()
    await queue.do(edit(id, deadline=queue.after(10)))
    queue.clock.advance(10)
    await queue.sweep()
    assert (await queue.job(id)).status is Status.CANCELLED


async def test_an_edited_priority_changes_the_claim_order_immediately(queue: TenantQueue) -> None:
    first, second, third = [await queue.add(repository=r) for r in (None, "r", None)]
    await queue.do(edit(third, priority=10))
    await queue.do(edit(second, priority=20))
    assert await queue.claimed(limit=3) == [second, third, first]


async def test_edited_jobs_of_one_priority_keep_their_order(queue: TenantQueue) -> None:
    ids = [await queue.add() for _ in range(3)]
    for id in reversed(ids):
        await queue.do(edit(id, priority=5))
    last = await queue.add(priority=5)
    assert await queue.claimed(limit=4) == [*ids, last]


async def test_run_at_moves_a_job_earlier_and_later(queue: TenantQueue) -> None:
    now, later = await queue.add(), await queue.add(delay_seconds=100.0)
    await queue.do(edit(now, run_at=queue.after(50)))
    await queue.do(edit(later, run_at=queue.after(0)))
    assert await queue.claimed(limit=2) == [later]
    queue.clock.advance(50)
    assert await queue.claimed(limit=2) == [now]


async def test_a_retrying_job_can_be_edited_too(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=3)
    await queue.do(fail(job, retry_after_seconds=1000.0))
    receipt = await queue.do(edit(job.id, run_at=queue.after(0), priority=4))
    assert (receipt.status, receipt.attempt) == (Status.RETRY, 2)
    again = await queue.again(job)
    assert (again.attempt, again.priority) == (2, 4)


async def test_max_attempts_never_falls_below_the_attempt(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=3)
    await queue.do(fail(job, retry_after_seconds=1.0))
    before = await queue.trace(job.id)
    error = await queue.refused(edit(job.id, max_attempts=1))
    assert isinstance(error, Invalid)
    assert error.pointer == "/max_attempts"
    assert await queue.trace(job.id) == before
    await queue.do(edit(job.id, max_attempts=2))
    queue.clock.advance(1)
    assert (await queue.do(fail(await queue.again(job)))).status is Status.DEAD_LETTER


async def test_a_deadline_in_the_past_is_rejected(queue: TenantQueue) -> None:
    id = await queue.add()
    error = await queue.refused(edit(id, deadline=queue.clock.now))
    assert isinstance(error, Invalid)
    assert error.pointer == "/deadline"


async def test_an_edit_that_changes_nothing_adds_no_history(queue: TenantQueue) -> None:
    id = await queue.add(tags=("a",), priority=2)
    await queue.do(edit(id, priority=3, tags=("b",)))
    before = await queue.trace(id)
    queue.clock.advance(1)
    receipt = await queue.do(edit(id, priority=3, tags=("b",)))
    assert (receipt.version, await queue.trace(id)) == (2, before)
    assert (await queue.do(edit(id))).version == 2


async def test_an_edit_for_another_version_is_rejected(queue: TenantQueue) -> None:
    id = await queue.add()
    before = await queue.trace(id)
    assert isinstance(await queue.refused(edit(id, priority=1, expected_version=2)), PreconditionFailed)
    assert await queue.trace(id) == before
    assert (await queue.do(edit(id, priority=1, expected_version=1))).version == 2
    assert isinstance(await queue.refused(edit(id, priority=2, expected_version=1)), PreconditionFailed)


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.QUEUED, Status.RETRY)])
async def test_only_a_waiting_job_can_be_edited(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    job = await job_in(queue, sql, status)
    before = await queue.trace(job.id)
    error = await queue.refused(edit(job.id, priority=9))
    assert isinstance(error, AlreadyFinished if status in TERMINAL else NotEditable)
    assert await queue.trace(job.id) == before


async def test_unknown_and_foreign_jobs_are_not_found(queue: TenantQueue, rival: TenantQueue) -> None:
    id = await queue.add()
    assert isinstance(await queue.refused(edit(NEVER, priority=1)), NotFound)
    assert isinstance(await rival.refused(edit(id, priority=1)), NotFound)
    assert (await queue.job(id)).version == 1


async def test_edits_of_one_batch_are_applied_in_order(queue: TenantQueue) -> None:
    id, other = await queue.add(), await queue.add()
    answers = await queue.store.carry_out(
        queue.tenant,
        [edit(id, priority=1), edit(other, tags=("t",)), edit(id, priority=2), edit(id, max_attempts=200)][:3],
    )
    assert [a.version for a in answers if isinstance(a, Receipt)] == [2, 2, 3]
    job = await queue.job(id)
    assert job.priority == 2
    check_history(job, await queue.history(id))


async def test_the_indexes_of_a_job_follow_its_edits(queue: TenantQueue, sql: SqlConnection, place: str) -> None:
    ids = [await queue.add(repository=r, affinity_key=a, requires=q) for r, a, q in (
        (None, None, ()), ("r", None, ()), (None, "k", ("gpu",)), ("r", "k", ())
    )]  # fmt: skip
    for n, id in enumerate(ids):
        await queue.do(edit(id, priority=n - 2, run_at=queue.after(n), deadline=queue.after(100 + n)))
    if sql.engine == "postgres":
        await check_postgres(sql.connection, queue.tenant)  # type: ignore[attr-defined]
    else:
        check_sqlite(place, queue.tenant)


async def test_edited_tags_find_a_job(queue: TenantQueue) -> None:
    from interlock.domain.job import Filter

    id = await queue.add(tags=("old",))
    await queue.do(edit(id, tags=("new", "x")))
    assert await queue.store.find(queue.tenant, Filter(tags=("old",))) == []
    assert [job.id for job in await queue.store.find(queue.tenant, Filter(tags=("new",)))] == [id]
