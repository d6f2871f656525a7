"""What else the database refuses by itself: a version that does not rise, a changed payload, a rewritten history."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, cancel, complete, new_id
from tests.contract.connections import DOORS, Door, job_in, moved, refusal, update

FUNCTION = "only_interlock_may_change_jobs"
DENIED = "permission denied"


@pytest.fixture(params=DOORS)
def door_name(request: pytest.FixtureRequest) -> str:
    """Which door is tried: with our functions, a plain tool, the owner of the schema, the app role."""
    return str(request.param)


@pytest.fixture
def engine(door_name: str) -> str:
    return DOORS[door_name]


def says(door: Door, *, ours: str, app: str | None = None) -> str:
    """What the database is expected to say at this door."""
    if door.name == "plain":
        return FUNCTION
    return app if door.name == "app" and app is not None else ours


@pytest.mark.parametrize("door_name", ["plain"])
@pytest.mark.parametrize("origin", Status)
async def test_a_plain_tool_can_make_no_move_at_all(desk: Desk, door: Door, master: Door, origin: Status) -> None:
    job = await job_in(desk, master, origin)
    before = await desk.trace(job.id)
    for target in Status:
        message = await refusal(door, *update(job, moved(door, job, target, desk.clock.now)))
        assert FUNCTION in message
    assert await desk.trace(job.id) == before


# What is wrong with an otherwise legal move from queued to cancelled, or from running to retry, and what is said.
WRONG: dict[str, tuple[Status, Status, dict[str, int], str]] = {
    "the version stays": (Status.QUEUED, Status.CANCELLED, {"version": 0}, "raises version by one"),
    "the version jumps": (Status.QUEUED, Status.CANCELLED, {"version": 2}, "raises version by one"),
    "the version falls": (Status.QUEUED, Status.CANCELLED, {"version": -1}, "raises version by one"),
    "the version jumps without a move": (Status.QUEUED, Status.QUEUED, {"version": 2}, "raises version by one"),
    "a grant does not raise the fence": (
        Status.QUEUED,
        Status.RUNNING,
        {"fence": 0},
        "fence rises exactly when a lease begins",
    ),
    "a grant lowers the fence": (
        Status.RETRY,
        Status.RUNNING,
        {"fence": -1},
        "fence rises exactly when a lease begins",
    ),
    "the fence rises without a grant": (
        Status.RUNNING,
        Status.RUNNING,
        {"fence": 1},
        "fence rises exactly when a lease begins",
    ),
    "the fence rises at an end": (
        Status.RUNNING,
        Status.SUCCEEDED,
        {"fence": 1},
        "fence rises exactly when a lease begins",
    ),
    "a retry does not count": (Status.RUNNING, Status.RETRY, {"attempt": 0}, "attempt rises exactly when"),
    "a retry counts twice": (Status.RUNNING, Status.RETRY, {"attempt": 2}, "attempt rises exactly when"),
    "a release counts": (Status.RUNNING, Status.QUEUED, {"attempt": 1}, "attempt rises exactly when"),
    "an attempt is given back": (Status.RETRY, Status.RUNNING, {"attempt": -1}, "attempt rises exactly when"),
}


async def test_a_move_needs_the_right_version_fence_and_attempt(desk: Desk, door: Door, master: Door) -> None:
    for wrong, (origin, target, steps, said) in WRONG.items():
        job = await job_in(desk, master, origin, type=wrong)
        before = await desk.trace(job.id)
        columns = {name: getattr(job, name) + step for name, step in steps.items()}
        message = await refusal(door, *update(job, moved(door, job, target, desk.clock.now) | columns))
        assert says(door, ours=said) in message, wrong
        assert await desk.trace(job.id) == before, wrong


async def test_a_status_change_that_says_nothing_of_the_version_is_refused(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add())
    message = await refusal(
        door, *update(job, {"status": "cancelled", "finished_at": desk.clock.now, "verb": "cancel"})
    )
    assert says(door, ours="raises version by one") in message


UNTOLD: dict[str, Any] = {
    "priority": 7, "max_attempts": 9, "releases": 0, "timeout_seconds": 5.0, "reason": "none", "run_at": None, "deadline": None,
    "cancel_requested_at": None, "started_at": None, "updated_at": None,
}  # fmt: skip


async def test_no_change_goes_without_a_version_not_even_one_that_leaves_the_status(desk: Desk, door: Door) -> None:
    jobs = [await desk.running(type="running"), await desk.job(await desk.add())]
    desk.clock.advance(5)
    for job in jobs:
        before = await desk.trace(job.id)
        for column, value in UNTOLD.items():
            message = await refusal(door, *update(job, {column: desk.clock.now if value is None else value}))
            assert says(door, ours="raises version by one") in message, column
        assert await desk.trace(job.id) == before


@pytest.mark.parametrize("door_name", ["functions"])
@pytest.mark.parametrize("limit", [None, 1])
async def test_on_sqlite_no_edit_hides_behind_a_place_in_a_line(desk: Desk, door: Door, limit: int | None) -> None:
    agent: dict[str, str] = {}
    if limit is not None:
        agent = {"agent_kind": "bot", "agent_id": "1"}
        await desk.store.set_agent(desk.tenant, Agent("bot", "1", max_concurrency=limit))
    job = await desk.job(await desk.add(**agent))
    before = await desk.trace(job.id)
    desk.clock.advance(5)
    for column, value in (UNTOLD | {"releases": 1}).items():
        columns = {"blocked": 1, column: desk.clock.now if value is None else value}
        message = await refusal(door, *update(job, columns))
        assert "raises version by one" in message or "has_a_place_to_run" in message, column
    assert await desk.trace(job.id) == before
    assert await desk.claimed() == [job.id]


@pytest.mark.parametrize("door_name", ["functions"])
@pytest.mark.parametrize("status", Status)
async def test_on_sqlite_only_the_operation_that_ends_a_job_writes_a_result(
    desk: Desk, door: Door, master: Door, status: Status
) -> None:
    job = await job_in(desk, master, status)
    result = "INSERT INTO job_result (tenant, seq, result) VALUES ($1, $2, $3)"
    assert "only the operation that ends the job" in await refusal(door, result, desk.tenant, job.seq, '"forged"')


@pytest.mark.parametrize("door_name", ["owner", "app"])
@pytest.mark.parametrize("target", [Status.RUNNING, Status.CANCELLED])
async def test_on_postgresql_a_job_that_stops_waiting_is_due_when_it_was(
    desk: Desk, door: Door, target: Status
) -> None:
    """Its row in ready is found by that, and would stay behind for good."""
    job = await desk.job(await desk.add(deadline=desk.after(60)))
    columns = moved(door, job, target, desk.clock.now) | {"run_at": job.run_at - 1}
    assert "change while it waits, not as it stops waiting" in await refusal(door, *update(job, columns))
    await desk.do(cancel(job.id))
    desk.clock.advance(100)
    assert await desk.store.due_deadlines(10) == []


async def test_a_running_job_changes_hands_only_by_a_grant(desk: Desk, door: Door) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    columns = moved(door, job, Status.RUNNING, desk.clock.now) | {"worker": "w9"}
    message = await refusal(door, *update(job, columns))
    assert says(door, ours="changes only when a lease begins") in message
    assert await desk.trace(job.id) == before
    assert (await desk.do(complete(job))).status is Status.SUCCEEDED


@pytest.mark.parametrize("door_name", ["owner", "app"])
async def test_on_postgresql_a_move_must_name_the_status_it_leaves(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add())
    columns = moved(door, job, Status.CANCELLED, desk.clock.now) | {"previous": "running"}
    assert "names the status it leaves" in await refusal(door, *update(job, columns))


IMMUTABLE: dict[str, Any] = {
    "payload": '{"other":1}', "type": "other", "created_by": "user:mallory", "idempotency_key": "k", "repository": "r",
    "affinity_key": "a", "agent_kind": "x", "agent_id": "y", "parent_id": "0193a1b2-0000-7000-8000-000000000000",
    "redrive_of": "0193a1b2-0000-7000-8000-000000000000", "headers": "{}", "created_at": 1_700_000_000_000_000,
    "requested_by": "somebody", "traceparent": "00-0-0-00", "webhook": "https://example.com", "backoff": "{}",
    "expiry_delay_seconds": 1.5, "requires": None, "body_sha256": b"x",
}  # fmt: skip


async def test_what_a_job_was_created_with_never_changes(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add())
    before = await desk.trace(job.id)
    table = "job_body" if door.engine == "sqlite" else "job"
    extra = "" if door.engine == "sqlite" else ", version = version + 1, previous = status"
    for column, value in IMMUTABLE.items():
        change = f"UPDATE {table} SET {column} = $3{extra} WHERE tenant = $1 AND id = $2"
        message = await refusal(door, change, job.tenant, job.id, value)
        assert "created with, its payload above all, never changes" in message, column
    assert await desk.trace(job.id) == before


@pytest.mark.parametrize("column", ["tenant", "id", "seq"])
async def test_the_identity_of_a_job_never_changes(desk: Desk, door: Door, column: str) -> None:
    job = await desk.job(await desk.add())
    value: Any = {"tenant": "other", "id": new_id(), "seq": job.seq + 999}[column]
    columns = moved(door, job, Status.QUEUED, desk.clock.now) | {column: value}
    message = await refusal(door, *update(job, columns))
    assert says(door, ours="never changes") in message or "generated always" in message.lower()
    assert await desk.job(job.id) == job


HISTORY = {
    "sqlite": "tenant = $1 AND seq = (SELECT seq FROM job WHERE tenant = $1 AND id = $2)",
    "postgres": "tenant = $1 AND job_id = $2",
}


async def test_a_history_row_never_changes(desk: Desk, door: Door) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    for change in ("reason = 'x'", "actor = 'user:nobody'", "version = version + 10", "metadata = NULL"):
        statement = f"UPDATE job_history SET {change} WHERE {HISTORY[door.engine]}"
        message = await refusal(door, statement, job.tenant, job.id)
        assert (DENIED if door.name == "app" else "history is append-only") in message, change
    assert await desk.trace(job.id) == before


async def test_a_history_row_goes_only_with_its_job(desk: Desk, door: Door) -> None:
    job = await desk.running()
    before = await desk.trace(job.id)
    for which in ("", " AND version = 1", " AND version = 2"):
        statement = f"DELETE FROM job_history WHERE {HISTORY[door.engine]}{which}"
        message = await refusal(door, statement, job.tenant, job.id)
        assert (DENIED if door.name == "app" else "history is append-only") in message, which
    assert await desk.trace(job.id) == before


@pytest.mark.parametrize("job_id", ["of a job", "of no job"])
async def test_a_history_row_is_written_only_by_the_change_it_tells_of(desk: Desk, door: Door, job_id: str) -> None:
    """A row for the version to come would stand in the way of every later change."""
    job = await desk.running()
    before = await desk.trace(job.id)
    whose, tables = ("seq", ["job_history"]) if door.engine == "sqlite" else ("job_id", await _history_tables(door))
    unknown = "seq + 1000" if door.engine == "sqlite" else "gen_random_uuid()"
    for table in tables:
        statement = (
            f"INSERT INTO {table} SELECT tenant, {whose if job_id == 'of a job' else unknown}, version + 1, to_status, to_status, verb, "
            f"actor, attempt, fence, reason, metadata, at, hash FROM job_history WHERE {HISTORY[door.engine]} AND version = 2"
        )
        message = await refusal(door, statement, job.tenant, job.id)
        said = "history is append-only: only a transition writes a row"
        assert says(door, ours=said, app=DENIED) in message, table
    assert await desk.trace(job.id) == before
    await desk.do(complete(job))
    await desk.verify()


async def _history_tables(door: Door) -> list[str]:
    """History, and its partitions by their own names."""
    rows = await door.run("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'job_history'::regclass")
    assert bool(rows) == (door.name == "partitions")
    return ["job_history", *(name for (name,) in rows)]


@pytest.mark.parametrize("door_name", ["owner", "app"])
@pytest.mark.parametrize("table", ["job", "job_history"])
async def test_on_postgresql_history_and_jobs_cannot_be_truncated(desk: Desk, door: Door, table: str) -> None:
    job = await desk.job(await desk.add())
    message = await refusal(door, f"TRUNCATE {table} CASCADE")
    assert (DENIED if door.name == "app" else "TRUNCATE is refused") in message
    assert await desk.job(job.id) == job


async def test_a_live_job_cannot_be_deleted(desk: Desk, door: Door, master: Door) -> None:
    for status in set(Status) - TERMINAL:
        job = await job_in(desk, master, status, type=status)
        message = await refusal(door, "DELETE FROM job WHERE tenant = $1 AND id = $2", job.tenant, job.id)
        expected = DENIED if door.name == "app" else says(door, ours="only a job that has ended may be deleted")
        assert expected in message, status
        assert await desk.job(job.id) == job


@pytest.mark.parametrize("door_name", ["functions", "plain"])
async def test_on_sqlite_the_body_and_the_result_of_a_job_go_only_with_it(desk: Desk, door: Door) -> None:
    job = await desk.running()
    await desk.do(complete(job, result='"kept"'))
    for table in ("job_body", "job_result"):
        message = await refusal(door, f"DELETE FROM {table} WHERE tenant = $1 AND seq = $2", job.tenant, job.seq)
        assert "goes only with the job" in message
    message = await refusal(door, "UPDATE job_result SET result = NULL WHERE tenant = $1", job.tenant)
    assert "what a job ended with never changes" in message


@pytest.mark.parametrize("door_name", ["functions", "plain"])
async def test_on_sqlite_a_job_is_not_replaced_by_another(desk: Desk, door: Door) -> None:
    """REPLACE deletes without firing the triggers that refuse a deletion."""
    job = await desk.running()
    before = await desk.trace(job.id)
    kept = "tenant, id, seq, priority, route, base, run_at"
    message = await refusal(
        door,
        f"INSERT OR REPLACE INTO job ({kept}, status, attempt, max_attempts, fence, version, releases, updated_at, verb, "
        f"actor) SELECT {kept}, 'queued', 1, 9, 0, 1, 0, 0, 'enqueue', 'user:dba' FROM job WHERE tenant = $1 AND id = $2",
        job.tenant,
        job.id,
    )
    assert says(door, ours="interlock: a job is not replaced by another") in message
    assert await desk.trace(job.id) == before


async def test_an_ended_job_goes_only_by_a_prune_with_all_it_owns(desk: Desk, door: Door, master: Door) -> None:
    for status in TERMINAL:
        job = await job_in(desk, master, status, type=status)
        message = await refusal(door, "DELETE FROM job WHERE tenant = $1 AND id = $2", job.tenant, job.id)
        assert (DENIED if door.name == "app" else says(door, ours="use interlock prune")) in message, status
        assert await desk.job(job.id) == job
    await desk.verify()
