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


async def test_an_edit_changes_what_was_asked_for_and_nothing_else(remote: Desk) -> None:
    id = await remote.add(tags=("a",), priority=1, deadline=remote.after(60))
    before = await remote.job(id)
    remote.clock.advance(1)
    changes: dict[str, Any] = {
        "priority": 7,
        "run_at": remote.after(5),
        "deadline": remote.after(90),
        "max_attempts": 9,
        "tags": ("b", "c"),
    }
    receipt = await remote.do(edit(id, **changes))
    after = await remote.job(id)
    assert receipt == Receipt(id, 0, Status.QUEUED, 1, 2, changes["run_at"], None)
    expected = before._replace(**changes, version=2, updated_at=remote.clock.now)
    assert after._replace(tags=tuple(after.tags)) == expected
    row = (await remote.history(id))[-1]
    assert (row.from_status, row.to_status, row.verb, row.actor) == (
        Status.QUEUED,
        Status.QUEUED,
        Verb.EDIT,
        OPERATOR,
    )
    times = {"run_at": when(changes["run_at"]), "deadline": when(changes["deadline"])}
    assert facts(row) == {**changes, **times, "tags": ["b", "c"]}
    check_history(after, await remote.history(id))
    await remote.verify()


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
async def test_history_names_only_what_changed(remote: Desk, field: str, value: Any, reported: Any) -> None:
    id = await remote.add(tags=("a",))
    await remote.do(edit(id, **{field: value}))
    row = (await remote.history(id))[-1]
    assert facts(row) == {field: reported}


async def test_a_deadline_can_be_taken_away(remote: Desk) -> None:
    id = await remote.add(deadline=remote.after(10))
    await remote.do(edit(id, drop_deadline=True))
    remote.clock.advance(11)
    await remote.sweep()
    now = await remote.job(id)
    assert (now.deadline, now.status) == (None, Status.QUEUED)
    assert await remote.claimed() == [id]


async def test_an_edited_deadline_is_the_one_that_passes(remote: Desk) -> None:
    id = await remote.add()
    await remote.do(edit(id, deadline=remote.after(10)))
    remote.clock.advance(10)
    await remote.sweep()
    assert (await remote.job(id)).status is Status.CANCELLED


async def test_priority_decides_the_order_of_claims_at_once(remote: Desk) -> None:
    first, second, third = [await remote.add(repository=r) for r in (None, "r", None)]
    await remote.do(edit(third, priority=10))
    await remote.do(edit(second, priority=20))
    assert await remote.claimed(limit=3) == [second, third, first]


async def test_edited_jobs_of_one_priority_keep_their_order(remote: Desk) -> None:
    ids = [await remote.add() for _ in range(3)]
    for id in reversed(ids):
        await remote.do(edit(id, priority=5))
    last = await remote.add(priority=5)
    assert await remote.claimed(limit=4) == [*ids, last]


async def test_run_at_moves_a_job_both_ways(remote: Desk) -> None:
    now, later = await remote.add(), await remote.add(delay_seconds=100.0)
    await remote.do(edit(now, run_at=remote.after(50)))
    await remote.do(edit(later, run_at=remote.after(0)))
    assert await remote.claimed(limit=2) == [later]
    remote.clock.advance(50)
    assert await remote.claimed(limit=2) == [now]


async def test_a_retrying_job_can_be_edited_too(remote: Desk) -> None:
    job = await remote.running(max_attempts=3)
    await remote.do(fail(job, retry_after_seconds=1000.0))
    receipt = await remote.do(edit(job.id, run_at=remote.after(0), priority=4))
    assert (receipt.status, receipt.attempt) == (Status.RETRY, 2)
    again = await remote.again(job)
    assert (again.attempt, again.priority) == (2, 4)


