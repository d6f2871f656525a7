"""Editing a job that waits for a worker."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Receipt
from interlock.domain.lifecycle import TERMINAL, Status, Verb
from interlock.domain.timestamps import when
from interlock.errors import AlreadyFinished, Invalid, NotEditable, NotFound, PreconditionFailed
from tests.contract.approvals import edit
from tests.contract.builders import NEVER, OPERATOR, Desk, facts, fail
from tests.contract.connections import Door, job_in
from tests.support.truth import check_history, check_postgres, check_sqlite


async def test_an_edit_changes_what_was_asked_for_and_nothing_else(desk: Desk) -> None:
    id = await desk.add(tags=("a",), priority=1, deadline=desk.after(60))
    before = await desk.job(id)
    desk.clock.advance(1)
    changes: dict[str, Any] = {
        "priority": 7,
        "run_at": desk.after(5),
        "deadline": desk.after(90),
        "max_attempts": 9,
        "tags": ("b", "c"),
    }
    receipt = await desk.do(edit(id, **changes))
    after = await desk.job(id)
    assert receipt == Receipt(id, 0, Status.QUEUED, 1, 2, changes["run_at"], None)
    expected = before._replace(**changes, version=2, updated_at=desk.clock.now)
    assert after._replace(tags=tuple(after.tags)) == expected
    row = (await desk.history(id))[-1]
    assert (row.from_status, row.to_status, row.verb, row.actor) == (
        Status.QUEUED,
        Status.QUEUED,
        Verb.EDIT,
        OPERATOR,
    )
    times = {"run_at": when(changes["run_at"]), "deadline": when(changes["deadline"])}
    assert facts(row) == {**changes, **times, "tags": ["b", "c"]}
    check_history(after, await desk.history(id))
    await desk.verify()


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("priority", 3, 3),
        ("max_attempts", 5, 5),
        ("tags", ("x",), ["x"]),
        ("tags", (), []),
        ("run_at", 10**15, "2001-09-09T01:46:40.000000Z"),
    ],
)
async def test_history_names_only_what_changed(desk: Desk, field: str, value: Any, told: Any) -> None:
    id = await desk.add(tags=("a",))
    await desk.do(edit(id, **{field: value}))
    row = (await desk.history(id))[-1]
    assert facts(row) == {field: told}


async def test_a_deadline_can_be_taken_away(desk: Desk) -> None:
    id = await desk.add(deadline=desk.after(10))
    await desk.do(edit(id, drop_deadline=True))
    desk.clock.advance(11)
    await desk.sweep()
    now = await desk.job(id)
    assert (now.deadline, now.status) == (None, Status.QUEUED)
    assert await desk.claimed() == [id]


async def test_an_edited_deadline_is_the_one_that_passes(desk: Desk) -> None:
    id = await desk.add()
    await desk.do(edit(id, deadline=desk.after(10)))
    desk.clock.advance(10)
    await desk.sweep()
    assert (await desk.job(id)).status is Status.CANCELLED


async def test_priority_decides_the_order_of_claims_at_once(desk: Desk) -> None:
    first, second, third = [await desk.add(repository=r) for r in (None, "r", None)]
    await desk.do(edit(third, priority=10))
    await desk.do(edit(second, priority=20))
    assert await desk.claimed(limit=3) == [second, third, first]


async def test_edited_jobs_of_one_priority_keep_their_order(desk: Desk) -> None:
    ids = [await desk.add() for _ in range(3)]
    for id in reversed(ids):
        await desk.do(edit(id, priority=5))
    last = await desk.add(priority=5)
    assert await desk.claimed(limit=4) == [*ids, last]


async def test_run_at_moves_a_job_both_ways(desk: Desk) -> None:
    now, later = await desk.add(), await desk.add(delay_seconds=100.0)
    await desk.do(edit(now, run_at=desk.after(50)))
    await desk.do(edit(later, run_at=desk.after(0)))
    assert await desk.claimed(limit=2) == [later]
    desk.clock.advance(50)
    assert await desk.claimed(limit=2) == [now]


async def test_a_retrying_job_can_be_edited_too(desk: Desk) -> None:
    job = await desk.running(max_attempts=3)
    await desk.do(fail(job, retry_after_seconds=1000.0))
    receipt = await desk.do(edit(job.id, run_at=desk.after(0), priority=4))
    assert (receipt.status, receipt.attempt) == (Status.RETRY, 2)
    again = await desk.again(job)
    assert (again.attempt, again.priority) == (2, 4)


async def test_max_attempts_never_falls_below_the_attempt(desk: Desk) -> None:
    job = await desk.running(max_attempts=3)
    await desk.do(fail(job, retry_after_seconds=1.0))
    before = await desk.trace(job.id)
    error = await desk.refused(edit(job.id, max_attempts=1))
    assert isinstance(error, Invalid)
    assert error.pointer == "/max_attempts"
    assert await desk.trace(job.id) == before
    await desk.do(edit(job.id, max_attempts=2))
    desk.clock.advance(1)
    assert (await desk.do(fail(await desk.again(job)))).status is Status.DEAD_LETTER


async def test_a_deadline_in_the_past_is_refused(desk: Desk) -> None:
    id = await desk.add()
    error = await desk.refused(edit(id, deadline=desk.clock.now))
    assert isinstance(error, Invalid)
    assert error.pointer == "/deadline"


async def test_an_edit_that_changes_nothing_leaves_no_trace(desk: Desk) -> None:
    id = await desk.add(tags=("a",), priority=2)
    await desk.do(edit(id, priority=3, tags=("b",)))
    before = await desk.trace(id)
    desk.clock.advance(1)
    receipt = await desk.do(edit(id, priority=3, tags=("b",)))
    assert (receipt.version, await desk.trace(id)) == (2, before)
    assert (await desk.do(edit(id))).version == 2


async def test_an_edit_for_another_version_is_refused(desk: Desk) -> None:
    id = await desk.add()
    before = await desk.trace(id)
    assert isinstance(await desk.refused(edit(id, priority=1, expected_version=2)), PreconditionFailed)
    assert await desk.trace(id) == before
    assert (await desk.do(edit(id, priority=1, expected_version=1))).version == 2
    assert isinstance(await desk.refused(edit(id, priority=2, expected_version=1)), PreconditionFailed)


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.QUEUED, Status.RETRY)])
async def test_only_a_waiting_job_can_be_edited(desk: Desk, door: Door, status: Status) -> None:
    job = await job_in(desk, door, status)
    before = await desk.trace(job.id)
    error = await desk.refused(edit(job.id, priority=9))
    assert isinstance(error, AlreadyFinished if status in TERMINAL else NotEditable)
    assert await desk.trace(job.id) == before


async def test_unknown_and_foreign_jobs_are_not_found(desk: Desk, rival: Desk) -> None:
    id = await desk.add()
    assert isinstance(await desk.refused(edit(NEVER, priority=1)), NotFound)
    assert isinstance(await rival.refused(edit(id, priority=1)), NotFound)
    assert (await desk.job(id)).version == 1


async def test_edits_of_one_batch_follow_each_other(desk: Desk) -> None:
    id, other = await desk.add(), await desk.add()
    answers = await desk.store.carry_out(
        desk.tenant,
        [edit(id, priority=1), edit(other, tags=("t",)), edit(id, priority=2), edit(id, max_attempts=200)][:3],
    )
    assert [a.version for a in answers if isinstance(a, Receipt)] == [2, 2, 3]
    job = await desk.job(id)
    assert job.priority == 2
    check_history(job, await desk.history(id))


async def test_what_indexes_the_job_follows_its_edits(desk: Desk, door: Door, place: str) -> None:
    ids = [await desk.add(repository=r, affinity_key=a, requires=q) for r, a, q in (
        (None, None, ()), ("r", None, ()), (None, "k", ("gpu",)), ("r", "k", ())
    )]  # fmt: skip
    for n, id in enumerate(ids):
        await desk.do(edit(id, priority=n - 2, run_at=desk.after(n), deadline=desk.after(100 + n)))
    if door.engine == "postgres":
        await check_postgres(door.connection, desk.tenant)  # type: ignore[attr-defined]
    else:
        check_sqlite(place, desk.tenant)


async def test_tags_find_a_job_as_they_are_now(desk: Desk) -> None:
    from interlock.domain.job import Filter

    id = await desk.add(tags=("old",))
    await desk.do(edit(id, tags=("new", "x")))
    assert await desk.store.find(desk.tenant, Filter(tags=("old",))) == []
    assert [job.id for job in await desk.store.find(desk.tenant, Filter(tags=("new",)))] == [id]