async def test_max_attempts_never_falls_below_the_attempt(remote: Desk) -> None:
    job = await remote.running(max_attempts=3)
    await remote.do(fail(job, retry_after_seconds=1.0))
    before = await remote.trace(job.id)
    error = await remote.refused(edit(job.id, max_attempts=1))
    assert isinstance(error, Invalid)
    assert error.pointer == "/max_attempts"
    assert await remote.trace(job.id) == before
    await remote.do(edit(job.id, max_attempts=2))
    remote.clock.advance(1)
    assert (await remote.do(fail(await remote.again(job)))).status is Status.DEAD_LETTER


async def test_a_deadline_in_the_past_is_refused(remote: Desk) -> None:
    id = await remote.add()
    error = await remote.refused(edit(id, deadline=remote.clock.now))
    assert isinstance(error, Invalid)
    assert error.pointer == "/deadline"


async def test_an_edit_that_changes_nothing_leaves_no_trace(remote: Desk) -> None:
    id = await remote.add(tags=("a",), priority=2)
    await remote.do(edit(id, priority=3, tags=("b",)))
    before = await remote.trace(id)
    remote.clock.advance(1)
    receipt = await remote.do(edit(id, priority=3, tags=("b",)))
    assert (receipt.version, await remote.trace(id)) == (2, before)
    assert (await remote.do(edit(id))).version == 2


async def test_an_edit_for_another_version_is_refused(remote: Desk) -> None:
    id = await remote.add()
    before = await remote.trace(id)
    assert isinstance(await remote.refused(edit(id, priority=1, expected_version=2)), PreconditionFailed)
    assert await remote.trace(id) == before
    assert (await remote.do(edit(id, priority=1, expected_version=1))).version == 2
    assert isinstance(await remote.refused(edit(id, priority=2, expected_version=1)), PreconditionFailed)


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.QUEUED, Status.RETRY)])
async def test_only_a_waiting_job_can_be_edited(remote: Desk, adapter: Door, status: Status) -> None:
    job = await job_in(remote, adapter, status)
    before = await remote.trace(job.id)
    error = await remote.refused(edit(job.id, priority=9))
    assert isinstance(error, AlreadyFinished if status in TERMINAL else NotEditable)
    assert await remote.trace(job.id) == before


async def test_unknown_and_foreign_jobs_are_not_found(remote: Desk, rival: Desk) -> None:
    id = await remote.add()
    assert isinstance(await remote.refused(edit(NEVER, priority=1)), NotFound)
    assert isinstance(await rival.refused(edit(id, priority=1)), NotFound)
    assert (await remote.job(id)).version == 1


async def test_edits_of_one_batch_follow_each_other(remote: Desk) -> None:
    id, other = await remote.add(), await remote.add()
    answers = await remote.store.carry_out(
        remote.tenant,
        [edit(id, priority=1), edit(other, tags=("t",)), edit(id, priority=2), edit(id, max_attempts=200)][:3],
    )
    assert [a.version for a in answers if isinstance(a, Receipt)] == [2, 2, 3]
    job = await remote.job(id)
    assert job.priority == 2
    check_history(job, await remote.history(id))


async def test_what_indexes_the_job_follows_its_edits(remote: Desk, adapter: Door, place: str) -> None:
    ids = [await remote.add(repository=r, affinity_key=a, requires=q) for r, a, q in (
        (None, None, ()), ("r", None, ()), (None, "k", ("gpu",)), ("r", "k", ())
    )]  # fmt: skip
    for n, id in enumerate(ids):
        await remote.do(edit(id, priority=n - 2, run_at=remote.after(n), deadline=remote.after(100 + n)))
    if adapter.engine == "postgres":
        await check_postgres(adapter.connection, remote.tenant)  # type: ignore[attr-defined]
    else:
        check_sqlite(place, remote.tenant)


async def test_tags_find_a_job_as_they_are_now(remote: Desk) -> None:
    from interlock.domain.job import Filter

    id = await remote.add(tags=("old",))
    await remote.do(edit(id, tags=("new", "x")))
    assert await remote.store.find(remote.tenant, Filter(tags=("old",))) == []
    assert [job.id for job in await remote.store.find(remote.tenant, Filter(tags=("new",)))] == [id]
